"""Read who is next: the open lanes of a queue, as one transaction finds them."""

from __future__ import annotations

from datetime import datetime

from django.db.backends.utils import CursorWrapper as Cursor

from ..arithmetic.fair_order import LANES_PROBED, OpenLane, is_gated, lanes_read
from ..database.dialects import Dialect
from ..database.dialects.base import Row, numbers
from ..lanes.accounts import Accounts

LANES_READ_AT_LEAST = 8
LANE = 7

ANY_LIMITS = """(
    (SELECT 1 FROM "perfectqueue_limit" LIMIT 1) IS NOT NULL
    OR (SELECT 1 FROM "perfectqueue_hold" LIMIT 1) IS NOT NULL
)"""
RINGS = """(
    SELECT 1 FROM "perfectqueue_ticket" WHERE "alarm_at" <= {now} ORDER BY "alarm_at" LIMIT 1
) IS NOT NULL"""
OPEN = """
SELECT "id", "virtual_time", "cost", "weight", "max_running", "running", "policy"{more}
FROM "perfectqueue_lane"
WHERE "queue" = %(queue)s AND "held" = 0 AND "open" = TRUE AND "id" NOT IN ({passed})
ORDER BY "turn", "since" LIMIT %(limit)s
"""
PROBE = """
SELECT "id", "virtual_time", "cost", "weight", "max_running", "running", "policy", (
    SELECT "ticket"."task_id" FROM "perfectqueue_ticket" AS "ticket"
    WHERE "ticket"."state" = 0 AND {in_lane} ORDER BY "ticket"."rank" LIMIT 1
)
FROM "perfectqueue_lane"
WHERE "queue" = %(queue)s AND "held" = 0 AND "open" = TRUE AND "id" NOT IN ({passed})
ORDER BY "turn", "since" LIMIT %(limit)s
"""
LOCKED = """
SELECT "id", "virtual_time", "cost", "weight", "max_running", "running", "policy"
FROM "perfectqueue_lane" WHERE "id" IN ({lanes}) ORDER BY "id"
"""


class Lineup:
    """
    The open lanes in the order of their turns.

    ``passed`` are those that are read no more: they have been served as far as they can
    be. ``ringing`` means that due timers come first, where the look is to be
    ``after_timers``, and ``contended`` that others held or filled lanes that were passed over.
    ``limited`` is, once it has looked, whether there are any limits, or lanes of limits
    that are gone: then limits have to be asked before any lane is locked.
    """

    def __init__(
        self,
        cursor: Cursor,
        dialect: Dialect,
        accounts: Accounts,
        *,
        after_timers: bool,
        lasting: bool,
        now: datetime | None,
    ) -> None:
        self.cursor = cursor
        self.dialect = dialect
        self.accounts = accounts
        self.after_timers = after_timers
        self.lasting = lasting
        self.now = now
        self.passed: set[int] = set()
        self.locked = False
        self.timers_due = False
        self.ringing = False
        self.contended = False
        self.limited: bool | None = None

    def next(self, queue: str, limit: int) -> list[OpenLane]:
        """
        Return the lanes that are next; none if an alarm rings, or there are limits.

        The first look finds that as well, and lets the transaction commit asynchronously
        unless it is to be ``lasting``.
        """
        lanes = limit
        if not self.passed:
            lanes = lanes_read(limit, self.accounts.mean(), len(self.accounts.lanes))
        more = "" if self.lasting else self.dialect.asynchronous_commit
        around = f", {ANY_LIMITS}, {RINGS}"
        if self.limited is None:
            more += around
        statement = self.beyond_passed(OPEN).replace("{more}", more)
        parameters = {"queue": queue, "limit": max(lanes, LANES_READ_AT_LEAST)}
        rows = self.dialect.execute(self.cursor, statement, parameters, now=self.now).fetchall()
        if self.limited is None:
            seen = rows[0] if rows else self.seen(around)
            self.limited, self.timers_due = bool(seen[-2]), bool(seen[-1])
            self.ringing = self.after_timers and self.timers_due
            self.accounts.gated = self.limited
            if self.ringing:
                return []
        if self.limited or any(is_gated(row[0]) for row in rows):
            self.limited = self.accounts.gated = True
            return []
        return self.with_room(self.current([row[:LANE] for row in rows]))

    def next_with_tasks(self, queue: str, limit: int) -> list[OpenLane]:
        """
        Read many lanes at once, put the empty ones to sleep, and return the next others.

        Lanes that ran dry just as a batch was full are still awake, one for each user.
        """
        in_lane = self.dialect.in_lane.replace("{lane}", '"perfectqueue_lane"."id"')
        statement = self.beyond_passed(PROBE).replace("{in_lane}", in_lane)
        parameters = {"queue": queue, "limit": LANES_PROBED}
        found = self.dialect.execute(self.cursor, statement, parameters).fetchall()
        empty = {row[0] for row in found if row[LANE] is None}
        full = [row[:LANE] for row in found if row[0] not in empty][
            : max(limit, LANES_READ_AT_LEAST)
        ]
        rows = self.current([row[:LANE] for row in found if row[0] in empty] + full)
        for row in rows:
            if row[0] in empty:
                self.accounts.found_short(row[0])
        self.passed |= empty
        return self.with_room([row for row in rows if row[0] not in empty])

    def beyond_passed(self, statement: str) -> str:
        return statement.replace("{passed}", numbers(sorted(self.passed)) if self.passed else "0")

    def seen(self, around: str) -> Row:
        row: Row = self.dialect.execute(self.cursor, f"SELECT 1{around}", now=self.now).fetchone()
        return row

    def current(self, rows: list[Row]) -> list[Row]:
        """Return the rows as they are, locked where a cap asks for it; pass over the others."""
        if not (self.locked or any(row[4] is not None for row in rows)):
            return rows
        order = {row[0]: place for place, row in enumerate(rows)}
        locked = sorted(self.lock(list(order)), key=lambda row: order[row[0]])
        if missed := order.keys() - {row[0] for row in locked}:
            self.contended = True
            self.passed |= missed
        return locked

    def lock(self, lanes: list[int]) -> list[Row]:
        """
        Read lanes that no one else can change until this transaction ends.

        Those that it charges anyway are locked with them, in the order of their ids. Once
        it holds some it waits for no more, but passes over what others hold.
        """
        chosen = set(lanes)
        every = sorted(chosen | set(self.accounts.own(self.cursor, self.dialect)))
        clause = self.dialect.skip_clause() if self.locked else self.dialect.lock_clause()
        statement = LOCKED.replace("{lanes}", numbers(every)) + clause
        rows = self.dialect.execute(self.cursor, statement).fetchall()
        self.locked = True
        return [row for row in rows if row[0] in chosen]

    def with_room(self, rows: list[Row]) -> list[OpenLane]:
        """Return lanes as the arithmetic takes them, without those that others have filled."""
        lanes = []
        own = self.accounts.own(self.cursor, self.dialect)
        for lane, virtual_time, cost, weight, max_running, running, policy in rows:
            begun = own[lane].running if lane in own else 0
            if max_running is not None and 0 < max_running - running <= begun:
                self.passed.add(lane)
                continue
            running += begun
            room = None if max_running is None else max_running - running
            if room is not None and room <= 0:
                self.contended = True
                self.passed.add(lane)
                continue
            lanes.append(
                OpenLane(
                    id=lane,
                    virtual_time=virtual_time,
                    cost=cost,
                    weight=weight,
                    room=room,
                    running=running,
                    policy=policy,
                )
            )
        return lanes
