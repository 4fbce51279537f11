"""
Merge the submits of one key that come within a time of one another into one run.

A submit appends a row, and nobody waits for it until it commits. After the commit its program,
or else a sweep, locks the ticket of the run that waits, or stores one under the key that is next;
then it moves all rows of the key that are committed by then into that run.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.db import transaction

from django_perfectqueue.exceptions import InvalidTaskError

from ..database.transaction import REPEATS, Session, in_transaction, reading, retry_transaction
from ..notify.ring import notify_workers
from ..records.dependency_events import Work, follow_later, followers
from ..records.journal import tag_fresh
from ..values import Debounce, Name, Now, Submission, Unique
from .submit import refuse_too_long, submit, until
from .unique import Holder, look

logger = logging.getLogger("django_perfectqueue.queue")

MOST = 500
# All that a submit says of a run, but for what is its own.
OWN = {"queue", "key", "run_at", "expires_at", "expected_at", "after", "if_failed", "followed"}
TERMS = [name for name in Submission._fields if name not in {*OWN, "unique"}]

APPEND = """
INSERT INTO "perfectqueue_debouncedsubmit"
    ("queue", "key", "at", "wait", "at_most", "leading", "terms")
VALUES (%(queue)s, %(key)s, {now}, %(wait)s, %(at_most)s, %(leading)s, %(terms)s)
"""
NAMED = 'SELECT DISTINCT "queue", "key" FROM "perfectqueue_debouncedsubmit" LIMIT %(limit)s'
GIVEN = """
SELECT "id", "at", "wait", "at_most", "leading", "terms" FROM "perfectqueue_debouncedsubmit"
WHERE "queue" = %(queue)s AND "key" = %(key)s ORDER BY "id" LIMIT %(limit)s
"""
LOCK = 'SELECT "task_id" FROM "perfectqueue_ticket" WHERE "task_id" = %(id)s AND "attempt" = 0'
# Nothing is merged into a run that begins at once: it is due when it is submitted.
FOUND = """
SELECT "created_at", "merged" IS NOT NULL AND "run_at" > "created_at" FROM "perfectqueue_task"
WHERE "id" = %(id)s
"""
MERGE = """
UPDATE "perfectqueue_task" SET "data" = %(payload)s, "context" = %(context)s,
    "created_at" = %(created_at)s, "run_at" = %(run_at)s,
    "merged" = COALESCE("merged", 0) + %(count)s
