"""Memory that forked processes share, with named fields."""

from __future__ import annotations

import ctypes
import mmap
from typing import Any, TypeVar, cast, get_type_hints

C_TYPES: dict[Any, Any] = {bool: ctypes.c_bool, int: ctypes.c_int64, float: ctypes.c_double}

S = TypeVar("S", bound=ctypes.Structure)
C = TypeVar("C", bound="ctypes.Structure | ctypes.c_double | ctypes.Array[Any]")


def with_fields(kind: type[S]) -> type[S]:
    """Lay out a structure by its annotations; each field is read and written in one piece."""
    hints = get_type_hints(kind).items()
    kind._fields_ = [(name, C_TYPES.get(hint, hint)) for name, hint in hints if name[0] != "_"]
    return kind


def shared(kind: type[C]) -> C:
    """Return a value of zeros in memory that this process and its later forks share."""
    page = mmap.mmap(-1, ctypes.sizeof(kind))
    return cast(C, kind.from_buffer(page))
