"""The values of options: each type of argparse raises ArgumentTypeError, and says what it wants."""

from __future__ import annotations

import contextlib
import getpass
import json
import math
import os
import re
import socket
from argparse import ArgumentTypeError
from collections.abc import Callable

from django_perfectqueue.lib.checks import LARGEST, whole
from django_perfectqueue.lib.durations import seconds_in
from django_perfectqueue.payload.names import JSON

from .terminal import NUMBER, is_id

RATE = re.compile(r"(\d{1,15})/(.+)")
UNITS = {
    "s": ("s", "sec", "second"),
    "m": ("m", "min", "minute"),
    "h": ("h", "hour"),
    "d": ("d", "day"),
}
EMPTY = ("none", "all")
"""What stands for no value: of a span that there is none, of a count that it is unbounded."""


def at_least(least: int) -> Callable[[str], int]:
    """Return a type of option: a whole number that is not smaller."""
    check = whole(least, LARGEST)

    def whole_number(text: str) -> int:
        with contextlib.suppress(ValueError):
            if check.holds(int(text)):
                return int(text)
        raise ArgumentTypeError(check.problem(text).rstrip("."))

    return whole_number


def number(text: str) -> float:
    """Return the value of an option that is any number."""
    try:
        return float(text)
    except ValueError:
        raise ArgumentTypeError(f"must be a number, not {text!r}") from None


def or_none(kind: Callable[[str], object]) -> Callable[[str], object]:
    """Return a type of option that may also be ``none``."""
    return lambda text: None if text in EMPTY else kind(text)


def span(text: str) -> float | str:
    """Return a span as the API takes it: seconds, or a text such as 15m."""
    return float(text) if NUMBER.fullmatch(text) else text


def some_seconds(text: str) -> float:
    with contextlib.suppress(ValueError):
        if math.isfinite(found := float(text)) and found >= 0:
            return found
    raise ArgumentTypeError(f"must be a number of seconds, not {text!r}")


def task_id(text: str) -> int:
    if not is_id(text):
        raise ArgumentTypeError(f"must be the id of a task, not {text!r}")
    return int(text)


def merge_patch(text: str) -> JSON:
    """Return the value of an option; null is none, since that stands for no patch."""
    try:
        patch: JSON = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ArgumentTypeError(f"must be JSON: {error}") from error
    if patch is None:
        raise ArgumentTypeError("must say what to change: null changes nothing")
    return patch


def address(text: str) -> tuple[str, int]:
    """Return the host and the port that were written as "8001" or "0.0.0.0:8001"."""
    host, _colon, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit() and 1 <= int(port) <= 65535):
        raise ArgumentTypeError(f"must be a port from 1 to 65535, or HOST:PORT, not {text!r}")
    return host.strip("[]") or "127.0.0.1", int(port)


def pair(text: str) -> tuple[str, str]:
    old, equals, new = text.partition("=")
    if not (old and equals and new):
        raise ArgumentTypeError(f"must be OLD=NEW, not {text!r}")
    return old, new


def rate(text: str) -> tuple[int, float]:
    """
    Return how many, and within how many seconds, from a text such as "10/min" or "10/60".

    Raise ArgumentTypeError for anything else.
    """
    found = RATE.fullmatch(text)
    if found and int(found[1]):
        period = found[2]
        if NUMBER.fullmatch(period) and not period.startswith("-"):
            return int(found[1]), float(period)
        units = [unit for unit, words in UNITS.items() if period in words]
        if (seconds := seconds_in(f"1{units[0]}" if units else period)) is not None:
            return int(found[1]), seconds
    raise ArgumentTypeError(
        f"must be so many per time, such as 10/min, 5/s, 100/h or 10/90s, not {text!r}"
    )


def person() -> str:
    """Return who runs this command, and on which host."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = str(os.getuid())
    return f"{name}@{socket.gethostname()}"
