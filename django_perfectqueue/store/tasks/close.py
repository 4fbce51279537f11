"""End tasks: those whose handlers have returned, and those that end otherwise or try again."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from django_perfectqueue import signals
from django_perfectqueue.backoff import Exponential
from django_perfectqueue.conf import options
from django_perfectqueue.models import Attempt, LastEnding, Outcome, State, Step

from ..database.dialects.base import cases
from ..database.transaction import Session, in_transaction, retry_transaction
from ..lanes.accounts import ACCOUNT, REACHED, Accounts, expected_cost
from ..leases import ending_of
from ..notify.ring import announce, announce_ids
from ..records.dependency_events import note_ended
from ..values import Completion, Failure, Lease, Now, Wait, as_text

MOST_COUNTED = 32_767

CLOSE = """
UPDATE "perfectqueue_task"{hint}
SET "outcome" = %(status)s, "attempt" = CASE "id" {attempts} END, "worker" = %(worker)s,
    "started_at" = {started_at}, "ended_at" = {now}
WHERE "id" IN ({ids})
"""
BURY = """
INSERT INTO "perfectqueue_deadletter"
    ("task_id", "status", "group", "message", "errors", "crashes", "ended_at")
VALUES {rows}
"""
LETTER = "({0.task_id}, %(status)s, %(group)s, %(message)s, {0.errors}, {0.crashes}, {{now}})"
RECORD = """
INSERT INTO "perfectqueue_attempt" (
    "task_id", "number", "ending", "worker", "started_at", "ended_at", "error", "message",
    "traceback"
) VALUES (
    %(task_id)s, %(number)s, %(ending)s, %(worker)s, {started_at}, {now}, %(error)s,
    %(message)s, %(traceback)s
)
"""
AFTER_FIRST = """
SELECT "id", "omitted" FROM "perfectqueue_attempt" WHERE "task_id" = %(task_id)s
ORDER BY "id" LIMIT 1000 OFFSET %(first)s
"""
OMIT = (
    'DELETE FROM "perfectqueue_attempt" WHERE "id" IN ({ids})',
    'UPDATE "perfectqueue_attempt" SET "omitted" = %(omitted)s WHERE "id" = %(next)s',
)
TICKET = f"""
SELECT "task_id", "token", "lane", "state", "attempt", "errors", "crashes", "holder",
    "cancel_requested", COALESCE("charged", (
        SELECT "cost" FROM "perfectqueue_account" WHERE "id" = {ACCOUNT}
    )), {REACHED}
