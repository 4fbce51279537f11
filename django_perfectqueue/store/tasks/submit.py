"""Store tasks, in the caller's transaction."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import cast

from django.db import Error, IntegrityError, connections, transaction
from django.db.backends.utils import CursorWrapper as Cursor
from django.utils import timezone

from django_perfectqueue.exceptions import AlreadyExistsError, InvalidTaskError
from django_perfectqueue.signals import task_submitted

from ..database.dialects import dialect_for, dialect_of
from ..database.dialects.base import stored_row
from ..database.transaction import (
    LONG,
    PATIENCE,
    Session,
    Tries,
    in_transaction,
    reading,
    retry_remembering_commits,
    runs_in_callers,
)
from ..lanes.wake import wake_sleeping
from ..notify.ring import announce, message_of, notify_workers
from ..values import Chunk, Ids, Moment, Name, Now, Stored, Submission, new_token

Insert = Callable[[Cursor, Sequence[Submission], Now], Ids]

CHUNK = 1000
CHUNK_LETTERS = 4 * 1024 * 1024
# For so many seconds tasks that were sent ahead may wait for the next ones to be read.
LONGEST_AHEAD = 0.1

STORED = """
SELECT "task"."id" FROM "perfectqueue_task" AS "task"
LEFT JOIN "perfectqueue_ticket" AS "ticket" ON "ticket"."task_id" = "task"."id"
WHERE "task"."queue" = %(queue)s AND "task"."key" = %(key)s AND (
    ("ticket"."attempt" = 0 AND "ticket"."token" IN ({marks}))
    OR (
        COALESCE("ticket"."attempt", 1) > 0
        AND "task"."type" = %(type)s AND "task"."user" = %(user)s
        AND "task"."data" = %(data)s AND "task"."priority" = %(priority)s
        AND "task"."created_at" >= {since}
    )
)
"""
STORED_BEFORE = 'SELECT "queue", "key", "id" FROM "perfectqueue_task" WHERE "id" IN ({ids})'


def submit(submissions: Sequence[Submission], *, using: str, now: Now = None) -> Ids:
    """
    Store tasks; return the ids of those whose key was free, by queue and key.

    A key that is taken, in the database or earlier in the same batch, is passed over.
    Nothing is locked but the new rows. Once they are committed they are announced, and
    their workers notified.
    """
    connection = connections[using]
    alone = len(submissions) == 1 and dialect_for(connection).submits_alone(connection)
    if alone and now is None and not runs_in_callers(connection):
        return submit_alone(submissions[0], using=using)
    fresh = store_free(submissions, using=using, now=now)
    notify(submissions, fresh, using=using, now=now)
    return fresh


def submit_alone(task: Submission, *, using: str) -> Ids:
    """Store one task, and let its workers know, by one round trip."""
    wait = 0.0 if task.run_at is None else until(task.run_at, None)
    task_id, notified = store_alone(task, message_of(task.queue, wait), using=using)
    if task_id is None:
        return {}
    fresh = {(task.queue, task.key): task_id}
    if notified and task_submitted.receivers:
        announce(task_submitted, [task], using=using)
    elif not notified:
        notify([task], fresh, using=using, now=None)
    return fresh


def submit_all(submissions: Sequence[Submission], *, using: str, now: Now = None) -> Ids:
    """
    Store tasks, or none of them; return what submit() does.

    Raise AlreadyExistsError when one has a key that is taken.
    """
    # One task is stored or not: that needs no savepoint.
    if len(submissions) == 1:
        fresh = submit(submissions, using=using, now=now)
    elif len(fresh := store_all(submissions, using=using, now=now)) == len(submissions):
        notify(submissions, fresh, using=using, now=now)
    if len(fresh) < len(submissions):
        keys = {task.key for task in submissions if (task.queue, task.key) not in fresh}
        raise taken(submissions[0].queue, *keys)
    return fresh


def taken(queue: str, *keys: str) -> AlreadyExistsError:
    """Return the error for keys that a queue has, or for one that was given twice."""
    if not keys:
        return AlreadyExistsError(f"Queue '{queue}' was given a key twice in one batch.")
    if len(keys) == 1:
        return AlreadyExistsError(f"Queue '{queue}' already has a task with the key '{keys[0]}'.")
    some = ", ".join(sorted(keys)[:5])
    return AlreadyExistsError(f"Queue '{queue}' already has tasks with these keys: {some}.")


def notify(submissions: Sequence[Submission], fresh: Ids, *, using: str, now: Now) -> None:
    """
    Announce the tasks that were stored, and let their workers know when the first is due.

    No retry repeats it: a receiver is called once, and an eager task runs once.
    """
    stored = submissions
    if len(fresh) < len(submissions):
        stored = [task for task in submissions if (task.queue, task.key) in fresh]
    if task_submitted.receivers:
        announce(task_submitted, stored, using=using)
    soonest: dict[str, float] = {}
    lanes: dict[str, dict[int, int]] = {}
    awake = fresh.awake if isinstance(fresh, Stored) else ()
    for task in stored:
        # One that waits for others wakes its lane when it is released.
        if not task.after:
            wait = 0.0 if task.run_at is None else until(task.run_at, now)
            soonest[task.queue] = min(soonest.get(task.queue, wait), wait)
            if task.run_at is None and task.lane not in awake:
                first = lanes.setdefault(task.queue, {})
                first.setdefault(task.lane, fresh[task.queue, task.key])
    for queue, wait in soonest.items():
        notify_workers(queue, using=using, delay=wait, lanes=lanes.get(queue), wake=wake_sleeping)


def until(starts: Moment, now: Now) -> float:
    """Return in how many seconds a time comes, or 0 where it has."""
    wait = starts if isinstance(starts, timedelta) else starts - (now or timezone.now())
    return max(0.0, wait.total_seconds())


@retry_remembering_commits
def store_free(tries: Tries, submissions: Sequence[Submission], *, using: str, now: Now) -> Ids:
    with in_transaction(using, now=now) as db:
        return store_some(db, db.dialect.submit, tries, submissions)


@retry_remembering_commits
def store_alone(
    tries: Tries, task: Submission, message: str, *, using: str
) -> tuple[int | None, bool]:
    """
    Store a task by what commits itself; return its id, and whether the workers are notified.

    Its id is not known before the commit: so its ticket carries a token until someone takes it.
    """
    token, known = new_token(), list(tries)
    with reading(using) as db:
        refuse_too_long(db, task.key, task.payload)
        tries.append(token)
        try:
            task_id, notified = db.dialect.submit_alone(
                db.cursor, task, token=token, message=message
            )
        except Error as error:
            # If the connection is good, maybe only what comes after the commit has failed.
            if db.dialect.lost(error) or not (task_id := by_token(db, task, [token])):
                raise
            notified = False
        if task_id is None and known:
            task_id = by_token(db, task, known)
    return task_id, notified


def by_token(db: Session, task: Submission, tokens: list[int]) -> int | None:
    """
    Return the id of the task of this key if an earlier try has stored it.

    One that has been taken since is known by its youth, and by what is in it.
    """
    since = {"since": -2 * PATIENCE}
    row = db.execute(STORED, stored_row(task), after=since, marks=tokens).fetchone()
    return row[0] if row else None


def send_ahead(tasks: Chunk, *, using: str, now: Now) -> bool:
    """
    Have the server begin with a full list of tasks, which must go to submit_all() next; return
    whether it has.
    """
    dialect = dialect_of(using)
    # A shorter list is the last one: nothing could be prepared meanwhile.
    if len(tasks) == CHUNK and not any(task.after or task.tags or task.unique for task in tasks):
        # What fails here is sent once more by submit_all(), with its patience.
        with suppress(Error):
            if ahead := dialect.cursor_ahead(connections[using], tasks):
                dialect.submit_free(ahead, tasks, now)
    return tasks.ahead is not None


@retry_remembering_commits
def store_all(tries: Tries, submissions: Sequence[Submission], *, using: str, now: Now) -> Ids:
    def store(insert: Insert) -> Ids:
        with in_transaction(using, now=now, apart=True) as db:
            fresh = store_some(db, insert, tries, submissions)
            if len(fresh) < len(submissions):
                transaction.set_rollback(True, using=using)
            return fresh

    dialect = dialect_of(using)
    # Most often all keys are free; an insert that does not look at each costs less.
    with suppress(IntegrityError):
        if isinstance(submissions, Chunk) and (ahead := submissions.ahead):
            submissions.ahead = None
            return cast("Ids", ahead.arrival(tries))
        if not tries:
            return store(dialect.submit_free)
    return store(dialect.submit)


def store_some(db: Session, insert: Insert, tries: Tries, submissions: Sequence[Submission]) -> Ids:
    first: dict[Name, Submission] = {}
    for task in submissions:
        if len(task.payload) > LONG:
            refuse_too_long(db, task.key, task.payload)
        first.setdefault((task.queue, task.key), task)
    fresh = insert(db.cursor, list(first.values()), db.now) if first else {}
    if tries:
        # By now an earlier try has committed, or not: the inserting has waited for it.
        fresh |= stored_before(db, tries)
    tries.append(fresh)
    return fresh


def refuse_too_long(db: Session, key: str, payload: str) -> None:
    """Raise InvalidTaskError where the server takes no statement with a task's payload."""
    if len(payload) > LONG and (why := db.dialect.too_long(db.cursor, payload)):
        raise InvalidTaskError(f"The data of task '{key}' can't be stored: {why}.")


def stored_before(db: Session, tries: Tries) -> Ids:
    """Return what earlier tries have stored, by ids that were drawn for these alone."""
    if not tries:
        return {}
    ids = {id_ for note in tries for id_ in note.values()}
    return {(queue, key): id_ for queue, key, id_ in db.rows(STORED_BEFORE, ids=ids)}


def in_chunks(submissions: Iterable[Submission]) -> Iterator[Chunk]:
    """
    Yield lists of at most CHUNK tasks, reading no further than needed.

    A list ends sooner once its payloads are longer than what a server takes as one
    statement: MariaDB closes the connection at 16 MB. The list before is committed meanwhile
    where the next one comes slowly.
    """
    chunk, total, before = Chunk(), 0, Chunk()
    for task in submissions:
        if before.ahead and time.monotonic() > before.ahead.sent + LONGEST_AHEAD:
            before.ahead.arrive()
        chunk.append(task)
        total += len(task.payload)
        if len(chunk) == CHUNK or total >= CHUNK_LETTERS:
            yield chunk
            chunk, total, before = Chunk(), 0, chunk
    if chunk:
        yield chunk
