"""Read the users whose turn it is, as one transaction finds them, and choose among them."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ..arithmetic.fair_order import (
    ANY,
    FIRST_COST,
    LANES_PROBED,
    LARGE_QUANTUM,
    QUANTUM,
    SLOTS,
    Pick,
    UserLanes,
    expected,
    lanes_read,
    next_picks,
)
from ..database.dialects.base import Row, numbers
from ..database.transaction import Session
from ..lanes.accounts import Accounts
from ..upkeep.timers import TIMER_DUE, note_look, since
from ..values import ClaimRequest, Costs, Watermarks
from .limited import COLUMNS, AccountRow, Limits, named

LANES_READ_AT_LEAST = 8
# How many times what an account has running lies before the first turn that is read.
AHEAD = 2.0
NO_VALUES: Mapping[str, str] = {}

AROUND = f""", {TIMER_DUE} IS NOT NULL, (SELECT 1 FROM "perfectqueue_limit" LIMIT 1) IS NOT NULL, (
    SELECT 1 FROM "perfectqueue_limit" WHERE "scope" > 'name' ORDER BY "scope" LIMIT 1
) IS NOT NULL, """
HOLD_DUE = """(
    SELECT 1 FROM "perfectqueue_hold" WHERE "queue" = %({name})s AND "opens_at" <= {now}
    ORDER BY "opens_at" LIMIT 1
) IS NOT NULL"""
OF_COSTS = '"cost" > %(above)s AND "cost" < %(below)s'
HAS_TASK = """(
    SELECT "ticket"."task_id" FROM "perfectqueue_ticket" AS "ticket"
    WHERE "ticket"."state" = 0 AND {in_lane} ORDER BY "ticket"."rank" LIMIT 1
) IS NOT NULL"""
NEXT = f"""
SELECT {COLUMNS}{{more}} FROM "perfectqueue_account" AS "own"
WHERE "queue" = %(queue)s AND "ready" = TRUE{{from_turn}} AND "id" NOT IN ({{closed}})
ORDER BY "turn", "since" LIMIT %(limit)s
"""
# The one that was served longest ago is first: see Lanes.kept_for().
NEXT_SHORT = NEXT.replace('"turn", "since"', '"since"').replace(
    '"ready" = TRUE', f'"ready" = TRUE AND {OF_COSTS}'
)
LOCKED = f"""
SELECT {COLUMNS} FROM "perfectqueue_account" AS "own" WHERE "id" IN ({{accounts}}) ORDER BY "id"
"""


@dataclass(slots=True)
class Lanes:
    """
    The lanes of users, in the order of their turns.

    ``ahead`` are the users of each queue as they were read, and ``cut`` are the queues that may
    have more. ``users`` are those of the last choice. Of the queue that is served, ``passed`` are
    the lanes that are served no more, as they have been served as far as they can be, and
    ``closed`` the accounts of which no lane is left; ``again`` is set once it was chosen from.
    ``timers_first`` means that due timers come before any task, where the look is to be
    ``after_timers``, and ``contended`` that others held or filled accounts that were passed over.
    ``moved`` counts tasks that stood before the wrong limits, and ``stopped`` means that the
    search was given up with lanes left.
    ``limits`` are there once it has looked and found some: they are locked before any account is.
    """

    db: Session
    accounts: Accounts
    request: ClaimRequest
    after_timers: bool
    wide: bool
    ahead: dict[str, list[AccountRow]] = field(default_factory=dict)
    cut: set[str] = field(default_factory=set)
    passed: set[int] = field(default_factory=set)
    closed: set[int] = field(default_factory=set)
    again: bool = False
    users: list[UserLanes] = field(default_factory=list)
    locked: bool = False
    looked: bool = False
    timers_due: bool = False
    timers_first: bool = False
    contended: bool = False
    moved: int = 0
    stopped: bool = False
    limits: Limits | None = None

    def begin(self) -> None:
        """Begin with another queue."""
        self.again = False
        self.passed.clear()
        self.closed.clear()

    @property
    def passed_over(self) -> int:
        return len(self.passed) + len(self.closed)

    @property
    def alone(self) -> bool:
        """Whether the only lane that is open was chosen."""
        return len(self.users) == 1 and not (self.limits or self.closed)

    def pass_over(self, lanes: Collection[int]) -> set[int]:
        """
        Serve these lanes no more, nor those of the last choice that have turned out to be empty;
        return the latter.
        """
        empty = self.accounts.short
        empty = empty and empty.intersection([lane for user in self.users for lane in user.lanes])
        if lanes or empty:
            self.passed.update(lanes, empty)
            done = self.passed.issuperset
            self.closed.update([user.id for user in self.users if done(user.lanes)])
        return empty

    def choose(self, queue: str, count: int, *, probe: bool) -> list[Pick]:
        """
        Return whom to serve next; nobody where no lane is left, or timers come first. With
        ``probe`` first look which lanes have a task.
        """
        self.users = users = self.read_users(queue, count, probe=probe)
        if not users:
            return []
        rooms: dict[str, int] = {}
        if self.limits:
            self.limits.read_tickets(users, count)
            self.pass_over(())
            rooms = self.limits.rooms()
            if self.again:
                self.closed.update([user.id for user in users if not user.next_head(rooms)])
        self.again = True
        request, usual = self.request, self.usual_cost(queue, users)
        return next_picks(
            users,
            count,
            holder=request.holder,
            usual=usual,
            quantum=LARGE_QUANTUM if request.marks.turns else QUANTUM,
            serial=request.serial,
            rooms=rooms,
        )

    def usual_cost(self, queue: str, users: Iterable[UserLanes]) -> float:
        """
        Return what a task is expected to cost for a user that was never measured.

        What this holder has measured of others that were new, or else what has just been
        measured, or what one of the first that were.
        """
        new = expected(self.request.using, queue, self.request.holder)
        known = (user.cost for user in users if not user.is_new)
        return new or self.accounts.mean() or next(known, FIRST_COST)

    def read_users(self, queue: str, count: int, *, probe: bool) -> list[UserLanes]:
        """
        Return the users that are next, each with its lanes; none if timers come first.

        Limits are asked where there are any, or lanes behind limits that are gone.
        """
        if probe and self.limits is None:
            return self.with_room(self.read_with_tasks(queue, count))
        if queue not in self.ahead or (self.again and queue in self.cut):
            self.read_ahead(queue, count)
        if self.timers_first:
            return []
        if self.limits is None and [row for row in self.ahead[queue] if row.has_open]:
            self.enter_limits()
        rows = self.limits.rows(queue) if self.limits else self.ahead[queue]
        return self.with_room(self.current([row for row in rows if row.id not in self.closed]))

    def read_ahead(self, queue: str, count: int) -> None:
        """
        Read the users of a queue that are next. The first look finds whether there are limits
        and due timers.
        """
        if not self.closed:
            count = lanes_read(count, self.accounts.mean(), len(self.accounts.lanes))
        count = LANES_PROBED if self.wide else max(count, LANES_READ_AT_LEAST)
        more, first, names = "", not self.looked, NO_VALUES
        if first:
            self.looked = True
            names = {f"q{number}": name for number, name in enumerate(self.request.queues)}
            around = AROUND + " OR ".join([HOLD_DUE.replace("{name}", name) for name in names])
            around = around.replace("{since}", since(self.db, self.request.marks))
            more = around
        began = time.monotonic()
        found = self.read(queue, count, more, names)
        self.ahead[queue] = named(found)
        (self.cut.add if len(found) >= count else self.cut.discard)(queue)
        if first:
            [row] = found[:1] or self.db.rows(f"SELECT 1{around}", names)
            *_columns, self.timers_due, any_, scoped, due = row
            self.timers_first = bool(self.after_timers and self.timers_due)
            note_look(self.db, self.request.marks, began, due=self.timers_due)
            if (any_ or due) and not self.timers_first:
                self.enter_limits(scoped=bool(scoped), due=bool(due))

    def enter_limits(self, *, scoped: bool = False, due: bool = False) -> None:
        # Whom a limit held back may be far behind the first turn.
        self.request.marks.turns.clear()
        count = LANES_PROBED if self.wide else max(self.request.limit, LANES_READ_AT_LEAST)
        self.limits = Limits(self, count, scoped)
        self.limits.enter(due=due)

    def read_with_tasks(self, queue: str, count: int) -> list[AccountRow]:
        """
        Read many users at once, put their empty lanes to sleep, and return the next others.

        Lanes that ran dry just as a batch was full are still awake, one for each user.
        """
        in_lane = self.db.dialect.in_lane.replace("{lane}", '"own"."id"')
        rows = self.read(queue, LANES_PROBED, f", {HAS_TASK.replace('{in_lane}', in_lane)}")
        empty = {row[0] for row in rows if not row[-1]}
        full = [row for row in rows if row[-1]][: max(count, LANES_READ_AT_LEAST)]
        current = self.current(named([row for row in rows if not row[-1]] + full))
        for lane in empty.intersection(row.id for row in current):
            self.accounts.found_short(lane)
        self.closed |= empty
        return [row for row in current if row.id not in empty]

    def read(
        self, queue: str, count: int, more: str, values: Mapping[str, str] = NO_VALUES
    ) -> list[Row]:
        """Read accounts that are not closed, each with what else is asked."""
        closed = numbers(sorted(self.closed)) if self.closed else "0"
        given = {"queue": queue, "limit": count, **values}
        statement = NEXT
        if self.request.costs is not None:
            statement = NEXT_SHORT
            given["above"], given["below"] = self.request.costs
        marks, keeps = self.request.marks, self.db.dialect.keeps_dead_entries and statement is NEXT
        statement = statement.replace("{from_turn}", marks.from_turn(queue) if keeps else "")
        statement = statement.replace("{more}", more).replace("{closed}", closed)
        began = time.monotonic()
        rows: list[Row] = self.db.execute(statement, given).fetchall()
        if keeps and rows and not self.closed and marks.users_read(queue, began):
            note_first_turn(marks, queue, named(rows))
        return rows

    def current(self, rows: list[AccountRow]) -> list[AccountRow]:
        """Return the rows as they are, locked where a cap asks for it; pass over the others."""
        if not (self.locked or [row for row in rows if row.max_running is not None]):
            return rows
        order = {row.id: place for place, row in enumerate(rows)}
        locked = sorted(self.lock(list(order)), key=lambda row: order[row.id])
        if missed := order.keys() - {row.id for row in locked}:
            self.contended = True
            self.closed |= missed
        return locked

    def lock(self, accounts: list[int]) -> list[AccountRow]:
        """
        Read accounts that no one else can change until this transaction ends.

        Those that it charges anyway are locked with them, in the order of their ids. Once
        it holds some it waits for no more, but passes over what others hold.
        """
        chosen = set(accounts)
        every = sorted(chosen | set(self.accounts.own(self.db)))
        clause = self.db.dialect.skip_clause if self.locked else self.db.dialect.lock_clause
        rows = named(self.db.rows(LOCKED + clause, accounts=every))
        self.locked = True
        return [row for row in rows if row.id in chosen]

    def kept_for(self, rows: list[AccountRow], costs: Costs) -> list[AccountRow]:
        """
        Return the users for whom the holder is kept, to be served by slots and in turn.

        By time, those that ran here while others could not would come last for as long; and
        the clock would go on faster than for the others.
        """
        above, below = costs
        fit = [row for row in rows if above < row.cost < below]
        fit = [row._replace(policy=SLOTS) for row in fit if row.id not in self.request.overrun]
        self.closed |= {row.id for row in rows} - {row.id for row in fit}
        return fit

    def with_room(self, rows: list[AccountRow]) -> list[UserLanes]:
        """Return users as the arithmetic takes them, without those that have no room."""
        users = []
        if self.request.costs is not None:
            rows = self.kept_for(rows, self.request.costs)
        heads = self.limits.heads(rows) if self.limits else {}
        if self.limits:
            self.closed.update([row.id for row in rows if row.id not in heads])
            rows = [row for row in rows if row.id in heads]
        request, weights = self.request, sum([row.weight for row in rows])
        own = self.accounts.own(self.db)
        for id_, virtual_time, cost, weight, max_running, running, policy, *_rest in rows:
            begun = own[id_].running if id_ in own else 0
            room = None if max_running is None else max_running - running - begun
            if room is not None and room <= 0:
                # Not contended where it is full of what this transaction has taken itself.
                self.contended = self.contended or room + begun <= 0
                self.closed.add(id_)
                continue
            part = request.processors * weight / weights if policy != SLOTS else 0.0
            share = math.ceil(round(part, 6))
            in_use = request.overrun.get(id_, running + begun if cost < 0 else -ANY)
            users.append(
                UserLanes(
                    id=id_,
                    virtual_time=virtual_time,
                    cost=cost,
                    weight=weight,
                    room=room,
                    running=running + begun,
                    policy=policy,
                    share=share,
                    spare=max(0, share - in_use) if share else ANY,
                    heads=heads.get(id_, ()),
                )
            )
        return users


def note_first_turn(marks: Watermarks, queue: str, rows: Sequence[AccountRow]) -> None:
    """Note from which turn on the users of a queue are to be read."""
    if not [row for row in rows if row.policy == SLOTS]:
        # Who comes anew takes its place before what the first one has running.
        ahead = [AHEAD * (row.running + 1) * abs(row.cost) / row.weight for row in rows]
        places = zip(rows, ahead, strict=True)
        marks.turns[queue] = min([row.virtual_time - seconds for row, seconds in places])
