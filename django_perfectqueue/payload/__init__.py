"""What travels with a task: its data, codecs, context, journal, and what is masked of it."""

from .codecs import Codec as Codec
from .codecs import FernetCodec as FernetCodec
from .codecs import JSONCodec as JSONCodec
from .codecs import PickleCodec as PickleCodec
from .context import Provider as Provider
from .context import language as language
from .context import timezone as timezone
