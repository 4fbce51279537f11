"""How data and results become the text that is stored, and how that is read again."""

from __future__ import annotations

import base64
import gzip
import json
import pickle
import re
import sys
import zlib
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeAlias

from django.conf import settings

from django_perfectqueue.conf import SETTING, cached, options
from django_perfectqueue.exceptions import ConfigError, PayloadError
from django_perfectqueue.lib.checks import nearest
from django_perfectqueue.lib.imports import imported

GZIP = "gzip"
NAME = re.compile(r"[a-z][a-z0-9]*")
PURPOSE = b"django-perfectqueue payloads"
UNREADABLE = (ValueError, OSError, EOFError, zlib.error, RecursionError)

decoder = json.JSONDecoder()
scan_once: Callable[[str, int], tuple[JSON, int]] = vars(decoder)["scan_once"]
to_json = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode


def from_json(text: str) -> JSON:
    """Read JSON as json.loads() does, which calls three functions and two patterns."""
    try:
        value, end = scan_once(text, 0)
    except StopIteration:
        return decoder.decode(text)
    return value if end == len(text) else decoder.decode(text)


class Codec:
    """
    Writes values as JSON, and leaves that as it is.

    A subclass turns values into text in another way, or seals the text. What it has
    written begins with its ``name`` and a colon, and is read by the codec of that name;
    only plain JSON has no name.
    """

    name: ClassVar[str] = ""
    # As the first of CODECS: whether plain JSON is read, which anyone may have written.
    reads_plain: bool = True
    # Text with more characters is stored as gzip in base64, if that is shorter; None is none.
    compress_above: int | None = None

    def __init__(self, *, compress_above: int | None = None) -> None:
        self.compress_above = compress_above

    def prepare(self) -> None:
        """Called before it is used, when settings are ready; raise ConfigError if it can't be."""

    def dumps(self, value: object) -> str:
        """Return a value as text; raise TypeError or ValueError when that can't be."""
        return to_json(value)

    def loads(self, text: str) -> JSON:
        """Return the value that dumps() received; raise ValueError for an unreadable text."""
        return from_json(text)

    def seal(self, text: str) -> str:
        """Return the text as it is stored."""
        return text

    def unseal(self, text: str) -> str:
        """Return the text that seal() received; raise ValueError for an unreadable text."""
        return text


class JSONCodec(Codec):
    """Plain JSON: name it first to encrypt no longer, while others are still read."""


class FernetCodec(Codec):
    """
    Encrypts with AES-128-CBC and signs with HMAC-SHA256, as Fernet does.

    The first of ``keys`` encrypts, and each of them decrypts; None derives them from SECRET_KEY
    and SECRET_KEY_FALLBACKS by HKDF. Without ``reads_plain`` only what a codec has sealed is
    read. Needs the package cryptography, by the extra ``encryption``.
    """

    name = "fernet"

    def __init__(
        self,
        keys: Sequence[str | bytes] | None = None,
        *,
        compress_above: int | None = None,
        reads_plain: bool = True,
    ) -> None:
        super().__init__(compress_above=compress_above)
        self.keys = keys
        self.reads_plain = reads_plain

    def prepare(self) -> None:
        try:
            from cryptography.fernet import Fernet, InvalidToken, MultiFernet
        except ImportError as error:
            raise ConfigError(
                "FernetCodec needs the package cryptography:"
                " pip install 'django-perfectqueue[encryption]'."
            ) from error
        keys = self.keys
        if keys is None:
            keys = [derived(key) for key in (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS)]
        try:
            self.fernet = MultiFernet([Fernet(key) for key in keys])
        except (TypeError, ValueError) as error:
            raise ConfigError(
                "FernetCodec has something that is no key."
                " Make one with: python -c 'from cryptography.fernet import Fernet;"
                " print(Fernet.generate_key().decode())'."
            ) from error
        self.invalid = InvalidToken

    def seal(self, text: str) -> str:
        return self.fernet.encrypt(text.encode()).decode()

    def unseal(self, text: str) -> str:
        try:
            return self.fernet.decrypt(text.encode()).decode()
        except self.invalid:
            raise ValueError("none of the keys decrypts it") from None


