"""What the command lines of the benchmarks have in common."""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path


def new_file(what: str) -> Path:
    """Return the path of a file for results, named by the time."""
    return Path(tempfile.gettempdir()) / f"{what}-{time.strftime('%Y-%m-%d-%H%M%S')}.jsonl"


def from_on(least: float, unit: str, *, most: float = float("inf")) -> Callable[[str], float]:
    """Return the type of an option that is so many seconds, say, or more."""

    def number(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not least <= value <= most or value == float("inf"):
            raise argparse.ArgumentTypeError(f"{text!r} is no number of {unit} from {least:g} on")
        return value

    return number
