"""What a claim reads of an account."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ..database.dialects.base import Row


class AccountRow(NamedTuple):
    """The columns of an account that decide whose turn it is."""

    id: int
    virtual_time: float
    cost: float
    weight: float
    max_running: int | None
    running: int
    policy: int
    has_waiting: bool
    has_open: bool
    turn: float


COLUMNS = ", ".join(f'"own"."{name}"' for name in AccountRow._fields)


def named(rows: Iterable[Row]) -> list[AccountRow]:
    """Return rows as a cursor gives them by the names of their columns; any others are left out."""
    return [tuple.__new__(AccountRow, row[: len(AccountRow._fields)]) for row in rows]
