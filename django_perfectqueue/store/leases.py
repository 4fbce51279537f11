"""Leases: check them before a write, renew them, and make them of claimed rows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Any, NamedTuple

from django_perfectqueue.exceptions import PreemptedError
from django_perfectqueue.models import (
    GOES_ON,
    LastEnding,
    Outcome,
    State,
    Task,
    TaskQuerySet,
    Ticket,
)
from django_perfectqueue.models.fields import ServerNow

from .arithmetic.fair_order import Pick
from .database.dialects.base import Row, cases
from .database.transaction import Session, in_transaction, reading, retry_transaction, timely
from .lanes.accounts import Accounts, expected_cost
from .notify.ring import notify_workers
from .values import Lease, Now, Pulse, as_text

STILL_HELD = "running"
# The endings that the holder of an attempt writes.
BY_HOLDER = (
    LastEnding.RETRIED,
    LastEnding.SNOOZED,
    LastEnding.RELEASED,
    LastEnding.YIELDED,
    LastEnding.SUSPENDED,
)

HELD = """
SELECT "task_id", "token", "cancel_requested", "charged" FROM "perfectqueue_ticket"{hint}
WHERE "task_id" IN ({ids}) AND "state" = 2 ORDER BY "task_id"
"""


# What a ticket says that a lease holds: whether its task is to be cancelled, and how many seconds
# its lane was charged while it ran, if it was.
Held = tuple[bool, float | None]


@contextmanager
def locked_lease(lease: Lease, *, using: str, now: Now = None) -> Iterator[Session]:
    """
    Open one transaction, or join the caller's, with the ticket locked that this lease holds.

    Raise PreemptedError, and let nothing be written, when the lease has passed to
    another processor or the task has ended.
    """
    with in_transaction(using, now=now) as db:
        if not lock_leases(db, [lease]):
            raise PreemptedError(why_not_held(db, lease))
        yield db


@retry_transaction
def refusal(lease: Lease, *, using: str) -> PreemptedError:
    """Return the error for a lease that does not hold; it says in which state the task is."""
    with reading(using) as db:
        return PreemptedError(why_not_held(db, lease))


def why_not_held(db: Session, lease: Lease) -> str:
    row = row_of(db, lease).values_list("outcome", "started_at", "ended_at", "ticket__state")[:1]
    state = state_of(*row[0]) if row else "it was deleted"
    return f"Task '{lease.key}' is no longer held by this attempt: {state}."


def row_of(db: Session, lease: Lease) -> TaskQuerySet:
    """Return the row of the task, unless another has its id."""
    rows = TaskQuerySet(Task, using=db.using)
    return rows.filter(pk=lease.task_id, queue=lease.queue, key=lease.key)


def state_of(
    outcome: str, started_at: datetime | None, ended_at: datetime | None, state: int | None
) -> str:
    """Return in words where a task stands that someone else has taken, ended or put back."""
    if outcome:
        # A forced finish leaves no start.
        by_force = ", by force" if outcome == Outcome.FINISHED and started_at is None else ""
        return f"{outcome} at {ended_at:%Y-%m-%d %H:%M:%S} UTC{by_force}"
    if state == State.RUNNING:
        return "another attempt has it"
    return "it is in line for another attempt"


def lock_leases(db: Session, leases: Collection[Lease], clause: str = "") -> dict[Lease, Held]:
    """
    Lock the tickets of the leases that still hold theirs, in the order of their ids;
    return each of these with what its ticket says. ``clause`` may pass over those of others.
    """
    ids = sorted(lease.task_id for lease in leases)
    rows = db.rows(HELD + (clause or db.dialect.lock_clause), ids=ids)
    found = {(task_id, token): (bool(cancel), charged) for task_id, token, cancel, charged in rows}
    return {lease: found[lease.fence] for lease in leases if lease.fence in found}


@retry_transaction
def outcome_of(lease: Lease, *, using: str, worker: str) -> str:
    """
    Return how its holder, this ``worker``, has ended an attempt: as a word such as "retried".

    It is STILL_HELD while the attempt has its task, and empty where others have ended it, or
    another attempt has gone on since. Call it after a commit that got no answer: it waits for
    the lock of the ticket, and so until that commit is done or undone.
    """
    with in_transaction(using) as db:
        return ending_of(db, lease, worker)


def ending_of(db: Session, lease: Lease, worker: str) -> str:
    """Do what outcome_of() does, in the caller's transaction."""
    tickets = Ticket.objects.using(db.using).select_for_update()
    held = tickets.filter(pk=lease.task_id)
    row = held.values_list("token", "state", "attempt", "last_ending").first()
    if row is None:
        # What others end has no start: they don't know when the attempt began.
        closed = row_of(db, lease).filter(
            attempt=lease.attempt, worker=as_text(worker, 255), started_at__isnull=False
        )
        return closed.values_list("outcome", flat=True).first() or ""
    token, state, attempt, last_ending = row
    if token == lease.token and state == State.RUNNING:
        return STILL_HELD
    # The token stays until the next acquire; while that runs, the ending is of the one before.
    next_runs = state == State.RUNNING and attempt == lease.attempt + 1
    is_its = (token == lease.token or next_runs) and last_ending in BY_HOLDER
    return LastEnding(last_ending).name.lower() if is_its else ""


