"""Take due tasks under a lease, in fair order; look without a lock whether some are due."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from operator import attrgetter
from typing import NamedTuple

from django.db.models import Exists, OuterRef, Q

from django_perfectqueue.models import Account, State, Ticket

from ..arithmetic.fair_order import LANES_PROBED, lane_of
from ..arithmetic.rate_limit import may_hold, split
from ..database.transaction import (
    REPEATS,
    Session,
    Tries,
    in_transaction,
    is_callers,
    reading,
    retry_remembering_commits,
    with_retries,
)
from ..lanes.accounts import Accounts
from ..limits.holds import NEXT
from ..limits.meters import allowances
from ..notify.ring import will_wake
from ..records.dependency_events import will_follow
from ..tasks.close import close, finish, lock_tickets
from ..upkeep.timers import (
    fire_timers,
    note_look,
    since,
    wake_all_forgotten_lanes,
    wake_forgotten_lanes_if_due,
)
from ..values import ClaimRequest, Completion, Costs, Lease, Now, Watermarks, rested_at
from .lanes import HAS_TASK, OF_COSTS, Lanes
from .sql.only_lane import from_mark
from .tickets import Tickets, past_unreadable

ROUNDS = 5
ROUNDS_IN_VAIN = 20
TURNS_READ = 50


class ClaimResult(NamedTuple):
    """
    What one transaction took and refused.

    ``timers_due`` means that the clock has something to move, ``stopped`` that it has not
    looked at all lanes, or has cleared away what stood before others, and ``contended`` that
    others held or filled lanes that it has passed over. With ``frees`` it has only finished
    tasks, for which others have waited.
    """

    leases: list[Lease]
    refused: list[Completion]
    timers_due: bool = False
    stopped: bool = False
    contended: bool = False
    frees: bool = False


def acquire(request: ClaimRequest) -> list[Lease]:
    """
    Take the tasks that are asked for, in the order in which they should run.

    An empty answer means that no task is due that may run, with two exceptions. Tasks that others
    move or lock at this moment are left out; these others notify the workers. A task whose
    submitter died before it woke the lane is found within some seconds.
    """
    return finish_and_acquire((), request)[0]


def finish_and_acquire(
    finished: Sequence[Completion], request: ClaimRequest, *, worker: str = ""
) -> tuple[list[Lease], list[Completion]]:
    """
    Close tasks as finish() does, and take others in the same transaction; return what was taken,
    and which completions were refused.
    """
    refused: list[Completion] = []
    if any(map(attrgetter("lease.capped"), finished)):
        # Close these first: until then they count against caps and limits.
        refused = finish(finished, using=request.using, worker=worker, now=request.now)
        finished = ()
        # Whom a cap held back may be far behind the first turn.
        request.marks.turns.clear()
    if will_wake(using=request.using):
        # The commit may never come, as in a TestCase.
        wake_all_forgotten_lanes(using=request.using)
    using = request.using
    first = partial(claim, request, finished, using=using, worker=worker, after_timers=True)
    result = past_unreadable(first, request)
    refused += result.refused
    if result.frees:
        again = partial(claim, request, using=using, after_timers=True)
        result = past_unreadable(again, request)
    repeats = 0
    while not result.leases and may_find_more(request, result, repeats):
        # Many lanes may have to be put behind their limits before one is found that is free.
        wide = result.stopped and not result.timers_due
        result = past_unreadable(partial(claim, request, using=using, wide=wide), request)
        repeats += 1
    return result.leases, refused


def may_find_more(request: ClaimRequest, result: ClaimResult, repeats: int) -> bool:
    """Clear away what has kept a claim from taking anything; return whether to claim again."""
    marks, using, now = request.marks, request.using, request.now
    if result.timers_due and fire_timers(marks, using=using, now=now):
        return True
    if not result.stopped and marks.leave():
        return True
    if result.stopped or (result.contended and repeats < REPEATS):
        return True
    return wake_forgotten_lanes_if_due(using=using) > 0


@retry_remembering_commits
def claim(
    tries: Tries,
    request: ClaimRequest,
    finished: Sequence[Completion] = (),
    *,
    using: str,
    worker: str = "",
    after_timers: bool = False,
    wide: bool = False,
) -> ClaimResult:
    """
    Take tasks in one transaction; with ``after_timers`` none while the clock has something to
    move. Raise UnreadableError where one can't be taken for what is in its row.

    What it writes may be lost in a crash of the server, and is then taken again; but not
    where it finishes tasks, nor what has a cap: others would fill that, while these run on.
    """
    refused: list[Completion] = []
    durable = bool(finished) or is_callers(using)
    with in_transaction(using, now=request.now) as db:
        for lost in tries:
            if left := still_held(db, lost.leases):
                return ClaimResult(left, *lost[1:])
        request.marks.begin()
        accounts = Accounts()
        if finished:
            refused = close(db, accounts, finished, worker=worker)
            if len(finished) < request.limit and will_follow(db.cursor.db):
                # What waits for these is due once this is committed; where fewer ran than are
                # asked for, little else is.
                accounts.write(db)
                return ClaimResult([], refused, frees=True)
        lanes = Lanes(db, accounts, request, after_timers, wide)
        tickets = Tickets(db, accounts, request)
        leases: list[Lease] = []
        for queue in request.queues:
            if len(leases) < request.limit and not lanes.timers_first:
                leases += serve(lanes, tickets, queue, request.limit - len(leases))
        slept = accounts.write(db, counted=not leases)
        if not (durable or any(lease.capped for lease in leases)):
            db.dialect.commit_asynchronously(db.cursor)
        result = result_of(lanes, tickets, leases, refused, slept)
        if leases:
            tries.append(result)
    return result


def still_held(db: Session, leases: list[Lease]) -> list[Lease]:
    """
    Return which of these leases a try that got no answer has taken, and still holds.

    It locks all their rows, and so waits for a commit that is still under way.
    """
    tickets = lock_tickets(db, [lease.task_id for lease in leases])
    held = {(one.task_id, one.token) for one in tickets if one.state == State.RUNNING}
    return [lease for lease in leases if lease.fence in held]


def serve(lanes: Lanes, tickets: Tickets, queue: str, limit: int) -> list[Lease]:
    """Serve lanes of a queue until the limit is met or none is left that has a task."""
    serial = lanes.request.serial
    lanes.begin()
    taken: list[Lease] = []
    vain = False
    for number in range(ROUNDS_IN_VAIN):
        missing = limit - len(taken)
        if not missing or (taken and number >= ROUNDS):
            return taken
        before = lanes.passed_over, tickets.expired + lanes.moved
        picks = lanes.choose(queue, missing, probe=vain)
        if not picks:
            if lanes.timers_first or lanes.passed_over == before[0]:
                return taken
            vain = True
            continue
        leases = tickets.take(picks, missing, alone=lanes.alone)
        taken += lanes.limits.let_through(leases) if lanes.limits else leases
        if taken and serial and sum([pick.count for pick in picks]) < missing:
            # A lane with a cap has to wait for what was just taken of it.
            return taken
        again = serial or lanes.limits is None
        empty = lanes.pass_over([pick.lane for pick in picks if pick.capped and again])
        more = lanes.limits and not serial and lanes.limits.has_more(queue)
        if not (empty or more) and (taken or tickets.expired + lanes.moved == before[1]):
            return taken
        vain = not taken
    lanes.stopped = True
    return taken


def result_of(
    lanes: Lanes, tickets: Tickets, leases: list[Lease], refused: list[Completion], slept: int
) -> ClaimResult:
    """Return what was found, after ``slept`` lanes were put to sleep or behind a hold."""
    limits = lanes.limits
    # Nothing was there, or others were faster; in the lanes behind there may be more.
    unlocked = bool(limits and not leases and limits.unlocked)
    more = bool(limits and not leases and limits.more)
    gave_up = lanes.stopped or unlocked or more or lanes.accounts.opened > 0
    return ClaimResult(
        leases,
        refused,
        timers_due=lanes.timers_due or lanes.moved > 0,
        stopped=lanes.timers_first or tickets.expired > 0 or (gave_up and slept > 0),
        contended=lanes.contended or unlocked,
    )


# Look whether there is something to take, without a lock.


# In seconds: how far a look at timers goes that does not begin at the start.
AHEAD = 1.0

LOOK = """
SELECT {now}, (
    SELECT "timer_at" FROM "perfectqueue_ticket"
    WHERE "timer_at" IS NOT NULL{since} ORDER BY "timer_at" LIMIT 1
), (
    SELECT "due_at" FROM "perfectqueue_schedule"
    WHERE "due_at" IS NOT NULL ORDER BY "due_at" LIMIT 1
), {waiting}{opens_at}
"""
# The order has PostgreSQL look in the indexes, whatever it takes to be in the tables.
WAITING = f"""(
    SELECT 1 FROM (
        SELECT "id", "has_open" FROM "perfectqueue_account"
        WHERE "queue" = %({{queue}})s AND "ready" = TRUE ORDER BY "turn" LIMIT %(most)s
    ) AS "own" WHERE "has_open" OR {HAS_TASK} LIMIT 1
) IS NOT NULL OR (
    SELECT 1 FROM "perfectqueue_account"
    WHERE "queue" = %({{queue}})s AND "ready" = TRUE ORDER BY "turn" LIMIT 1 OFFSET %(most)s
) IS NOT NULL"""


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


def look(
    queues: Sequence[str],
    *,
    using: str,
    now: Now = None,
    costs: Costs | None = None,
    marks: Watermarks | None = None,
) -> Outlook:
    """
    Return whether something is due in these queues, in one statement that locks nothing; with
    ``costs`` of users whose tasks are expected to take between so many seconds.

    So many open lanes that not all can be probed count as something. ``marks`` are those of
    earlier looks; where nothing is due behind them, it looks again from the start, but in a tenth
    of the time at most.
    """
    marks = marks or Watermarks()
    names = {f"queue{number}": queue for number, queue in enumerate(queues)}
    above, below = costs or (0.0, 0.0)
    with reading(using, now=now) as db:
        opens_at = "".join(f", {NEXT.replace('{queue}', name)}" for name in names)
        after, mark = since(db, marks), from_mark(marks, '"own"."id"')
        in_lane = db.dialect.in_lane.replace("{lane}", '"own"."id"') + mark
        waiting = WAITING.replace("{in_lane}", in_lane)
        lanes = " OR ".join(waiting.replace("{queue}", name) for name in names)
        soon = after and f' AND "timer_at" <= {db.dialect.later(str(AHEAD))}'
        statement = LOOK.replace("{since}", after + soon).replace("{waiting}", lanes)
        statement = statement.replace("{opens_at}", opens_at)
        if costs is not None:
            statement = statement.replace('"ready" = TRUE', f'"ready" = TRUE AND {OF_COSTS}')
        values = {**names, "most": LANES_PROBED, "above": above, "below": below}
        began = time.monotonic()
        row = db.execute(statement, values).fetchone()
    moment, timer, tick, waiting, *opens = row

    def seconds_until(*times: datetime | None) -> float | None:
        clock = db.dialect.moment(moment)
        waits = ((db.dialect.moment(at) - clock).total_seconds() for at in times if at is not None)
        return min(waits, default=None)

    soonest, next_tick = seconds_until(timer, *opens), seconds_until(tick)
    note_look(db, marks, began, due=(seconds_until(timer) or 0.0) < 0.0)
    due = bool(waiting or (soonest is not None and soonest <= 0))
    if (after or mark) and not due and began >= marks.back_at:
        # Who is to rest may get no other call for what stands before the marks.
        outlook = look(queues, using=using, now=now, costs=costs)
        marks.back_at = rested_at(began)
        return outlook
    waits = (soonest, next_tick, AHEAD if after else None)
    ahead = (wait for wait in waits if wait is not None and wait > 0)
    return Outlook(due, min(ahead, default=None), next_tick)


# Which users are next, read without a lock.


def first_waiting(queue: str, *, using: str) -> list[Account]:
    """Return the first accounts of a queue that have a task which may be taken, by their turns."""
    # An account stays ready after its last task until someone has looked for the next one.
    tickets = Ticket.objects.filter(state=State.WAITING, lane=OuterRef("pk"))
    rows = Account.objects.using(using).filter(queue=queue, ready__in=[True])
    rows = rows.filter(Q(has_open=True) | Exists(tickets)).order_by("turn")[:TURNS_READ]
    return with_retries(lambda: list(rows), using=using)


def may_start_again(lease: Lease) -> bool:
    """Return whether a running task that goes back to its line starts again, without a pause."""
    keys = may_hold(lease.queue, lease.type, lease.user, split(lease.limits))
    own = Account.objects.using(lease.using).filter(pk=lane_of(lease.queue, lease.user))

    def look() -> bool:
        with reading(lease.using) as db:
            if not all(one.serves for one in allowances(db, keys).values()):
                return False
        return not own.filter(Q(paused=True) | Q(max_running=0)).exists()

    return with_retries(look, using=lease.using)


def comes_before(first: Account, other: Account) -> bool:
    """
    Return whether a task of the first is to run in place of one of the other's: it has the
    smaller turn, where both are in one queue, and runs no more with it, for its weight, than
    the other does now. So two that have as much do not yield to each other in turn.
    """
    no_more = (first.running + 1) / first.weight <= other.running / other.weight
    is_next = first.queue != other.queue or first.turn < other.turn
    return first.pk != other.pk and is_next and no_more
