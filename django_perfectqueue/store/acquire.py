"""Take due tasks under a lease, in fair order."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any

from django.db import connections

from ..models import State
from .accounts import Accounts
from .alarms import BATCH, answer_alarms, answer_ringing, rouse_in_turn
from .claim import Claim, UnreadableError
from .dialects import Dialect
from .dialects.base import Row, numbers
from .dozing import put_to_sleep
from .finish import close, finish
from .gatekeeper import ACCOUNT, OPEN, Gatekeeper
from .lanes import FIRST_COST, LANES_PROBED, OpenLane, Pick, is_gated, next_picks
from .lineup import LANES_READ_AT_LEAST, RINGS, Lineup
from .newcomers import expected
from .parties import party_picks
from .set_aside import set_aside
from .transaction import REPEATS, Tries, is_callers, pauses, reading, recalled, repeated, unit
from .values import Completion, Lease

ROUNDS = 5
OTHERS = 6
ROUNDS_IN_VAIN = 20

LEFT = f"SELECT {RINGS}, {{waiting}}"
# By the order the planner sees that the index of open lanes is to be used.
WAITING = """(
    SELECT 1 FROM "perfectqueue_lane"
    WHERE "queue" = %({queue})s AND "held" = 0 AND "open" = TRUE AND EXISTS (
        SELECT 1 FROM "perfectqueue_ticket" AS "ticket"
        WHERE "ticket"."state" = 0 AND {in_lane}
    )
    ORDER BY "turn" LIMIT 1
) IS NOT NULL OR EXISTS (
    SELECT 1 FROM "perfectqueue_hold" WHERE "queue" = %({queue})s AND "opens_at" <= {now}
)"""
TAKEN = """
SELECT "task_id", "token", "state" FROM "perfectqueue_ticket"
WHERE "task_id" IN ({ids}) ORDER BY "task_id"
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
    serial: bool = False,
) -> list[Lease]:
    """
    Take up to ``limit`` due tasks, in the order in which they should run.

    Queues are tried in the order given. An empty answer means that nothing is due that
    may run; but for a task whose submit saw its lane awake and was committed after the lane
    had gone to sleep, which rouse() finds. ``finished`` are tasks to be closed in the same
    transaction; those of them that finish() would have refused are added to ``refused``.
    With ``serial`` the caller runs what it is given one after another: of what has a cap or
    keeps to limits it then gets a part, so that others may run the rest at the same time.
    """
    terms: dict[str, Any] = {
        "limit": limit,
        "alive_time": alive_time,
        "holder": holder,
        "using": using,
        "now": now,
        "serial": serial,
    }
    refused = [] if refused is None else refused
    if any(done.lease.capped for done in finished):
        # Before it is looked who may run, lest these still count.
        refused += finish(finished, using=using, worker=worker, now=now)
        finished = ()
    haul = take(queues, finished=finished, worker=worker, heed=True, **terms)
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
        elif not haul.advanced and (
            roused < BATCH or not (roused := rouse_in_turn(using=using, now=now))
        ):
            break
        # Many lanes may have to be put behind their limits before one is found that is free.
        haul = take(queues, using=using, now=now, wide=haul.advanced, **terms)
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
    waiting = " OR ".join(WAITING.replace("{queue}", name) for name in names)
    statement = LEFT.replace("{waiting}", waiting)
    with reading(using) as (cursor, dialect):
        in_lane = dialect.in_lane.replace("{lane}", '"perfectqueue_lane"."id"')
        statement = statement.replace("{in_lane}", in_lane)
        row = dialect.execute(cursor, statement, names, now=now).fetchone()
        ringing, is_open = map(bool, row)
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


def take(queues: Sequence[str], *, using: str, now: datetime | None, **terms: Any) -> Haul:
    """
    Take tasks in one transaction; and again once what can't be read is out of the line.

    In a transaction of the caller's the error goes up: it is the caller's to roll back.
    """
    while True:
        try:
            return take_readable(queues, using=using, now=now, **terms)
        except UnreadableError as error:
            if is_callers(connections[using]) or not set_aside(error.wants, using=using, now=now):
                raise error.__cause__ or error from None