class PickleCodec(Codec):
    """
    Takes nearly any Python value.

    Reading it runs whatever the text says: who can write to the database can then run code
    in every worker. So it reads only what has its name, and only where it is in CODECS.
    """

    name = "pickle"

    def dumps(self, value: object) -> str:
        try:
            return base64.b64encode(pickle.dumps(value)).decode()
        except (pickle.PicklingError, AttributeError) as error:
            raise ValueError(str(error)) from error

    def loads(self, text: str) -> JSON:
        try:
            return pickle.loads(base64.b64decode(text, validate=True))  # noqa: S301
        except (pickle.UnpicklingError, AttributeError, ImportError, IndexError) as error:
            raise ValueError(f"it can't be unpickled: {error}") from error


def derived(secret: str | bytes) -> bytes:
    """Return a key of Fernet's form by HKDF (RFC 5869)."""
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    material = secret.encode() if isinstance(secret, str) else secret
    key = HKDF(algorithm=SHA256(), length=32, salt=None, info=PURPOSE).derive(material)
    return base64.urlsafe_b64encode(key)


@cached
def codecs() -> dict[str, Codec]:
    """
    Return the codecs that read, by name; the first of them writes.

    Raise ConfigError when an entry of CODECS is no codec.
    """
    made = [codec_at(given) for given in options().CODECS] or [JSONCodec()]
    found = {codec.name: codec for codec in made}
    if len(found) < len(made):
        raise ConfigError(f"{SETTING}['CODECS'] has two codecs of one name.")
    for codec in made:
        codec.prepare()
    if made[0].reads_plain:
        found.setdefault("", JSONCodec())
    return found


def codec_at(given: object) -> Codec:
    codec = imported(given, f"{SETTING}['CODECS']") if isinstance(given, str) else given
    if isinstance(codec, type) and issubclass(codec, Codec):
        codec = codec()
    if not isinstance(codec, Codec):
        raise ConfigError(f"{given!r} in {SETTING}['CODECS'] is no codec.")
    if codec.name and (codec.name == GZIP or not NAME.fullmatch(codec.name)):
        raise ConfigError(
            f"The codec {given!r} has the name {codec.name!r}; it must be lower-case letters and"
            f" digits, begin with a letter, and not be '{GZIP}'."
        )
    return codec


def writer() -> Codec:
    """Return the codec that writes."""
    return next(iter(codecs().values()))


def stored(text: str, codec: Codec) -> str:
    """Return what a codec has dumped, compressed where it is long, and sealed."""
    above = codec.compress_above
    text = codec.seal(text if above is None or len(text) <= above else packed(text))
    return f"{codec.name}:{text}" if codec.name else text


def decode(text: str) -> JSON:
    """
    Return what a stored text means, whichever codec has written it.

    Raise PayloadError when it can't be read.
    """
    name, colon, rest = text.partition(":") if text[:1].islower() else ("", "", "")
    if colon and name != GZIP:
        if name in codecs():
            return read(codecs()[name], rest)
        if NAME.fullmatch(name):
            raise PayloadError(
                f"The stored text was written by a codec '{name}', which is not in"
                f" {SETTING}['CODECS'].{nearest(name, codecs())}"
            )
    if "" not in codecs():
        raise PayloadError(
            "The stored text is plain, and reads_plain of the codec is False: someone who can"
            " write to the database but has no key may have written it."
        )
    try:
        return from_json(unpacked(text) if colon else text)
    except UNREADABLE as error:
        raise PayloadError(f"The stored text is not JSON: {error}.") from error


def part(text: str | None, name: str) -> Any:
    """Return what a stored object has by a name; None where it has not, or can't be read."""
    try:
        return decode(text)[name] if text else None
    except (PayloadError, LookupError, TypeError):
        return None


def read(codec: Codec, text: str) -> object:
    try:
        return codec.loads(unpacked(codec.unseal(text)))
    except UNREADABLE as error:
        what = codec.name or "JSON"
        raise PayloadError(f"The stored text is not {what}: {error}.") from error


def packed(text: str) -> str:
    """Return text as gzip in base64, unless that would be longer."""
    short = base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()
    return f"{GZIP}:{short}" if len(GZIP) + 1 + len(short) < len(text) else text


def unpacked(text: str) -> str:
    if not text.startswith(f"{GZIP}:"):
        return text
    return gzip.decompress(base64.b64decode(text[len(GZIP) + 1 :], validate=True)).decode()


# Lengths of names, and names with a meaning.


LAST_CHARACTER = chr(sys.maxunicode)

EVERYONE = "*"

LIMITS_LENGTH = 500

LIMIT_LENGTH = 249

STEP_LENGTH = 100

TAG_LENGTH = 64

# What a codec gives back: only the project knows its shape.
JSON: TypeAlias = Any
