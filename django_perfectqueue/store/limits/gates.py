"""Which gates are open: what stands behind limits, and what these let start."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from ..arithmetic.rate_limit import Allowance
from ..database.dialects import Dialect
from ..database.dialects.base import numbers
from .meters import allowances

ANY_LIMITS = """(
    (SELECT 1 FROM "perfectqueue_gate" LIMIT 1) IS NOT NULL
    OR (SELECT 1 FROM "perfectqueue_limit" LIMIT 1) IS NOT NULL
)"""
OPEN_GATES = """
SELECT "gate"."id", "gate"."queue", "gate"."keys" FROM "perfectqueue_gate" AS "gate"
WHERE "gate"."queue" IN ({queues}) AND (
    SELECT 1 FROM "perfectqueue_lane" AS "lane"
    WHERE "lane"."queue" = "gate"."queue" AND "lane"."gate" = "gate"."id" AND "lane"."open" = TRUE
    {waiting} LIMIT 1
) IS NOT NULL
ORDER BY "gate"."id"
"""
ASKED = 100
HEADS = """
SELECT * FROM (
    SELECT "gate"."id", "gate"."keys", (
        SELECT "turn" FROM "perfectqueue_lane" AS "lane"
        WHERE "lane"."queue" = "gate"."queue" AND "lane"."gate" = "gate"."id"
            AND "lane"."open" = TRUE
        ORDER BY "turn" LIMIT 1
    ) AS "turn"
    FROM "perfectqueue_gate" AS "gate" WHERE "gate"."queue" = %(queue)s
) AS "head" WHERE "turn" IS NOT NULL
"""
KEYS = 'SELECT "id", "keys" FROM "perfectqueue_gate" WHERE "id" IN ({gates})'
WAITING = """AND (
    SELECT 1 FROM "perfectqueue_ticket" AS "ticket"
    WHERE "ticket"."state" = 0 AND {in_lane} LIMIT 1
) IS NOT NULL"""


def open_gates(
    cursor: Any, dialect: Dialect, queues: Sequence[str], *, waiting: bool = False
) -> list[tuple[int, str, list[str]]]:
    """
    Return the gates of these queues behind which a lane is open, each with its queue and
    keys; with ``waiting`` only those behind which a task waits indeed.
    """
    names = {f"queue{number}": queue for number, queue in enumerate(queues)}
    statement = OPEN_GATES.replace("{queues}", ", ".join(f"%({name})s" for name in names))
    in_lane = dialect.in_lane.replace("{lane}", '"lane"."id"')
    statement = statement.replace("{waiting}", WAITING if waiting else "")
    rows = dialect.execute(cursor, statement.replace("{in_lane}", in_lane), names).fetchall()
    return [(gate, queue, json.loads(keys)) for gate, queue, keys in rows]


def gates_in_turn(
    cursor: Any, dialect: Dialect, queue: str, count: int, now: datetime | None
) -> tuple[dict[int, list[str]], bool]:
    """
    Return so many gates of a queue that let a task start now, each with its keys: those with
    the lanes that are served next; and whether there are more.

    The first lanes of all, as many as ``count``, are behind these. What limits allow is
    asked for no more gates than that takes; nothing is locked.
    """
    rows = dialect.execute(cursor, HEADS, {"queue": queue}).fetchall()
    rows = sorted(rows, key=lambda row: (row[2], row[0]))
    found: dict[int, list[str]] = {}
    for first in range(0, len(rows), ASKED):
        some = {gate: json.loads(keys) for gate, keys, _turn in rows[first : first + ASKED]}
        for gate, holding in limits_of(cursor, dialect, some, now).items():
            if all(allowance.room for allowance in holding):
                found[gate] = some[gate]
                if len(found) == count:
                    return found, True
    return found, False


def serving_gates(cursor: Any, dialect: Dialect, queue: str) -> tuple[list[int], list[int]]:
    """
    Return the gates of a queue, none among them, whose limits let tasks start now; and
    those that let them start at all, now or once others have ended.
    """
    gates = {gate: keys for gate, _queue, keys in open_gates(cursor, dialect, [queue])}
    now, ever = [0], [0]
    for gate, holding in limits_of(cursor, dialect, gates, None).items():
        if all(allowance.room for allowance in holding):
            now.append(gate)
        if all(allowance.serves for allowance in holding):
            ever.append(gate)
    return now, ever


def shut_gates(
    cursor: Any, dialect: Dialect, gates: Collection[int], now: datetime | None
) -> set[int]:
    """Return which of these gates let no task start now."""
    if not gates:
        return set()
    statement = KEYS.replace("{gates}", numbers(sorted(gates)))
    rows = dialect.execute(cursor, statement).fetchall()
    known = {gate: json.loads(keys) for gate, keys in rows}
    holding = limits_of(cursor, dialect, known, now)
    return {gate for gate, some in holding.items() if not all(limit.room for limit in some)}


def limits_of(
    cursor: Any, dialect: Dialect, gates: Mapping[int, Sequence[str]], now: datetime | None
) -> dict[int, list[Allowance]]:
    """Return what each of these gates' limits allow, those that exist."""
    allowed = allowances(cursor, dialect, {key for keys in gates.values() for key in keys}, now)
    return {gate: [allowed[key] for key in keys if key in allowed] for gate, keys in gates.items()}


def waits_behind(
    cursor: Any, dialect: Dialect, queues: Sequence[str], now: datetime | None
) -> list[float]:
    """
    Return in how many seconds each gate lets a task start that waits behind it.

    A gate that opens only when a running task ends, or when someone acts, is left out.
    """
    found = open_gates(cursor, dialect, queues, waiting=True)
    gates = {gate: keys for gate, _queue, keys in found}
    waits = []
    for holding in limits_of(cursor, dialect, gates, now).values():
        times = [allowance.wait for allowance in holding if not allowance.room]
        if None not in times:
            waits.append(max((time for time in times if time is not None), default=0.0))
    return waits