# Renew leases, read which are lost or to be cancelled, and charge for those that last long.


RENEW = """
UPDATE "perfectqueue_ticket"{hint} SET "timer_at" = {until}
WHERE "task_id" IN ({ids}) AND "token" IN ({tokens}) AND "state" = 2
    AND "timer_at" < {until}
"""
CHARGE = """
UPDATE "perfectqueue_ticket"{hint} SET "charged" = CASE "task_id" {charges} END
WHERE "task_id" IN ({ids})
"""


@retry_transaction
def heartbeat(
    leases: Sequence[Lease], *, using: str, alive_time: float | None, now: Now = None
) -> list[Pulse]:
    """
    Renew leases for ``alive_time`` seconds from now; return the state of each.

    With an ``alive_time`` of None they are only read. It costs one statement to read and one
    to renew, however many they are.
    """
    ids = sorted(lease.task_id for lease in leases)
    tokens = sorted({lease.token for lease in leases})
    with (reading if alive_time is None else timely)(using, now=now) as db:
        if alive_time is not None:
            db.execute(RENEW, after={"until": alive_time}, ids=ids, tokens=tokens)
        rows = db.rows(HELD, ids=ids)
    found = {(task_id, token): bool(cancel) for task_id, token, cancel, _charged in rows}
    fences = [lease.fence for lease in leases]
    return [Pulse(held=one in found, cancel_requested=found.get(one, False)) for one in fences]


@retry_transaction
def charge(ran: Mapping[Lease, float], *, using: str, now: Now = None) -> None:
    """
    Charge the lanes of running tasks for the seconds that each has run by now, and expect that
    their next tasks run as long, too.

    A lease that has passed on charges nothing. The tickets keep what was charged: who ends a
    task corrects that, and a repetition charges nothing more.
    """
    with in_transaction(using, now=now) as db:
        accounts = Accounts()
        # The one who has locked a ticket ends its task, and charges for all of it.
        held = lock_leases(db, list(ran), db.dialect.skip_clause)
        for lease, (_cancel, charged) in held.items():
            accounts.overrun(lease, ran[lease], charged)
        if held:
            charges = cases((lease.task_id, ran[lease]) for lease in held)
            db.execute(CHARGE, charges=charges, ids=sorted(lease.task_id for lease in held))
            accounts.write(db)


# What a claim reads of a ticket and its task, and the lease that comes of it.


LINE = """
SELECT "task_id" FROM "perfectqueue_ticket"
WHERE "state" = 0 AND "lane" = %(lane)s ORDER BY "rank", "run_at", "task_id" LIMIT %(count)s
"""
TICKET = (
    '"ticket"."task_id", "ticket"."attempt", "ticket"."lane", "ticket"."errors",'
    ' "ticket"."crashes", "ticket"."rank", "ticket"."last_ending"'
)
TASK = (
    '"task"."queue", "task"."key", "task"."type", "task"."user", "task"."data",'
    ' "task"."priority", "task"."created_at", "task"."time_limit",'
    ' "task"."context", "task"."limits"'
)

