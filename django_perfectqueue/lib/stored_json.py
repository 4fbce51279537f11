"""JSON in columns of text, which anything may have been written to by SQL."""

from __future__ import annotations

import functools
import json
from typing import Any


def parsed(text: str | None) -> Any:
    """Return what a text says, or None where it is none or no JSON."""
    try:
        return json.loads(text) if text else None
    except (ValueError, RecursionError):
        return None


@functools.lru_cache(maxsize=2_000)
def names_in(text: str | None) -> tuple[str, ...]:
    """Return the names of a JSON list; what is no name is left out."""
    found = parsed(text)
    return tuple(name for name in found if isinstance(name, str)) if type(found) is list else ()
