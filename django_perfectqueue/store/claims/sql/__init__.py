"""The statements that take waiting tickets: a module for each database."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from ...database.transaction import Session
from ...leases import ClaimedRow
from ...values import ClaimRequest
from . import mysql, postgresql, sqlite
from .only_lane import Alone


class Statements(NamedTuple):
    """
    ``claim`` takes up to so many tickets of each lane, lane by lane until it is so many, for a
    request under a token. ``claim_alone`` takes tickets of the only open lane of its first queue,
    where it has no cap, there are no limits and no timer is due, and charges it; it returns rows
    as ``claim`` does, and the lane as it was. ``aware`` makes an aware time of one in these
    rows.
    """

    claim: Callable[[Session, Mapping[int, int], int, ClaimRequest, int], list[ClaimedRow]]
    claim_alone: Callable[[Session, ClaimRequest, int], Alone]
    aware: Callable[[Any], datetime]


BY_VENDOR = {
    "sqlite": Statements(sqlite.claim, sqlite.claim_alone, sqlite.aware),
    "postgresql": Statements(postgresql.claim, postgresql.claim_alone, postgresql.aware),
    "mysql": Statements(mysql.claim, mysql.claim_alone, mysql.aware),
}
