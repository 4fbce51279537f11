"""What anyone may do with a task, held or not, by its id: now, or after the commit."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Concatenate, NamedTuple, ParamSpec

from django.db import connections, transaction
from django.db.models import Exists, OuterRef, Q

from django_perfectqueue import signals
from django_perfectqueue.exceptions import (
    AlreadyFinishedError,
    NotFoundError,
    NotSupportedError,
    TaskError,
)
from django_perfectqueue.models import JOINED, Dependency, Outcome, State, Task, TaskQuerySet
from django_perfectqueue.models.batch import SEQUENCE
from django_perfectqueue.payload.codecs import part

from ..arithmetic.rate_limit import split
from ..database.dialects.base import TICKET_COLUMNS, Row, cases
from ..database.transaction import (
    Session,
    Tries,
    in_transaction,
    reading,
    retry_remembering_commits,
)
from ..lanes.accounts import Accounts, case_of
from ..lanes.wake import wake_sleeping
from ..limits.meters import lane_behind
from ..notify.ring import announce_ids, find_all, notify_holder, notify_workers
from ..records.dependency_events import MemberCounts, note, note_counts, note_ended
from ..values import Now
from .close import CANCELLED, PLACE_IN_LINE, EndedAttempt, add_dead_letters, lock_tickets
from .unique import later_keys

CHUNK = 1_000
UNMET = Q(state__lt=Dependency.State.MET)
FLAG = """
UPDATE "perfectqueue_ticket"{hint} SET "cancel_requested" = TRUE WHERE "task_id" IN ({ids})
"""
FORCE = """
UPDATE "perfectqueue_task"
SET "outcome" = 'finished', "attempt" = CASE "id" {attempts} END, "ended_at" = {now}
WHERE "id" IN ({ids})
"""
MAKE_DUE = f"""
UPDATE "perfectqueue_ticket" SET "timer_at" = {{now}}, {PLACE_IN_LINE.format(due="{now}")}
WHERE "task_id" IN ({{ids}})
"""
DEAD = """
SELECT "id", "queue", "type", "user", "limits", "key", "context" FROM "perfectqueue_task"
WHERE "id" IN ({ids}) AND "outcome" NOT IN ('', 'finished') ORDER BY "id"
"""
# One that was never tried waits for its time again; a child does when it is released.
LATER = '"attempt" = 0 AND "run_at" > {now}'
REQUEUE = f"""
INSERT INTO "perfectqueue_ticket" ({TICKET_COLUMNS})
SELECT "id", CASE "id" {{lanes}} END,
    CASE WHEN "id" IN ({{children}}) THEN 3 WHEN {LATER} THEN 1 ELSE 0 END, -"priority",
    COALESCE("expected_at", CASE WHEN {LATER} THEN "run_at" ELSE {{now}} END),
    CASE WHEN "id" IN ({{children}}) THEN NULL WHEN {LATER} THEN "run_at" END,
    "attempt", 0, 0, FALSE, {{followed}}
