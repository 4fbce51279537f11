"""Take due tasks under a lease, in fair order."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any

from django.db import connections

from ..models import State
from .accounts import Accounts
from .alarms import BATCH, answer_alarms, answer_ringing, rouse
from .dialects import Dialect
from .dialects.base import Row, numbers
from .end import expire
from .finish import close
from .gates import ANY_LIMITS, Gatekeeper, waits_behind
from .lanes import LANES_PROBED, QUANTUM, OpenLane, Pick, counted, next_picks
from .parties import party_picks
from .transaction import REPEATS, Tries, is_callers, pauses, reading, recalled, repeated, unit
from .values import Completion, Lease

LANES_READ_AT_LEAST = 8
ROUNDS = 3
OTHERS = 6
ROUNDS_IN_VAIN = 20

RINGS = """(
    SELECT 1 FROM "perfectqueue_ticket" WHERE "alarm_at" <= {now} ORDER BY "alarm_at" LIMIT 1
) IS NOT NULL"""
OPEN = """
SELECT "id", "virtual_time", "cost", "weight", "max_running", "running"{more}
FROM "perfectqueue_lane"
WHERE "queue" = %(queue)s AND "gate" = 0 AND "open" = TRUE AND "id" NOT IN ({passed})
ORDER BY "turn" LIMIT %(limit)s
"""
LEFT = f"""
SELECT {ANY_LIMITS}, {RINGS},
    EXISTS (
        SELECT 1 FROM "perfectqueue_lane"
        WHERE "queue" IN ({{queues}}) AND "gate" = 0 AND "open" = TRUE AND EXISTS (
            SELECT 1 FROM "perfectqueue_ticket" AS "ticket"
            WHERE "ticket"."state" = 0 AND {{in_lane}}
        )
    )
