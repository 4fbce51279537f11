"""See from afar whether there is something to take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from ..arithmetic.fair_order import LANES_PROBED
from ..database.transaction import reading
from ..limits.holds import NEXT

LOOK = """
SELECT {now}, (
    SELECT {timer_at} FROM "perfectqueue_ticket"
    WHERE "timer_at" IS NOT NULL ORDER BY "perfectqueue_ticket"."timer_at" LIMIT 1
), (
    SELECT {due_at} FROM "perfectqueue_schedule"
    WHERE "due_at" IS NOT NULL ORDER BY "perfectqueue_schedule"."due_at" LIMIT 1
), EXISTS (
    SELECT 1 FROM (
        SELECT "id", "has_open" FROM "perfectqueue_account"
        WHERE "queue" IN ({queues}) AND "ready" = TRUE LIMIT %(most)s
    ) AS "lane"
    WHERE "has_open" OR EXISTS (
        SELECT 1 FROM "perfectqueue_ticket" AS "ticket"
        WHERE "ticket"."state" = 0 AND {in_lane}
    )
), EXISTS (
    SELECT 1 FROM "perfectqueue_account"
    WHERE "queue" IN ({queues}) AND "ready" = TRUE LIMIT 1 OFFSET %(most)s
){opens_at}
"""


@dataclass(frozen=True, slots=True)
class Outlook:
    """
    Whether an acquire is likely to find something, and in how many seconds the clock will
    have something to move; None when there is nothing for it. ``tick`` is in how many seconds
    a schedule is due, None where there is none: see fire_schedules().
    """

    due: bool
    wait: float | None
    tick: float | None = None

    @property
    def ticks_due(self) -> bool:
        return self.tick is not None and self.tick <= 0


def look(queues: Sequence[str], *, using: str, now: datetime | None = None) -> Outlook:
    """
    Return whether something is due in these queues, in one statement that locks nothing.

    So many open lanes that not all can be probed count as something.
    """
    names = {f"queue{number}": queue for number, queue in enumerate(queues)}
    with reading(using) as db:
        statement = LOOK.replace("{in_lane}", db.dialect.in_lane.replace("{lane}", '"lane"."id"'))
        statement = statement.replace("{queues}", ", ".join(f"%({name})s" for name in names))
        statement = statement.replace("{timer_at}", db.dialect.readable('"timer_at"'))
        statement = statement.replace("{due_at}", db.dialect.readable('"due_at"'))
        opens_at = (db.dialect.readable(NEXT.replace("{queue}", name)) for name in names)
        statement = statement.replace("{opens_at}", "".join(f", {at}" for at in opens_at))
        values = {**names, "most": LANES_PROBED}
        row = db.execute(statement, values, now=now).fetchone()
    moment, timer, tick, waiting, many, *opens = row

    def seconds_until(*times: datetime | None) -> float | None:
        clock = db.dialect.moment(moment)
        waits = ((db.dialect.moment(at) - clock).total_seconds() for at in times if at is not None)
        return min(waits, default=None)

    soonest, next_tick = seconds_until(timer, *opens), seconds_until(tick)
    due = bool(waiting or many or (soonest is not None and soonest <= 0))
    ahead = (wait for wait in (soonest, next_tick) if wait is not None and wait > 0)
    return Outlook(due, min(ahead, default=None), next_tick)