FROM "perfectqueue_task" WHERE "id" IN ({{ids}})
"""


def find(queue: str, key: str, *, using: str) -> int:
    """
    Return a task's id.

    Raise NotFoundError when the queue has no such key.
    """
    ids = find_all(queue, [key], using=using)
    if key not in ids:
        raise NotFoundError(f"Queue '{queue}' has no task with the key '{key}'.")
    return ids[key]


@retry_remembering_commits
def force_finish(tries: Tries, ids: Collection[int], *, using: str, now: Now = None) -> set[int]:
    """
    Close tasks as finished, also those that are held: their holders' next writes are refused.

    Return which; not those that had ended.
    """
    with in_transaction(using, now=now) as db:
        tickets = lock_tickets(db, ids)
        done = [ticket.task_id for ticket in tickets]
        running = [ticket for ticket in tickets if ticket.state == State.RUNNING]
        if done:
            if followed := db.dialect.remove(db.cursor, done):
                note_ended(db, followed, finished=True)
            attempts = cases((ticket.task_id, ticket.attempt) for ticket in tickets)
            db.execute(FORCE, ids=done, attempts=attempts)
        if running:
            accounts = Accounts()
            for ticket in running:
                accounts.lose(ticket.lane, reached=ticket.reached)
            accounts.write(db)
        announce_ids(db, [(signals.task_finished, done)])
        before = done_before(
            db, tries, set(ids).difference(done), "outcome", Outcome.FINISHED.value
        )
        tries.append(done)
    if running:
        # Their lanes may have been full.
        notify_workers(using=using)
    for holder in {ticket.holder or 0 for ticket in running}:
        notify_holder(holder, using=using)
    return before.union(done)


def done_before(
    db: Session, tries: Tries, ids: Collection[int], column: str, value: object
) -> set[int]:
    """Return those of ``ids`` in which an earlier try of this call has written a value."""
    if not (maybe := tried(tries, ids)):
        return set()
    rows = TaskQuerySet(Task, using=db.using).filter(pk__in=maybe, **{column: value})
    return set(rows.values_list("pk", flat=True))


def tried(tries: Tries, ids: Collection[int]) -> set[int]:
    """Return which of these tasks earlier tries of this call may have changed."""
    return {task_id for note in tries for task_id in note}.intersection(ids)


@retry_remembering_commits
def cancel_now(
    tries: Tries, ids: Collection[int], *, using: str, now: Now = None
) -> dict[int, bool]:
    """
    Cancel tasks that have yet to run, and ask the holders of others to stop, in one
    transaction; tasks that wait for them stay.

    Return for each whether it is cancelled already; tasks that have ended are left out.
    """
    with in_transaction(using, now=now) as db:
        tickets = lock_tickets(db, ids)
        done = {ticket.task_id: ticket.state != State.RUNNING for ticket in tickets}
        running = [ticket for ticket in tickets if not done[ticket.task_id]]
        if running:
            db.execute(FLAG, ids=[ticket.task_id for ticket in running])
        for holder in {ticket.holder or 0 for ticket in running}:
            notify_holder(holder, using=using)
        over = [EndedAttempt.of(ticket) for ticket in tickets if done[ticket.task_id]]
        add_dead_letters(db, over, Outcome.CANCELLED, CANCELLED)
        ended = [one.task_id for one in over]
        announce_ids(db, [(signals.task_cancelled, ended)])
        left = set(ids).difference(done)
        before = done_before(db, tries, left, "outcome", Outcome.CANCELLED.value)
        done |= dict.fromkeys(before, True)
        tries.append(ended)
    return done


def cancel_each(ids: Sequence[int], *, using: str, now: Now = None) -> dict[int, bool]:
    """
    Do what cancel_now() does, a chunk at a time. In a transaction of the caller's that is done
    after the commit, and none is cancelled yet.
    """

    def act() -> dict[int, bool]:
        done: dict[int, bool] = {}
        for start in range(0, len(ids), CHUNK):
            done |= cancel_now(ids[start : start + CHUNK], using=using, now=now)
        return done

    return dict.fromkeys(ids, False) if is_put_off(act, using=using) else act()


@retry_remembering_commits
def retry(tries: Tries, ids: Collection[int], *, using: str, now: Now = None) -> set[int]:
    """
    Put failed, cancelled or expired tasks back in their lines, or where they were never tried on
    the clock while their time is to come; hasten those that wait for their time. Return which.

    Their counts of errors and crashes begin anew, and they expire no more.
    """
    with in_transaction(using, now=now) as db:
        done = set(retry_dead(db, ids))
        done |= make_due_now(db, set(ids) - done)
        announce_ids(db, [(signals.task_put_back, sorted(done))])
        # None was in its line, nor had it finished, when an earlier try put it there.
        done |= tried(tries, ids)
        tries.append(done)
    return done


def retry_dead(db: Session, ids: Collection[int]) -> dict[int, str]:
    """
    Put tasks that ended without finishing back; return those, each with its queue.

    Where one task of a key is to live, that is the last one: a submit looks at no other.
    """
    # Read under the lock: someone may have moved or put back one meanwhile.
    rows = db.rows(DEAD + db.dialect.change_clause, ids=ids)
    later = replaced(db, rows)
    back = {task_id: queue for task_id, queue, *_names in rows if task_id not in later}
    if not back:
        return {}
    TaskQuerySet(Task, using=db.using).filter(pk__in=back).update(
        outcome="", worker="", started_at=None, ended_at=None, expires_at=None
    )
    db.dialect.delete(db.cursor, "perfectqueue_deadletter", back, key="task_id")
    children, followed = family(db, back)
    lanes = [
        (task_id, lane_behind(queue, type_, user, split(limits), using=db.using))
        for task_id, queue, type_, user, limits, *_more in rows
        if task_id in back
    ]
    first = {lane: task_id for task_id, lane in lanes if task_id not in children}
    for queue in sorted(set(back.values())):
        own = {lane: task_id for lane, task_id in first.items() if back[task_id] == queue}
        notify_workers(queue, using=db.using, lanes=own, wake=wake_sleeping)
    of_lanes, by = cases(lanes), case_of(followed)
    db.execute(REQUEUE, ids=back, children=children, lanes=of_lanes, followed=by)
    links = Dependency.objects.using(db.using)
    # Its children wait for it anew. Written by id: by the parent it would wait for submitters.
    given_up = links.filter(parent_id__in=back, state=Dependency.State.FAILED)
    if ids := list(given_up.values_list("pk", flat=True)):
        links.filter(pk__in=ids).update(state=Dependency.State.AWAITED)
    if children:
        # What they wait for may end before this commit: that is looked at after it. A batch that
        # has ended looks at its callbacks again.
        closes = links.filter(UNMET, child_id__in=children, parent_id__lt=0)
        closes = closes.exclude(if_failed=SEQUENCE)
        note(db, added=children, ended=closes.values_list("parent_id", flat=True).distinct())
    return back


def replaced(db: Session, dead: Sequence[Row]) -> dict[int, str]:
    """Return by id the later keys of those dead tasks of whose key only the last is to live."""
    unique = {row[0]: (row[1], row[5]) for row in dead if part(row[6], "unique")}
    return later_keys(db, unique)


def family(db: Session, ids: Collection[int]) -> tuple[list[int], dict[int, int]]:
    """
    Return which dead tasks wait for others, and who follows each that is followed.

    Their rows are locked; in their batches they count as dead no longer.
    """
    children, followed, dead = [], {}, Counter[int]()
    links = Dependency.objects.filter(UNMET)
    # One that has joined others goes on, and joins them again.
    own = links.filter(child_id=OuterRef("pk")).exclude(if_failed=JOINED)
    others = links.filter(parent_id=OuterRef("pk"))
    rows = TaskQuerySet(Task, using=db.using).filter(pk__in=ids)
    facts = rows.values_list("pk", Exists(own), Exists(others), "membership__batch_id")
    for task_id, is_child, has_children, batch in facts:
        if is_child:
            children.append(task_id)
        if by := 2 * (batch or 0) + int(has_children):
            followed[task_id] = by
        if batch:
            dead[batch] -= 1
    if dead:
        note_counts(db, {batch: MemberCounts(dead=count) for batch, count in dead.items()})
    return children, followed


def make_due_now(db: Session, ids: Collection[int]) -> set[int]:
    """Make due those of these tasks that wait for their time; return which."""
    tickets = lock_tickets(db, ids)
    waiting = {ticket.task_id for ticket in tickets if ticket.state == State.SCHEDULED}
    if waiting:
        db.execute(MAKE_DUE, ids=waiting)
        notify_workers(using=db.using)
    return waiting


# Steer tasks after the commit of the caller's transaction, which then locks none of them.


P = ParamSpec("P")

logger = logging.getLogger("django_perfectqueue.queue")

# The verbs that are for tasks, too, which have ended without finishing.
OF_DEAD = ("retry", "revise")


class SeenTask(NamedTuple):
    """What refuse() looks at; ``state`` is None where it has no ticket."""

    key: str
    outcome: str
    state: int | None


def refuse(task: SeenTask, verb: str = "") -> None:
    """Raise AlreadyFinishedError or NotSupportedError where a verb is not for a task as it is."""
    if task.outcome and (verb not in OF_DEAD or task.outcome == Outcome.FINISHED):
        raise AlreadyFinishedError(f"Task '{task.key}' has ended: it is {task.outcome}.")
    if verb == "retry" and task.state not in (None, State.SCHEDULED):
        words = {known.value: known.name.lower() for known in State}
        word = words.get(task.state, "in no known state")
        raise NotSupportedError(f"Task '{task.key}' is {word} already.")
    if verb == "revise" and task.state == State.RUNNING:
        raise NotSupportedError(f"Task '{task.key}' is running: only its handler may change it.")


def steer(
    verb: Callable[Concatenate[Collection[int], P], Collection[int]],
    task_id: int,
    /,
    *args: P.args,
    **kwargs: P.kwargs,
) -> None:
    """
    Do a verb to one task; in a transaction of the caller's, after its commit.

    Locks that are held until that commit would hold up the worker that runs the task, and
    all tasks of its user. What can't succeed is refused at once: raise NotFoundError where the
    task is gone, AlreadyFinishedError or NotSupportedError where the verb is not for it, and
    what the verb raises.
    """
    using, name = str(kwargs["using"]), verb.__name__

    def act() -> None:
        if task_id not in verb([task_id], *args, **kwargs):
            look_at(task_id, name, using=using)
            raise AlreadyFinishedError(f"The task with the id {task_id} was changed meanwhile.")

    if is_in_block(connections[using]):
        look_at(task_id, name, using=using)
    if not is_put_off(act, using=using):
        act()


def look_at(task_id: int, verb: str = "", *, using: str) -> None:
    """
    Raise what refuse() raises for a task as it is now; NotFoundError, or NotSupportedError for a
    retry of one whose key a later one has.
    """
    with reading(using) as db:
        refuse(seen_task(db, task_id), verb)
        if verb == "retry" and (later := replaced(db, db.rows(DEAD, ids=[task_id]))):
            raise NotSupportedError(f"A later task has its key: retry '{later[task_id]}'.")


def seen_task(db: Session, task_id: int) -> SeenTask:
    """Return a task as it is now; raise NotFoundError when there is none."""
    rows = TaskQuerySet(Task, using=db.using).filter(pk=task_id)
    row = rows.values_list("key", "outcome", "ticket__state").first()
    if row is None:
        raise NotFoundError(f"There is no task with the id {task_id}.")
    return SeenTask(*row)


def is_put_off(act: Callable[[], object], *, using: str) -> bool:
    """Return whether a transaction of the caller's is open; make the call after its commit then."""
    is_open = is_in_block(connections[using])
    if is_open:
        transaction.on_commit(Steering(act), using=using, robust=True)
    return is_open


def is_in_block(connection: Any) -> bool:
    """
    Return whether an atomic block of the caller's is open.

    The blocks that Django's TestCase puts around a test never commit, so they do not count.
    """
    return any(not block._from_testcase for block in connection.atomic_blocks)


@dataclass(slots=True, eq=False)
class Steering:
    """A call that waits for the commit, and is made once."""

    act: Callable[[], object]
    is_done: bool = False

    def __call__(self) -> None:
        if self.is_done:
            return
        self.is_done = True
        try:
            self.act()
        except TaskError as error:
            logger.info("A task was not steered after the commit. %s", error)


def steer_waiting(*, using: str) -> None:
    """In a TestCase, whose own blocks never commit, make the calls that wait for the commit."""
    connection = connections[using]
    if not is_in_block(connection):
        for waiting in list(connection.run_on_commit):
            if isinstance(waiting[1], Steering):
                waiting[1]()