# Whether it has expired. A task that goes on, or has waited before, began in time.
LATE = f"""
"task"."expires_at" <= {{now}} AND "ticket"."last_ending" < {LastEnding.YIELDED.value} AND (
    SELECT 1 FROM "perfectqueue_step" WHERE "task_id" = "task"."id" AND "kind" > 1 LIMIT 1
) IS NULL
"""


class ClaimedRow(NamedTuple):
    """The columns of TICKET, when it is due, whether it has expired, and those of TASK."""

    task_id: int
    attempt: int
    lane: int
    errors: int
    crashes: int
    rank: int
    last_ending: int
    run_at: Any
    late: bool
    queue: str
    key: str
    type: str
    user: str
    payload: str
    priority: int
    created_at: Any
    time_limit: float | None
    context: str | None
    limits: str


# The order in which the tickets of a lane are taken, as a key of claimed rows.
in_line = attrgetter("rank", "run_at", "task_id")


def named(rows: Iterable[Row]) -> list[ClaimedRow]:
    """Return rows as a cursor gives them by the names of their columns."""
    # Not by _make(), which would be one more call for each task.
    return [tuple.__new__(ClaimedRow, row) for row in rows]


def leased(
    row: ClaimedRow,
    pick: Pick,
    *,
    using: str,
    holder: int,
    token: int,
    moment: Callable[[Any], datetime],
) -> Lease:
    """Return the lease; ``moment`` makes the row's times aware."""
    task_id, attempt, lane, errors, crashes, _rank, last_ending, run_at, _late, *task = row
    *names, created_at, time_limit, context, limits = task
    ticket = task_id, attempt, holder, token, lane, pick.cost, errors, crashes
    given = moment(created_at), moment(run_at), time_limit, context
    order = pick.capped, pick.finish_tag, pick.is_new, limits, pick.share, pick.weight
    goes_on = last_ending in GOES_ON
    # In the order of its fields; not by Lease(), which would be one more call for each task.
    return tuple.__new__(Lease, (using, *ticket, *names, *given, *order, goes_on))


# The leases of a holder, read and ended by other processes.


IN_HAND = f"""
SELECT {TICKET}, "ticket"."run_at", 0, {TASK},
    "ticket"."token", "ticket"."cancel_requested", "own"."cost"
FROM "perfectqueue_ticket" AS "ticket"
JOIN "perfectqueue_task" AS "task" ON "task"."id" = "ticket"."task_id"
LEFT JOIN "perfectqueue_lane" AS "lane" ON "lane"."id" = "ticket"."lane"
LEFT JOIN "perfectqueue_account" AS "own"
    ON "own"."id" = COALESCE("lane"."account", "ticket"."lane")
WHERE "ticket"."task_id" IN ({{ids}}) AND "ticket"."holder" = %(holder)s
    AND "ticket"."state" = 2
ORDER BY "ticket"."task_id"
"""


@retry_transaction
def in_hand(holder: int, task_ids: Iterable[int], *, using: str) -> list[tuple[Lease, bool]]:
    """
    Return the leases of those tasks that a holder has, and which are to be cancelled.

    Only the holder knows what their lanes were charged; these leases have what the lanes would
    be charged now.
    """
    with reading(using) as db:
        rows = db.rows(IN_HAND, {"holder": holder}, ids=task_ids)
    found = []
    for *columns, token, cancel_requested, cost in rows:
        [row] = named([tuple(columns)])
        pick = Pick(row.lane, expected_cost(cost))
        whose = {"holder": holder, "token": token}
        lease = leased(row, pick, using=using, moment=db.dialect.moment, **whose)
        found.append((lease, bool(cancel_requested)))
    return found


@retry_transaction
def lapse(holders: Sequence[int], *, using: str, alive_time: float) -> int:
    """
    End the leases of these holders now, and notify workers; return how many ended.

    These leases last ``alive_time`` seconds at most. A holder that still runs renews each lease of
    a task that no other holder has acquired.
    """
    if not holders:
        return 0
    moment = ServerNow()
    held = Ticket.objects.using(using).filter(state=State.RUNNING, holder__in=holders)
    until = moment + timedelta(seconds=alive_time + 1)
    with timely(using):
        count = held.filter(timer_at__gt=moment, timer_at__lte=until).update(timer_at=moment)
    notify_workers(using=using)
    return count