@recalled
def take_readable(
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
    serial: bool = False,
    wide: bool = False,
) -> Haul:
    """
    Take tasks in one transaction; with ``heed`` none while an alarm rings. Raise
    UnreadableError where one can't be taken for what is in its row.

    What it writes may be lost in a crash of the server, and is then taken again; but not
    where it finishes tasks, nor what has a cap: others would fill that, while these run on.
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
        lineup = Lineup(cursor, dialect, accounts, heed=heed, lasting=lasting, now=now)
        claim = Claim(
            cursor=cursor,
            dialect=dialect,
            accounts=accounts,
            using=using,
            holder=holder,
            alive_time=alive_time,
            now=now,
        )
        count = LANES_PROBED if wide else max(limit, LANES_READ_AT_LEAST)
        search = Search(lineup, claim, accounts, queues, serial, count)
        for queue in queues:
            if len(taken) < limit and not lineup.ringing:
                taken += search.in_queue(queue, limit - len(taken))
        slept = accounts.write(cursor, dialect)
        if slept:
            put_to_sleep(using, accounts.short)
        if not lasting and any(lease.capped for lease in taken):
            dialect.commit_durably(cursor)
        advanced = claim.expired > 0 or (search.stopped and slept > 0)
        ringing = lineup.ringing or (search.moved() and not taken)
        haul = Haul(taken, refused, ringing, advanced, lineup.contended)
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
    return [lease for lease in leases if (*lease.fence, State.RUNNING) in rows]


@dataclass(slots=True)
class Search:
    """One transaction's search; ``stopped`` tells that it has given up with lanes left."""

    lineup: Lineup
    claim: Claim
    accounts: Accounts
    queues: Sequence[str]
    serial: bool
    count: int
    stopped: bool = False
    keeper: Gatekeeper | None = None

    def moved(self) -> bool:
        """Tell whether tasks were moved to lanes behind gates, which an alarm has to wake."""
        return self.keeper is not None and self.keeper.moved > 0

    def in_queue(self, queue: str, limit: int) -> list[Lease]:
        """Serve lanes until the limit is met or none is left that has a task."""
        lineup, claim = self.lineup, self.claim
        lineup.passed.clear()
        if lineup.limited:
            return self.behind_gates(queue, limit)
        taken: list[Lease] = []
        rounds, vain = 0, False
        while len(taken) < limit and (rounds < ROUNDS or not taken):
            if rounds == ROUNDS_IN_VAIN:
                self.stopped = True
                break
            rounds += 1
            missing, passed, expired = limit - len(taken), len(lineup.passed), claim.expired
            read = lineup.next_with_tasks if vain else lineup.next
            lanes = read(queue, missing)
            if lineup.limited and not lineup.ringing:
                return taken + self.behind_gates(queue, missing)
            if not lanes:
                if lineup.ringing or len(lineup.passed) == passed:
                    break
                vain = True
                continue
            alone = len(lanes) == 1 and not lineup.passed
            usual = self.usual(queue, lanes)
            picks = next_picks(lanes, missing, holder=claim.holder, usual=usual, serial=self.serial)
            capped = {lane.id for lane in lanes if lane.room is not None}
            taken += claim.take(picks, missing, alone=alone, capped=capped)
            if taken and self.ends_early(picks, missing):
                break
            short = self.accounts.short & {lane.id for lane in lanes}
            lineup.passed |= short | capped.intersection(pick.lane for pick in picks)
            if not short and (taken or claim.expired == expired):
                break
            vain = not taken
        return taken

    def usual(self, queue: str, lanes: Sequence[OpenLane]) -> float:
        """
        Return what a task is expected to cost in a lane that was never measured.

        What this holder has measured in others that were new, or else what has just been
        measured, or what one of the first lanes that were.
        """
        new = expected(self.claim.using, queue, self.claim.holder)
        known = (lane.cost for lane in lanes if not lane.is_new)
        return new or self.accounts.mean() or next(known, FIRST_COST)

    def ends_early(self, picks: list[Pick], missing: int) -> bool:
        """Tell whether a lane with a cap has to wait for what was just taken of it."""
        return self.serial and sum(pick.count for pick in picks) < missing

    def behind_gates(self, queue: str, limit: int) -> list[Lease]:
        """Serve lanes where limits hold some back, all lanes of a user as one."""
        lineup, claim = self.lineup, self.claim
        if self.keeper is None:
            self.keeper = Gatekeeper.enter(
                claim.cursor,
                claim.dialect,
                self.accounts,
                self.queues,
                self.count,
                claim.now,
            )
        keeper = self.keeper
        taken: list[Lease] = []
        rounds, more = 0, any(due.more for due in keeper.due)
        while len(taken) < limit and (rounds < ROUNDS or not taken):
            if rounds == ROUNDS_IN_VAIN:
                self.stopped = True
                break
            rounds += 1
            missing, passed = limit - len(taken), len(lineup.passed)
            cleared = claim.expired + keeper.moved
            rows = keeper.lanes(queue, lineup.passed)
            more = more or len(rows) >= self.count
            lanes = self.with_accounts(keeper, rows)
            for lane in [lane for lane in lanes if not keeper.is_locked(lane)]:
                keeper.has_more = True
                lineup.passed.add(lane)
                del lanes[lane]
            parties = keeper.parties(lanes, missing)
            lineup.passed |= self.accounts.short & lanes.keys()
            usual = self.usual(queue, [party.account for party in parties])
            terms: dict[str, Any] = {"usual": usual, "serial": self.serial}
            picks = party_picks(parties, keeper.rooms(), missing, **terms)
            if not picks:
                if len(lineup.passed) == passed:
                    break
                continue
            capped = {lane for lane, account in lanes.items() if account.room is not None}
            behind = set(filter(is_gated, lanes))
            leases = claim.take(picks, missing, begun=keeper.begin, capped=capped | behind)
            through = keeper.let_through(leases)
            # Who has more of what is to be moved must not hold up the others.
            lineup.passed |= {lease.lane for lease in set(leases).difference(through)}
            taken += through
            if taken and self.ends_early(picks, missing):
                break
            short = self.accounts.short & lanes.keys()
            lineup.passed |= short | capped.intersection(pick.lane for pick in picks)
            if not short and (taken or claim.expired + keeper.moved == cleared):
                break
        if not taken:
            # Nothing was there, or others were faster; in the lanes behind there may be more.
            self.stopped = self.stopped or more or keeper.has_more
            lineup.contended = lineup.contended or keeper.has_more
        return taken

    def with_accounts(self, keeper: Gatekeeper, rows: list[Row]) -> dict[int, OpenLane]:
        """Return lanes with their accounts, without those that can't be served."""
        known = list({row[1]: (row[1], *row[ACCOUNT]) for row in rows}.values())
        current = self.lineup.current(known)
        ids = {row[0] for row in current}
        keeper.look_at([row for row in rows if row[1] in ids])
        open_ = {row[1] for row in rows if row[OPEN]}
        served = self.lineup.with_room([row for row in current if row[0] in open_])
        accounts = {account.id: account for account in served}
        self.lineup.passed |= {row[0] for row in rows if row[1] not in accounts}
        return {row[0]: accounts[row[1]] for row in rows if row[OPEN] and row[1] in accounts}