"""
PROBE = """
SELECT "id", "virtual_time", "cost", "weight", "max_running", "running", (
    SELECT "ticket"."task_id" FROM "perfectqueue_ticket" AS "ticket"
    WHERE "ticket"."state" = 0 AND {in_lane} ORDER BY "ticket"."rank" LIMIT 1
)
FROM "perfectqueue_lane"
WHERE "queue" = %(queue)s AND "gate" = 0 AND "open" = TRUE AND "id" NOT IN ({passed})
ORDER BY "turn" LIMIT %(limit)s
"""
TAKEN = """
SELECT "task_id", "attempt", "holder", "state" FROM "perfectqueue_ticket"
WHERE "task_id" IN ({ids}) ORDER BY "task_id"
"""
LOCKED = """
SELECT "id", "virtual_time", "cost", "weight", "max_running", "running"
FROM "perfectqueue_lane" WHERE "id" IN ({lanes}) ORDER BY "id"
"""


def acquire(
    queues: Sequence[str],
    *,
    limit: int,
    alive_time: float,
    holder: int,
    using: str,
    now: datetime | None = None,
    finished: Sequence[Completion] = (),
    refused: list[Completion] | None = None,
    worker: str = "",
) -> list[Lease]:
    """
    Take up to ``limit`` due tasks, in the order in which they should run.

    Queues are tried in the order given. An empty answer means that nothing is due that
    may run. ``finished`` are tasks to be closed in the same transaction; those of them
    that finish() would have refused are added to ``refused``.
    """
    terms: dict[str, Any] = {
        "limit": limit,
        "alive_time": alive_time,
        "holder": holder,
        "using": using,
        "now": now,
    }
    haul = take(queues, finished=finished, worker=worker, heed=True, **terms)
    if refused is not None:
        refused += haul.refused
    more = haul.ringing
    if more:
        more = answer_ringing(using=using, now=now)
        haul = take(queues, **terms)
    leases = press_on(queues, haul, more=more, **terms)
    return leases or take_when_quiet(queues, **terms)


def press_on(
    queues: Sequence[str],
    haul: Haul,
    *,
    more: bool,
    using: str,
    now: datetime | None,
    **terms: Any,
) -> list[Lease]:
    """Take again while nothing was taken and something has been cleared from the way."""
    contended, roused = 0, BATCH
    while not haul.leases:
        if haul.contended and contended < REPEATS:
            contended += 1
        elif more or haul.ringing:
            more = answer_alarms(using=using, now=now)
        elif not haul.advanced and (roused < BATCH or not (roused := rouse(using=using))):
            break
        haul = take(queues, using=using, now=now, **terms)
    return haul.leases


def take_when_quiet(
    queues: Sequence[str], *, using: str, now: datetime | None, **terms: Any
) -> list[Lease]:
    """
    Take once no alarm rings and no lane is open.

    Someone else may be answering an alarm or waking a lane right now, and what that will
    make ready is due: so the last look comes after theirs.
    """
    waits = islice(pauses(), OTHERS)
    while True:
        ringing, is_open = what_is_left(queues, using=using, now=now)
        if not (ringing or is_open):
            return []
        wait = next(waits, None) if ringing else None
        time.sleep(wait or 0.0)
        more = answer_alarms(using=using, now=now)
        haul = take(queues, using=using, now=now, **terms)
        leases = press_on(queues, haul, more=more, using=using, now=now, **terms)
        if leases or wait is None:
            return leases


@repeated
def what_is_left(queues: Sequence[str], *, using: str, now: datetime | None) -> tuple[bool, bool]:
    """Tell whether an alarm rings, and whether a task may be taken, both at one moment."""
    names = {f"queue{number}": queue for number, queue in enumerate(queues)}
    statement = LEFT.replace("{queues}", ", ".join(f"%({name})s" for name in names))
    with reading(using) as (cursor, dialect):
        in_lane = dialect.in_lane.replace("{lane}", '"perfectqueue_lane"."id"')
        statement = statement.replace("{in_lane}", in_lane)
        row = dialect.execute(cursor, statement, names, now=now).fetchone()
        limited, ringing, is_open = map(bool, row)
        if limited and not is_open:
            is_open = 0.0 in waits_behind(cursor, dialect, queues, now)
    return ringing, is_open


@dataclass(frozen=True, slots=True)
class Haul:
    """
    What one transaction took and refused.

    Where it took nothing, ``ringing`` tells that an alarm has to be answered first,
    ``advanced`` that it has cleared away what stood before others, and ``contended`` that
    others held or filled lanes that it has passed over.
    """

    leases: list[Lease]
    refused: list[Completion]
    ringing: bool
    advanced: bool
    contended: bool


@recalled
def take(
    tries: Tries,
    queues: Sequence[str],
    *,
    limit: int,
    alive_time: float,
    holder: int,
    using: str,
    now: datetime | None,
    finished: Sequence[Completion] = (),
    worker: str = "",
    heed: bool = False,
) -> Haul:
    """
    Take tasks in one transaction; with ``heed`` none while an alarm rings.

    What it writes may be lost in a crash of the server unless it finishes tasks: they are
    then taken again.
    """
    taken: list[Lease] = []
    refused: list[Completion] = []
    lasting = bool(finished) or is_callers(connections[using])
    with unit(using) as (cursor, dialect):
        for lost in tries.doubtful:
            if left := still_held(cursor, dialect, lost.leases):
                return Haul(left, lost.refused, lost.ringing, lost.advanced, lost.contended)
        accounts = Accounts(now)
        if finished:
            refused = close(cursor, dialect, accounts, finished, worker=worker, now=now)
        claim = Claim(cursor, dialect, accounts, queues, using, alive_time, holder, now)
        claim.heed, claim.lasting = heed, lasting
        for queue in queues:
            if len(taken) < limit and not claim.ringing:
                taken += claim.from_queue(queue, limit - len(taken))
        slept = accounts.write(cursor, dialect)
        advanced = claim.expired > 0 or (claim.stopped and slept > 0)
        ringing = claim.ringing or (claim.has_moved() and not taken)
        haul = Haul(taken, refused, ringing, advanced, claim.contended)
        if taken:
            tries.commits(haul)
    return haul


def still_held(cursor: Any, dialect: Dialect, leases: list[Lease]) -> list[Lease]:
    """
    Return which of these were taken indeed, by a try that got no answer, and are held yet.

    Their rows are locked whatever is in them: so a commit that is still under way is
    waited for.
    """
    ids = numbers(lease.task_id for lease in leases)
    statement = TAKEN.replace("{ids}", ids) + dialect.lock_clause()
    rows = set(dialect.execute(cursor, statement).fetchall())
    return [
        lease
        for lease in leases
        if (lease.task_id, lease.attempt, lease.holder, State.RUNNING) in rows
    ]


class Claim:
    """One transaction's search for tasks."""

    def __init__(
        self,
        cursor: Any,
        dialect: Dialect,
        accounts: Accounts,
        queues: Sequence[str],
        using: str,
        alive_time: float,
        holder: int,
        now: datetime | None,
    ) -> None:
        self.cursor = cursor
        self.dialect = dialect
        self.accounts = accounts
        self.queues = queues
        self.using = using
        self.alive_time = alive_time
        self.holder = holder
        self.now = now
        self.heed = False
        self.lasting = True
        self.ringing = False
        self.locked = False
        self.expired = 0
        self.stopped = False
        self.contended = False
        self.limited: bool | None = None
        self.keeper: Gatekeeper | None = None

    def has_moved(self) -> bool:
        """Tell whether tasks were moved to lanes behind gates, which an alarm has to wake."""
        return self.keeper is not None and self.keeper.moved > 0

    def from_queue(self, queue: str, limit: int) -> list[Lease]:
        """Serve lanes until the limit is met or none is left that has a task."""
        taken: list[Lease] = []
        passed: set[int] = set()
        rounds, vain = 0, False
        while len(taken) < limit and (rounds < ROUNDS or not taken):
            if rounds == ROUNDS_IN_VAIN:
                self.stopped = True
                break
            rounds += 1
            read = self.probed if vain else self.open_lanes
            known = len(passed)
            lanes = read(queue, limit - len(taken), passed)
            if self.ringing:
                break
            if self.limited:
                return self.from_gates(queue, limit)
            # Where lanes have less than a quantum, the others get one turn each at a time.
            quantum = QUANTUM if rounds == 1 else 0.0
            picks = next_picks(lanes, limit - len(taken), quantum)
            if not picks:
                if len(passed) == known:
                    break
                vain = True
                continue
            expired = self.expired
            taken += self.serve(picks, alone=len(lanes) == 1 and not passed)
            short = self.accounts.short & {lane.id for lane in lanes}
            passed |= short | {lane.id for lane in lanes if lane.room is not None}
            if not short and (taken or self.expired == expired):
                break
            vain = not taken
        return taken

    def open_lanes(self, queue: str, limit: int, passed: set[int]) -> list[OpenLane]:
        """
        Read the lanes that are next; ``passed`` grows by those that can't be served.

        The first look tells as well whether an alarm rings.
        """
        more = "" if self.lasting else self.dialect.asynchronous_commit
        look_around = f", {ANY_LIMITS}, {RINGS if self.heed else 'FALSE'}"
        if self.limited is None:
            more += look_around
        statement = OPEN.replace("{passed}", numbers(sorted(passed)) if passed else "0")
        statement = statement.replace("{more}", more)
        parameters = {"queue": queue, "limit": max(limit, LANES_READ_AT_LEAST)}
        rows = self.dialect.execute(self.cursor, statement, parameters, now=self.now).fetchall()
        if self.limited is None:
            row = rows[0] if rows else self.seen(look_around)
            self.limited, self.ringing = bool(row[-2]), bool(row[-1])
            self.accounts.gated = self.limited
            if self.limited:
                # Meters are locked before lanes.
                return []
        return self.served(self.current([row[:6] for row in rows], passed), passed)

    def seen(self, more: str) -> Row:
        row: Row = self.dialect.execute(self.cursor, f"SELECT 1{more}", now=self.now).fetchone()
        return row

    def from_gates(self, queue: str, limit: int) -> list[Lease]:
        """Serve lanes where limits hold some back, all lanes of a user as one."""
        if self.keeper is None:
            self.keeper = Gatekeeper.enter(
                self.cursor, self.dialect, self.accounts, self.queues, self.now
            )
        keeper = self.keeper
        taken: list[Lease] = []
        passed: set[int] = set()
        rounds = 0
        while len(taken) < limit and (rounds < ROUNDS or not taken):
            if rounds == ROUNDS_IN_VAIN:
                self.stopped = True
                break
            rounds += 1
            wanted, known = limit - len(taken), len(passed)
            rows = keeper.lanes(queue, max(wanted, LANES_READ_AT_LEAST), passed)
            lanes = self.with_accounts(rows, passed)
            gates = {lane: gate for lane, gate, _account in lanes}
            parties = keeper.parties(lanes, wanted)
            passed |= self.accounts.short & gates.keys()
            picks = party_picks(
                parties,
                keeper.gates,
                keeper.rooms(),
                wanted,
                QUANTUM if rounds == 1 else 0.0,
            )
            if not picks:
                if len(passed) == known:
                    break
                continue
            cleared = self.expired + keeper.moved
            taken += keeper.let_through(self.serve(picks, gates=gates), gates)
            short = self.accounts.short & gates.keys()
            passed |= short | {lane for lane, _gate, account in lanes if account.room is not None}
            if not short and (taken or self.expired + keeper.moved == cleared):
                break
        return taken

    def with_accounts(self, rows: list[Row], passed: set[int]) -> list[tuple[int, int, OpenLane]]:
        """Return lanes with their gates and accounts, without those that can't be served."""
        known = list({row[1]: (row[1], *row[4:]) for row in rows}.values())
        unserved: set[int] = set()
        served = self.served(self.current(known, unserved), unserved)
        accounts = {account.id: account for account in served}
        passed |= {row[0] for row in rows if row[1] not in accounts}
        return [(row[0], row[2], accounts[row[1]]) for row in rows if row[1] in accounts]

    def probed(self, queue: str, limit: int, passed: set[int]) -> list[OpenLane]:
        """
        Read many lanes at once, put the empty ones to sleep, and return the next others.

        Lanes that ran dry just as a batch was full are still awake, one for each user.
        """
        in_lane = self.dialect.in_lane.replace("{lane}", '"perfectqueue_lane"."id"')
        statement = PROBE.replace("{in_lane}", in_lane)
        statement = statement.replace("{passed}", numbers(sorted(passed)) if passed else "0")
        parameters = {"queue": queue, "limit": LANES_PROBED}
        found = self.dialect.execute(self.cursor, statement, parameters).fetchall()
        empty = {row[0] for row in found if row[6] is None}
        full = [row[:6] for row in found if row[0] not in empty][: max(limit, LANES_READ_AT_LEAST)]
        rows = self.current([row[:6] for row in found if row[0] in empty] + full, passed)
        for row in rows:
            if row[0] in empty:
                self.accounts.found_short(row[0])
        passed |= empty
        return self.served([row for row in rows if row[0] not in empty], passed)

    def current(self, rows: list[Row], passed: set[int]) -> list[Row]:
        """Return the rows as they are, locked where a cap asks for it; pass over the others."""
        if not (self.locked or any(row[4] is not None for row in rows)):
            return rows
        order = {row[0]: place for place, row in enumerate(rows)}
        locked = sorted(self.lock(list(order)), key=lambda row: order[row[0]])
        if missed := order.keys() - {row[0] for row in locked}:
            self.contended = True
            passed |= missed
        return locked

    def served(self, rows: list[Row], passed: set[int]) -> list[OpenLane]:
        """Return lanes as the arithmetic takes them, without those that others have filled."""
        lanes = []
        for lane, virtual_time, cost, weight, max_running, running in rows:
            room = None if max_running is None else max_running - running
            if room is not None and room <= 0:
                self.contended = True
                passed.add(lane)
                continue
            lanes.append(
                OpenLane(id=lane, virtual_time=virtual_time, cost=cost, weight=weight, room=room)
            )
        return lanes

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

    def serve(
        self, picks: list[Pick], *, alone: bool = False, gates: Mapping[int, int] | None = None
    ) -> list[Lease]:
        """
        Take what was picked; a lane that has less is asleep from now on, unless alone.

        What stands behind one of the ``gates`` is counted by its keeper.
        """
        wants = counted(picks)
        rows = self.dialect.claim(
            self.cursor, wants, holder=self.holder, seconds=self.alive_time, now=self.now
        )
        lines = in_lines(rows)
        for lane, count in wants.items():
            if len(lines[lane]) < count and not alone:
                self.accounts.found_short(lane)
        whose: dict[str, Any] = {
            "using": self.using,
            "holder": self.holder,
            "moment": self.dialect.moment,
        }
        leases: list[Lease] = []
        late: list[Lease] = []
        for pick in picks:
            if not (line := lines[pick.lane]):
                continue
            row = line.popleft()
            lease = leased(row, cost=pick.cost, **whose)
            self.accounts.begin(pick.lane, pick.cost)
            if self.keeper and gates:
                self.keeper.count(gates[pick.lane])
            (late if row[7] else leases).append(lease)
        for lease in late:
            expire(self.cursor, self.dialect, self.accounts, lease, now=self.now)
        self.expired += len(late)
        return leases


def leased(
    row: Sequence[Any], *, using: str, holder: int, cost: float, moment: Callable[[Any], datetime]
) -> Lease:
    task_id, attempt, lane, errors, crashes, _rank, run_at, _late = row[:8]
    queue, key, type_, user, payload, priority, created_at = row[8:]
    return Lease(
        using,
        task_id,
        attempt,
        holder,
        lane,
        cost,
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
    )


def in_lines(rows: list[Row]) -> defaultdict[int, deque[Row]]:
    """Return each lane's rows in the order in which they should run."""
    lines: defaultdict[int, deque[Row]] = defaultdict(deque)
    for row in sorted(rows, key=lambda row: (row[5], row[6], row[0])):
        lines[row[2]].append(row)
    return lines
