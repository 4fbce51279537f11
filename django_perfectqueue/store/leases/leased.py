"""A row that was claimed, as a lease."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from ..arithmetic.fair_order import Pick
from ..values import Lease


def leased(
    row: Sequence[Any],
    pick: Pick,
    *,
    using: str,
    holder: int,
    token: int,
    moment: Callable[[Any], datetime] | None,
    capped: bool = False,
) -> Lease:
    task_id, attempt, lane, errors, crashes, _rank, run_at, _late = row[:8]
    queue, key, type_, user, payload, priority, created_at, time_limit, context, limits = row[8:]
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
        created_at if moment is None else moment(created_at),
        run_at if moment is None else moment(run_at),
        time_limit,
        context,
        capped,
        pick.finish_tag,
        pick.is_new,
        limits,
    )
