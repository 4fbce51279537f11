"""The statements that take waiting tickets: a module for each database."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from ...database.session import Session
from ...leases.leased import ClaimedRow, Taker
from . import mysql, postgresql, sqlite


class Statements(NamedTuple):
    """
    ``claim`` takes up to so many tickets of each lane, lane by lane until it is ``limit``;
    ``aware`` makes an aware time of one in its rows, where they are not aware already.
    """

    claim: Callable[[Session, Mapping[int, int], int, Taker], list[ClaimedRow]]
    aware: Callable[[Any], datetime] | None


BY_VENDOR = {
    "sqlite": Statements(sqlite.claim, sqlite.aware),
    "postgresql": Statements(postgresql.claim, None),
    "mysql": Statements(mysql.claim, mysql.aware),
}
