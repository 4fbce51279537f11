"""Take due tasks under a lease, in fair order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter
from typing import Any, NamedTuple

from django.db import connections
from django.db.backends.utils import CursorWrapper as Cursor

from django_perfectqueue.models import State

from ..arithmetic.fair_order import FIRST_COST, LANES_PROBED, OpenLane, Pick, is_gated, next_picks
from ..arithmetic.multi_lane import party_picks
from ..arithmetic.newcomers import expected
from ..database.dialects import Dialect
from ..database.dialects.base import Row, numbers
from ..database.transaction import REPEATS, Tries, is_callers, recalled, unit
from ..lanes.accounts import Accounts
from ..notify.ring import will_wake
from ..tasks.finish import close, finish
from ..upkeep.timers import fire_timers, rouse_all, rouse_in_turn
from ..values import Completion, Lease
from .candidates import LANES_READ_AT_LEAST, Lineup
from .claim import Claim, UnreadableError
from .limit_chooser import ACCOUNT, OPEN, Gatekeeper
from .unreadable import set_aside

ROUNDS = 5
ROUNDS_IN_VAIN = 20

TAKEN = """
SELECT "task_id", "token", "state" FROM "perfectqueue_ticket"{hint}
WHERE "task_id" IN ({ids}) ORDER BY "task_id"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRequest:
    """
    Which tasks a holder asks for: up to ``limit`` of these queues, which are tried in order.

    ``alive_time`` is for how many seconds it may keep them. A ``serial`` holder runs them one
    after another: of what has a cap or keeps to limits it then gets a part, so that others
    may run the rest at the same time.
    """

    queues: Sequence[str]
    limit: int
    alive_time: float
    holder: int
    using: str
    now: datetime | None = None
    serial: bool = False


class Claimed(NamedTuple):
    """What was taken, and which of the tasks to be finished were refused."""

    leases: list[Lease]
    refused: list[Completion]


class ClaimResult(NamedTuple):
    """
    What one transaction took and refused.

    ``timers_due`` means that the clock has something to move, ``stopped`` that it has not
    looked at all lanes, or has cleared away what stood before others, and ``contended`` that
    others held or filled lanes that it has passed over.
    """

    leases: list[Lease]
    refused: list[Completion]
    timers_due: bool
    stopped: bool
    contended: bool


def acquire(
    queues: Sequence[str],
    *,
    limit: int,
    alive_time: float,
    holder: int,
    using: str,
    now: datetime | None = None,
    serial: bool = False,
) -> list[Lease]:
    """
    Take up to ``limit`` due tasks, in the order in which they should run, as a ClaimRequest
    says.

    An empty answer means that nothing is due that may run; but for what others move or hold
    at this moment, who notify the workers then, and for a task in a lane that sleeps since
    the program that submitted it died: that is found within some seconds.
    """
    request = ClaimRequest(
        queues=queues,
        limit=limit,
        alive_time=alive_time,
        holder=holder,
        using=using,
        now=now,
        serial=serial,
    )
    return finish_and_acquire((), request).leases


def finish_and_acquire(
    finished: Sequence[Completion], request: ClaimRequest, *, worker: str = ""
) -> Claimed:
    """Close tasks as finish() does, and take others in the same transaction."""
    refused: list[Completion] = []
    if any(map(attrgetter("lease.capped"), finished)):
        # Close these first: until then they count against caps and limits.
        refused = finish(finished, using=request.using, worker=worker, now=request.now)
        finished = ()
    if will_wake(using=request.using):
        # The commit may never come, as in a TestCase.
        rouse_all(using=request.using)
    result = take(request, finished, worker=worker, after_timers=True)
    refused += result.refused
    repeats = 0
    while not result.leases and may_find_more(request, result, repeats):
        # Many lanes may have to be put behind their limits before one is found that is free.
        result = take(request, wide=result.stopped and not result.timers_due)
        repeats += 1
    return Claimed(result.leases, refused)


def may_find_more(request: ClaimRequest, result: ClaimResult, repeats: int) -> bool:
    """Clear away what has kept a claim from taking anything; return whether to claim again."""
    if result.timers_due and fire_timers(using=request.using, now=request.now):
        return True
    if result.stopped or (result.contended and repeats < REPEATS):
        return True
    return rouse_in_turn(using=request.using) > 0