WHERE "id" = %(id)s
"""
# One that is due, and waits for a processor, keeps its place.
DELAY = """
UPDATE "perfectqueue_ticket" SET "run_at" = %(run_at)s, "timer_at" = %(run_at)s, "state" = 1
WHERE "task_id" = %(id)s AND ("state" <> 0 OR %(run_at)s > {now})
"""


class Given(NamedTuple):
    """A submit that waits to be merged."""

    id: int
    at: datetime
    wait: float
    at_most: float | None
    leading: bool
    terms: str

    def due(self, first: datetime) -> datetime:
        """Return when a run is due whose first submit was then, and whose last is this."""
        due = self.at + timedelta(seconds=self.wait)
        return due if self.at_most is None else min(due, first + timedelta(seconds=self.at_most))

    def submission(self, queue: str, key: str, *, at_once: bool = False) -> Submission:
        """Return the task; raise InvalidTaskError where another version has written this."""
        run_at = None if at_once else timedelta(seconds=self.wait)
        try:
            terms = json.loads(self.terms)
            lists: dict[str, Any] = {name: tuple(terms.pop(name)) for name in ("limits", "tags")}
            return Submission(queue=queue, key=key, run_at=run_at, **lists, **terms)
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise InvalidTaskError(
                f"Submit {self.id} can't be read: {type(error).__name__}."
            ) from error


@retry_transaction
def submit_debounced(tasks: Sequence[Submission], *, using: str, now: Now) -> None:
    """
    Append tasks that are to be merged, in the caller's transaction; after its commit they are.

    Raise InvalidTaskError where the server takes no statement with what is in one.
    """
    with in_transaction(using, now=now) as db:
        for task in tasks:
            if isinstance(task.unique, Debounce):
                terms = json.dumps({name: getattr(task, name) for name in TERMS})
                refuse_too_long(db, task.key, terms)
                values = {"queue": task.queue, "key": task.key, "terms": terms}
                db.execute(APPEND, {**values, **task.unique._asdict()})
        follow_later(db, Work(debounced={(task.queue, task.key) for task in tasks}))


def merge_debounced(work: Work, *, using: str, now: Now = None) -> int:
    """Merge what is appended and committed; return how many names were looked at."""
    names: Collection[Name] | None = work.debounced
    if names is None:
        with reading(using) as db:
            names = [(queue, key) for queue, key in db.rows(NAMED, {"limit": MOST})]
    for queue, key in names:
        try:
            # A sweep merges what is left.
            for _repeat in range(REPEATS):
                if not merge_some(queue, key, using=using, now=now):
                    break
        except InvalidTaskError as error:
            # They stay for a program that can read them; others are merged.
            logger.error("Submits can't be merged. queue=%s key=%s error=%s", queue, key, error)
    return len(names)


followers.append(merge_debounced)


@retry_transaction
def merge_some(queue: str, key: str, *, using: str, now: Now) -> bool:
    """Merge submits of a key into one run; return whether some may be left."""
    with in_transaction(using, now=now, apart=True) as db:
        if not (given := waiting(db, queue, key)):
            return False
        first, rows = given[0], look(db, {(queue, key): Unique()}, {})
        newest = Holder(*rows[-1][1:]) if rows else None
        created_at, is_open = (None, False) if newest is None else lock(db, newest)
        # None begins at once while another is there, or so soon after the first of another.
        quiet = created_at is None or first.at >= created_at + timedelta(seconds=first.wait)
        is_leading = first.leading and quiet and (newest is None or newest.attempt is None)
        if newest and is_open:
            task_id = newest.id
        else:
            task = first.submission(queue, newest.next_key if newest else key, at_once=is_leading)
            if not (fresh := submit([task], using=using, now=now)):
                return True
            tag_fresh([task], fresh, using=using)
            [task_id], created_at = fresh.values(), None
        # The run is locked: what another has merged meanwhile is gone, and nobody merges more.
        if not (given := waiting(db, queue, key)):
            transaction.set_rollback(True, using=using)
            return False
        given = given[:1] if is_leading else given
        created_at = created_at or given[0].at
        run_at = created_at if is_leading else given[-1].due(created_at)
        last = given[-1].submission(queue, key)
        times = {"created_at": db.dialect.parameter(created_at)}
        times["run_at"] = db.dialect.parameter(run_at)
        words = {"payload": last.payload, "context": last.context, "count": len(given)}
        db.execute(MERGE, {"id": task_id, **times, **words})
        if not is_leading:
            db.execute(DELAY, {"id": task_id, **times})
        db.dialect.delete(db.cursor, "perfectqueue_debouncedsubmit", [one.id for one in given])
        notify_workers(queue, using=using, delay=until(run_at, now))
    # A program that commits one later merges it.
    return is_leading or len(given) == MOST


def waiting(db: Session, queue: str, key: str) -> list[Given]:
    """Return the submits of a key, the oldest first."""
    rows = db.rows(GIVEN, {"queue": queue, "key": key, "limit": MOST})
    return [Given(row[0], db.dialect.moment(row[1]), *row[2:]) for row in rows]


def lock(db: Session, newest: Holder) -> tuple[datetime | None, bool]:
    """
    Lock a run if it has yet to begin; return when it was first submitted, and whether it is
    locked and may be merged into.
    """
    waits = newest.attempt == 0 and db.rows(LOCK + db.dialect.lock_clause, {"id": newest.id})
    row = db.execute(FOUND, {"id": newest.id}).fetchone()
    return (db.dialect.moment(row[0]), bool(waits and row[1])) if row else (None, False)
