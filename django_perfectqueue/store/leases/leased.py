"""What a claim reads of a ticket and its task, and the lease that comes of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from operator import attrgetter
from typing import Any, NamedTuple

from ..arithmetic.fair_order import Pick
from ..database.dialects.base import Row
from ..values import Lease

TICKET = (
    '"ticket"."task_id", "ticket"."attempt", "ticket"."lane", "ticket"."errors",'
    ' "ticket"."crashes", "ticket"."rank"'
)
TASK = (
    '"task"."queue", "task"."key", "task"."type", "task"."user", "task"."data",'
    ' "task"."priority", "task"."created_at", "task"."time_limit",'
    ' "task"."context", "task"."limits"'
)


class Claimant(NamedTuple):
    """Who takes tasks, under which token, and for how many seconds."""

    holder: int
    token: int
    seconds: float
    now: datetime | None


class ClaimedRow(NamedTuple):
    """The columns of TICKET, when it is due, whether it has expired, and those of TASK."""

    task_id: int
    attempt: int
    lane: int
    errors: int
    crashes: int
    rank: int
    run_at: Any
    late: bool
    queue: str
    key: str
    type: str
    user: str
    payload: str
    priority: int
    created_at: Any
    time_limit: float | None
    context: str | None
    limits: str


in_line = attrgetter("rank", "run_at", "task_id")
"""The order in which the tickets of a lane are taken, as a key of claimed rows."""


def named(rows: Iterable[Row]) -> list[ClaimedRow]:
    """Return rows as a cursor gives them by the names of their columns."""
    # Not by _make(), which would be one more call for each task.
    return [tuple.__new__(ClaimedRow, row) for row in rows]


def leased(
    row: ClaimedRow,
    pick: Pick,
    *,
    using: str,
    holder: int,
    token: int,
    moment: Callable[[Any], datetime],
    capped: bool = False,
) -> Lease:
    """Return the lease; ``moment`` makes the row's times aware."""
    task_id, attempt, lane, errors, crashes, _rank, run_at, _late, *task = row
    queue, key, type_, user, payload, priority, created_at, time_limit, context, limits = task
    return Lease(
        using,
        task_id,
        attempt,
        holder,
        token,
        lane,
        pick.cost,
        errors,
        crashes,
        queue,
        key,
        type_,
        user,
        payload,
        priority,
        moment(created_at),
        moment(run_at),
        time_limit,
        context,
        capped,
        pick.finish_tag,
        pick.is_new,
        limits,
        pick.share,
    )