FROM "perfectqueue_ticket"
"""
TICKETS = TICKET + '{hint} WHERE "task_id" IN ({ids}) ORDER BY "task_id"'
LEAVE = 'UPDATE "perfectqueue_ticket"{hint} SET {changes} WHERE "task_id" IN ({ids})'
COUNTED = {LastEnding.RETRIED: "errors", LastEnding.LOST: "crashes"}
ONE_MORE = '"{column}" = CASE WHEN "{column}" < {most} THEN "{column}" + 1 ELSE "{column}" END'
SCHEDULE = '"state" = 1, "timer_at" = {due}'
PLACE_IN_LINE = """"run_at" = COALESCE((
    SELECT "expected_at" FROM "perfectqueue_task" WHERE "id" = "perfectqueue_ticket"."task_id"
), {due})"""

CANCELLED = Failure(error="cancelled", message="Someone asked for it.")
EXPIRED = Failure(error="expired", message="Its time had passed before it could start.")
LAPSED = Failure(error="lost", message="The lease ran out: its processor or host went away.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """
    Why a holder loses tasks, and what is known of it.

    ``crashed`` are the ids of the tasks that it was running when it died, and ``seconds`` for
    how long each that was begun has run, where that is known.
    """

    why: Failure = LAPSED
    worker: str = ""
    crashed: Collection[int] = ()
    seconds: Mapping[int, float] = field(default_factory=dict)


class LockedTicket(NamedTuple):
    """
    What TICKET selects. ``cost`` is what its lane was charged for it while it ran; where that is
    nothing, what it is charged for a task. ``reached`` is what REACHED says.
    """

    task_id: int
    token: int | None
    lane: int
    state: int
    attempt: int
    errors: int
    crashes: int
    holder: int | None
    cancel_requested: bool
    cost: float | None
    reached: float | None


@dataclass(frozen=True, slots=True)
class EndedAttempt:
    """An attempt as its end is written: which one, by whom, and for how many seconds it ran."""

    task_id: int
    attempt: int
    errors: int
    crashes: int
    worker: str = ""
    seconds: float | None = None

    @classmethod
    def of(
        cls,
        lease: Lease | LockedTicket,
        *,
        worker: str = "",
        seconds: float | None = None,
        errors: int = 0,
    ) -> EndedAttempt:
        """Return the attempt of a lease or ticket, after so many ``errors`` more."""
        return cls(
            task_id=lease.task_id,
            attempt=lease.attempt,
            errors=min(lease.errors + errors, MOST_COUNTED),
            crashes=lease.crashes,
            worker=worker,
            seconds=seconds,
        )

    @property
    def after(self) -> dict[str, float | None]:
        return {"started_at": None if self.seconds is None else -self.seconds}


def add_dead_letters(
    db: Session, ended: Sequence[EndedAttempt], status: Outcome, why: Failure
) -> None:
    """
    End tasks that have not finished: delete their tickets, and write dead letters.

    They share the worker and the seconds of the first of them.
    """
    if not ended:
        return
    ids = [one.task_id for one in ended]
    if followed := db.dialect.remove(db.cursor, ids):
        note_ended(db, followed)
    values = {
        "status": status.value,
        "worker": as_text(ended[0].worker, 255),
        "group": as_text(why.error, 255),
        "message": as_text(why.message, 10_000),
    }
    attempts = cases((one.task_id, one.attempt) for one in ended)
    after = ended[0].after
    db.unanswered.execute(CLOSE, values, after=after, ids=ids, attempts=attempts)
    rows = ", ".join([LETTER.format(one) for one in ended])
    db.unanswered.execute(BURY, values, rows=rows)


def record(db: Session, ended: EndedAttempt, ending: Attempt.Ending, why: Failure) -> None:
    """Write how an attempt ended that did not finish its task."""
    values = {
        "task_id": ended.task_id,
        "number": ended.attempt,
        "ending": ending.value,
        "worker": as_text(ended.worker, 255),
        "error": as_text(why.error, 255),
        "message": as_text(why.message, 10_000),
        "traceback": as_text(why.traceback, 100_000),
    }
    db.unanswered.execute(RECORD, values, after=ended.after)
    if ended.attempt > options().ATTEMPTS_KEPT:
        omit(db, ended.task_id, options().ATTEMPTS_KEPT)


def omit(db: Session, task_id: int, keep: int) -> None:
    """Delete all but the first and the last ``keep`` attempts of a task; note how many are gone."""
    first = keep // 2
    values = {"task_id": task_id, "first": first}
    rows = db.rows(AFTER_FIRST, values)
    gone, left = rows[: first - keep], rows[first - keep :]
    if gone:
        values = {"omitted": sum(1 + omitted for _id, omitted in gone) + left[0][1]}
        for statement in OMIT:
            ids = [id_ for id_, _omitted in gone]
            db.execute(statement, {**values, "next": left[0][0]}, ids=ids)


def expire(db: Session, accounts: Accounts, lease: Lease) -> None:
    """End a task that was taken too late to be run."""
    add_dead_letters(db, [EndedAttempt.of(lease)], Outcome.EXPIRED, EXPIRED)
    accounts.end(lease, None)
    announce(signals.task_expired, [lease], using=lease.using)


def leave(
    db: Session,
    ids: Collection[int],
    ending: LastEnding,
    *,
    wait: float | None = None,
    opens: Wait | None = None,
) -> None:
    """
    Take tasks from their holder, as their attempts have ended.

    They are due after so many seconds; with None the caller admits them. One that was
    released or has yielded keeps its place in line. One that ``opens`` a wait is due when that is
    over: it takes its place by that time, or by the present one where it waits for a signal.
    """
    if not ids:
        return
    changes = ['"holder" = NULL', '"charged" = NULL', f'"last_ending" = {ending.value}']
    if column := COUNTED.get(ending):
        changes.append(ONE_MORE.format(column=column, most=MOST_COUNTED))
    if wait is not None:
        keeps = ending in (LastEnding.RELEASED, LastEnding.YIELDED)
        changes += [SCHEDULE] if keeps else [SCHEDULE, PLACE_IN_LINE]
    values: dict[str, object] = {}
    if opens is not None:
        state, place = State.BLOCKED, PLACE_IN_LINE
        if opens.kind == Step.Kind.SLEEP:
            state, place = State.SCHEDULED, PLACE_IN_LINE.replace("{due}", "%(until)s")
        changes[-2:] = [f'"state" = {state.value}, "timer_at" = %(until)s', place]
        values["until"] = opens.until and db.dialect.parameter(opens.until)
    after = {} if wait is None else {"due": wait}
    statement = LEAVE.replace("{changes}", ", ".join(changes))
    db.unanswered.execute(statement, values, after=after, ids=sorted(ids))


def lock_tickets(db: Session, ids: Collection[int]) -> list[LockedTicket]:
    """Lock the tickets of tasks that have yet to end, in the order of their ids."""
    if not ids:
        return []
    return [LockedTicket(*row) for row in db.rows(TICKETS + db.dialect.lock_clause, ids=ids)]


def lose(db: Session, accounts: Accounts, tickets: Sequence[LockedTicket], loss: Loss) -> list[int]:
    """
    Take running tasks from a holder that is gone.

    Return those that may be tried again at once. A task that someone asked to cancel is cancelled.
    A task that has crashed waits from its second crash on, and fails after MAX_CRASHES: it may be
    what kills its processors. A task that has not crashed keeps its counts.
    """
    back: list[int] = []
    free: list[int] = []
    cancelled, failed = [], []
    for ticket in tickets:
        task_id = ticket.task_id
        has_crashed, took = task_id in loss.crashed, loss.seconds.get(task_id)
        held = EndedAttempt.of(ticket)
        accounts.lose(
            ticket.lane,
            untried=not has_crashed and took is None,
            charge=expected_cost(ticket.cost),
            seconds=took,
            reached=ticket.reached,
        )
        if has_crashed:
            crashes = min(ticket.crashes + 1, MOST_COUNTED)
            held = replace(held, crashes=crashes, worker=loss.worker)
            record(db, held, Attempt.Ending.LOST, loss.why)
        if ticket.cancel_requested:
            add_dead_letters(db, [held], Outcome.CANCELLED, CANCELLED)
            cancelled.append(task_id)
        elif not has_crashed:
            free.append(task_id)
        elif held.crashes >= options().MAX_CRASHES:
            add_dead_letters(db, [held], Outcome.FAILED, loss.why)
            failed.append(task_id)
        elif wait := wait_after_crash(held.crashes):
            leave(db, [task_id], LastEnding.LOST, wait=wait)
        else:
            back.append(task_id)
    leave(db, back, LastEnding.LOST)
    leave(db, free, LastEnding.GIVEN_BACK)
    lost = [ticket.task_id for ticket in tickets if ticket.task_id in loss.crashed]
    steps = (
        (signals.task_lost, lost),
        (signals.task_cancelled, cancelled),
        (signals.task_failed, failed),
    )
    announce_ids(db, steps)
    return back + free


def wait_after_crash(crashes: int) -> float:
    """
    Return the seconds until a task that has lost its processor so often is tried again.

    After its first crash there is no wait, since another task may have caused it.
    """
    if crashes <= 1:
        return 0.0
    first, longest = options().RETRY_WAIT, options().RETRY_WAIT_LIMIT
    return Exponential(first, longest).wait(crashes - 1)


# Close tasks whose handlers have returned.


@retry_transaction
def finish(
    completions: Sequence[Completion], *, using: str, worker: str = "", now: Now = None
) -> list[Completion]:
    """
    Close tasks in one transaction; return those that were refused.

    A task is refused that another attempt holds by now, or that someone has ended. A task that
    this attempt has finished already is not refused: a commit whose answer was lost may be
    repeated.
    """
    with in_transaction(using, now=now) as db:
        accounts = Accounts()
        refused = close(db, accounts, completions, worker=worker)
        accounts.write(db)
    return refused


def close(
    db: Session, accounts: Accounts, completions: Sequence[Completion], *, worker: str
) -> list[Completion]:
    each: dict[tuple[int, int], Completion] = {}
    for done in completions:
        each.setdefault((done.lease.task_id, done.lease.token), done)
    closed = db.dialect.finish(db.cursor, list(each.values()), worker, db.now)
    if followed := {fence[0]: by for fence, (by, _charged) in closed.items() if by}:
        note_ended(db, followed, finished=True)
    accounts.end_all(
        [(done.lease, done.ended - done.started) for fence, done in each.items() if fence in closed]
    )
    for fence, (_by, charged) in closed.items():
        if charged:
            accounts.correct(each[fence].lease, charged)
    missed = [done for fence, done in each.items() if fence not in closed]
    # Of two leases of one task the other one was refused, though the task is finished now.
    just_now = {task_id for task_id, _token in closed}
    return [
        done
        for done in missed
        if done.lease.task_id in just_now or ending_of(db, done.lease, worker) != Outcome.FINISHED
    ]