def take(
    request: ClaimRequest,
    finished: Sequence[Completion] = (),
    *,
    worker: str = "",
    after_timers: bool = False,
    wide: bool = False,
) -> ClaimResult:
    """
    Take tasks in one transaction; and again once what can't be read is out of the line.

    In a transaction of the caller's the error goes up: it is the caller's to roll back.
    """
    using = request.using
    terms: dict[str, Any] = {
        "using": using,
        "worker": worker,
        "after_timers": after_timers,
        "wide": wide,
    }
    while True:
        try:
            return take_readable(request, finished, **terms)
        except UnreadableError as error:
            own = not is_callers(connections[using])
            if not (own and set_aside(error.wants, using=using, now=request.now)):
                raise error.__cause__ or error from None


@recalled
def take_readable(
    tries: Tries,
    request: ClaimRequest,
    finished: Sequence[Completion],
    *,
    using: str,
    worker: str,
    after_timers: bool,
    wide: bool,
) -> ClaimResult:
    """
    Take tasks in one transaction; with ``after_timers`` none while the clock has something to
    move. Raise UnreadableError where one can't be taken for what is in its row.

    What it writes may be lost in a crash of the server, and is then taken again; but not
    where it finishes tasks, nor what has a cap: others would fill that, while these run on.
    """
    now = request.now
    taken: list[Lease] = []
    refused: list[Completion] = []
    lasting = bool(finished) or is_callers(connections[using])
    with unit(using) as (cursor, dialect):
        for lost in tries.doubtful:
            if left := still_held(cursor, dialect, lost.leases):
                return ClaimResult(left, *lost[1:])
        accounts = Accounts(now)
        if finished:
            refused = close(cursor, dialect, accounts, finished, worker=worker, now=now)
        lineup = Lineup(
            cursor, dialect, accounts, after_timers=after_timers, lasting=lasting, now=now
        )
        claim = Claim(
            cursor=cursor,
            dialect=dialect,
            accounts=accounts,
            using=using,
            holder=request.holder,
            alive_time=request.alive_time,
            now=now,
        )
        count = LANES_PROBED if wide else max(request.limit, LANES_READ_AT_LEAST)
        search = Search(lineup, claim, accounts, request, count)
        for queue in request.queues:
            if len(taken) < request.limit and not lineup.ringing:
                taken += search.in_queue(queue, request.limit - len(taken))
        slept = accounts.write(cursor, dialect)
        if not lasting and any(lease.capped for lease in taken):
            dialect.commit_durably(cursor)
        result = ClaimResult(
            taken,
            refused,
            timers_due=lineup.timers_due or search.moved(),
            stopped=lineup.ringing
            or claim.expired > 0
            or ((search.stopped or accounts.opened > 0) and slept > 0),
            contended=lineup.contended,
        )
        if taken:
            tries.commits(result)
    return result


def still_held(cursor: Cursor, dialect: Dialect, leases: list[Lease]) -> list[Lease]:
    """
    Return which of these were taken indeed, by a try that got no answer, and are held yet.

    Their rows are locked whatever is in them: so a commit that is still under way is
    waited for.
    """
    ids = numbers(lease.task_id for lease in leases)
    taken = TAKEN.replace("{ids}", ids).replace("{hint}", dialect.by_primary_key)
    statement = taken + dialect.lock_clause()
    rows = set(dialect.execute(cursor, statement).fetchall())
    return [lease for lease in leases if (*lease.fence, State.RUNNING) in rows]


@dataclass(slots=True)
class Search:
    """One transaction's search; ``stopped`` means that it has given up with lanes left."""

    lineup: Lineup
    claim: Claim
    accounts: Accounts
    request: ClaimRequest
    count: int
    stopped: bool = False
    keeper: Gatekeeper | None = None

    def moved(self) -> bool:
        """Return whether tasks were moved to lanes behind gates, which an alarm has to wake."""
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
            usual, serial = self.usual(queue, lanes), self.request.serial
            picks = next_picks(lanes, missing, holder=claim.holder, usual=usual, serial=serial)
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
        """Return whether a lane with a cap has to wait for what was just taken of it."""
        return self.request.serial and sum(pick.count for pick in picks) < missing

    def behind_gates(self, queue: str, limit: int) -> list[Lease]:
        """Serve lanes where limits hold some back, all lanes of a user as one."""
        lineup, claim = self.lineup, self.claim
        if self.keeper is None:
            self.keeper = Gatekeeper.enter(
                claim.cursor,
                claim.dialect,
                self.accounts,
                self.request.queues,
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
            serial = self.request.serial
            picks = party_picks(parties, keeper.rooms(), missing, usual=usual, serial=serial)
            if not picks:
                if len(lineup.passed) == passed:
                    break
                continue
            capped = {lane for lane, account in lanes.items() if account.room is not None}
            behind = set(filter(is_gated, lanes))
            leases = claim.take(picks, missing, capped=capped | behind)
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
