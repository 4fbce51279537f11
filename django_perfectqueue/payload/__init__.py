"""What travels with a task: its data, codecs, context, journal, and what is masked of it."""

from .codecs import Codec, FernetCodec, JSONCodec, PickleCodec
from .context import Provider, language, timezone

__all__ = [
    "Codec",
    "FernetCodec",
    "JSONCodec",
    "PickleCodec",
    "Provider",
    "language",
    "timezone",
]
