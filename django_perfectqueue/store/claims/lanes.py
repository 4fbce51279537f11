"""Read the lanes whose turn it is, as one transaction finds them, and choose among them."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ..arithmetic.fair_order import (
    ANY,
    FIRST_COST,
    LANES_PROBED,
    SLOTS,
    OpenLane,
    Pick,
    expected,
    is_gated,
    lanes_read,
    next_picks,
)
from ..database.dialects.base import Row, numbers
from ..database.session import Session
from ..lanes.accounts import Accounts
from ..values import ClaimRequest

LANES_READ_AT_LEAST = 8

COLUMNS = '"id", "virtual_time", "cost", "weight", "max_running", "running", "policy"'
ANY_LIMITS = """(
    (SELECT 1 FROM "perfectqueue_limit" LIMIT 1) IS NOT NULL
    OR (SELECT 1 FROM "perfectqueue_hold" LIMIT 1) IS NOT NULL
)"""
TIMERS_DUE = """(
    SELECT 1 FROM "perfectqueue_ticket" WHERE "timer_at" <= {now} ORDER BY "timer_at" LIMIT 1
) IS NOT NULL"""
HAS_TASK = """(
    SELECT "ticket"."task_id" FROM "perfectqueue_ticket" AS "ticket"
    WHERE "ticket"."state" = 0 AND {in_lane} ORDER BY "ticket"."rank" LIMIT 1
) IS NOT NULL"""
NEXT = f"""
SELECT {COLUMNS}{{more}} FROM "perfectqueue_lane"
WHERE "queue" = %(queue)s AND "held_by" = 0 AND "ready" = TRUE AND "id" NOT IN ({{passed}})
ORDER BY "turn", "since" LIMIT %(limit)s
"""
LOCKED = f"""
SELECT {COLUMNS} FROM "perfectqueue_lane" WHERE "id" IN ({{lanes}}) ORDER BY "id"
"""


class LaneRow(NamedTuple):
    """The columns of a lane that decide whose turn it is."""

    id: int
    virtual_time: float
    cost: float
    weight: float
    max_running: int | None
    running: int
    policy: int


def named(rows: Iterable[Row]) -> list[LaneRow]:
    """Return rows as a cursor gives them by the names of their columns; any others are left out."""
    return [tuple.__new__(LaneRow, row[: len(LaneRow._fields)]) for row in rows]


class Choice(NamedTuple):
    """
    Whom to serve, of which lanes that was chosen, and which of these have a cap or limits.

    ``alone`` is the only lane that is open: it is not put to sleep.
    """

    picks: list[Pick]
    lanes: Collection[int]
    capped: Collection[int]
    alone: bool = False


@dataclass(slots=True)
class Lanes:
    """
    The open lanes in the order of their turns.

    ``passed`` are those that are read no more: they have been served as far as they can
    be. ``timers_first`` means that due timers come before any task, where the look is to be
    ``after_timers``, and ``contended`` that others held or filled lanes that were passed over.
    ``limited`` is, once it has looked, whether there are any limits, or lanes of limits
    that are gone: then limits have to be asked before any lane is locked.
    """

    db: Session
    accounts: Accounts
    request: ClaimRequest
    after_timers: bool
    durable: bool
    passed: set[int] = field(default_factory=set)
    locked: bool = False
    timers_due: bool = False
    timers_first: bool = False
    contended: bool = False
    limited: bool | None = None

    def choose(self, queue: str, count: int, *, probe: bool) -> Choice | None:
        """
        Return whom to serve next; None where no lane is left, timers come first, or there are
        limits. With ``probe`` first look which lanes have a task.
        """
        lanes = self.next_with_tasks(queue, count) if probe else self.next(queue, count)
        if not lanes:
            return None
        request, usual = self.request, self.usual_cost(queue, lanes)
        picks = next_picks(lanes, count, holder=request.holder, usual=usual, serial=request.serial)
        ids = {lane.id for lane in lanes}
        capped = {lane.id for lane in lanes if lane.room is not None}
        return Choice(picks, ids, capped, alone=len(lanes) == 1 and not self.passed)

    def usual_cost(self, queue: str, lanes: Iterable[OpenLane]) -> float:
        """
        Return what a task is expected to cost in a lane that was never measured.

        What this holder has measured in others that were new, or else what has just been
        measured, or what one of the first lanes that were.
        """
        new = expected(self.request.using, queue, self.request.holder)
        known = (lane.cost for lane in lanes if not lane.is_new)
        return new or self.accounts.mean() or next(known, FIRST_COST)

    def next(self, queue: str, count: int) -> list[OpenLane]:
        """
        Return the lanes that are next; none if timers come first, or there are limits.

        The first look finds that as well, and lets the transaction commit asynchronously
        unless it is to be ``durable``.
        """
        if not self.passed:
            count = lanes_read(count, self.accounts.mean(), len(self.accounts.lanes))
        more = "" if self.durable else self.db.dialect.asynchronous_commit
        first = self.limited is None
        around = f", {ANY_LIMITS}, {TIMERS_DUE}" if first else ""
        rows = self.read(queue, max(count, LANES_READ_AT_LEAST), more + around)
        if first:
            self.note(rows[0] if rows else self.read_one(around))
            if self.timers_first:
                return []
        if self.limited or any(is_gated(row[0]) for row in rows):
            self.limited = self.accounts.gated = True
            return []
        return self.with_room(self.current(named(rows)))

    def next_with_tasks(self, queue: str, count: int) -> list[OpenLane]:
        """
        Read many lanes at once, put the empty ones to sleep, and return the next others.

        Lanes that ran dry just as a batch was full are still awake, one for each user.
        """
        in_lane = self.db.dialect.in_lane.replace("{lane}", '"perfectqueue_lane"."id"')
        rows = self.read(queue, LANES_PROBED, f", {HAS_TASK.replace('{in_lane}', in_lane)}")
        empty = {row[0] for row in rows if not row[-1]}
        full = [row for row in rows if row[-1]][: max(count, LANES_READ_AT_LEAST)]
        lanes = self.current(named([row for row in rows if not row[-1]] + full))
        for lane in empty.intersection(lane.id for lane in lanes):
            self.accounts.found_short(lane)
        self.passed |= empty
        return self.with_room([lane for lane in lanes if lane.id not in empty])

    def read(self, queue: str, count: int, more: str) -> list[Row]:
        """Read lanes that were not passed, each with what else is asked."""
        passed = numbers(sorted(self.passed)) if self.passed else "0"
        statement = NEXT.replace("{more}", more).replace("{passed}", passed)
        values, now = {"queue": queue, "limit": count}, self.request.now
        rows: list[Row] = self.db.execute(statement, values, now=now).fetchall()
        return rows

    def read_one(self, around: str) -> Row:
        done = self.db.execute(f"SELECT 1{around}", now=self.request.now)
        row: Row = done.fetchone()
        return row

    def note(self, row: Row) -> None:
        """Keep whether there are limits, and timers that are due."""
        self.limited, self.timers_due = bool(row[-2]), bool(row[-1])
        self.timers_first = self.after_timers and self.timers_due
        self.accounts.gated = self.limited

    def current(self, rows: list[LaneRow]) -> list[LaneRow]:
        """Return the rows as they are, locked where a cap asks for it; pass over the others."""
        if not (self.locked or any(row.max_running is not None for row in rows)):
            return rows
        order = {row.id: place for place, row in enumerate(rows)}
        locked = sorted(self.lock(list(order)), key=lambda row: order[row.id])
        if missed := order.keys() - {row.id for row in locked}:
            self.contended = True
            self.passed |= missed
        return locked

    def lock(self, lanes: list[int]) -> list[LaneRow]:
        """
        Read lanes that no one else can change until this transaction ends.

        Those that it charges anyway are locked with them, in the order of their ids. Once
        it holds some it waits for no more, but passes over what others hold.
        """
        chosen = set(lanes)
        every = sorted(chosen | set(self.accounts.own(self.db)))
        clause = self.db.dialect.skip_clause if self.locked else self.db.dialect.lock_clause
        statement = LOCKED.replace("{lanes}", numbers(every)) + clause
        rows = named(self.db.execute(statement).fetchall())
        self.locked = True
        return [row for row in rows if row.id in chosen]

    def with_room(self, rows: Sequence[LaneRow]) -> list[OpenLane]:
        """Return lanes as the arithmetic takes them, without those that others have filled."""
        lanes = []
        request, weights = self.request, sum([row.weight for row in rows])
        own = self.accounts.own(self.db)
        for lane, virtual_time, cost, weight, max_running, running, policy in rows:
            begun = own[lane].running if lane in own else 0
            room = None if max_running is None else max_running - running - begun
            if room is not None and room <= 0:
                # Not contended where it is full of what this transaction has taken itself.
                self.contended = self.contended or room + begun <= 0
                self.passed.add(lane)
                continue
            part = request.processors * weight / weights if policy != SLOTS else 0.0
            share = math.ceil(round(part, 6))
            in_use = request.overrun.get(lane, running + begun if cost < 0 else -ANY)
            lanes.append(
                OpenLane(
                    id=lane,
                    virtual_time=virtual_time,
                    cost=cost,
                    weight=weight,
                    room=room,
                    running=running + begun,
                    policy=policy,
                    share=share,
                    spare=max(0, share - in_use) if share else ANY,
                )
            )
        return lanes
