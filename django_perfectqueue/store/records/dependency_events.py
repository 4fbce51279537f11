"""Append what is to be done about dependencies, in the transaction that makes it necessary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from django_perfectqueue.models import DependencyEvent, Outcome

from ..database.session import Session
from ..database.transaction import calls_of_others, reading, retry_transaction

NOTE = 'INSERT INTO "perfectqueue_dependencyevent" ("task_id", "kind") VALUES {rows}'
DELTA = """
INSERT INTO "perfectqueue_batchdelta" ("batch_id", "total", "finished", "dead") VALUES {rows}
"""
JOIN = 'INSERT INTO "perfectqueue_batchmember" ("task_id", "batch_id") VALUES {rows}'
MARK = """
UPDATE "perfectqueue_ticket"{hint} SET "followed" = COALESCE("followed", 0) + %(mark)s
WHERE "task_id" IN ({ids})
"""
LEAVING = """
SELECT "member"."batch_id", "task"."outcome" FROM "perfectqueue_batchmember" AS "member"
JOIN "perfectqueue_task" AS "task" ON "task"."id" = "member"."task_id"
WHERE "member"."task_id" IN ({ids}) ORDER BY "member"."task_id"
"""
ANY = """
SELECT (SELECT 1 FROM "perfectqueue_dependencyevent" LIMIT 1),
    (SELECT 1 FROM "perfectqueue_batchdelta" LIMIT 1)
"""

CHILDREN_ONLY = 1
"""What a ticket says of a task for which others wait, and that is in no batch."""

event_followers: list[Callable[..., int]] = []
"""What is called, with ``using``, after the commit of a transaction that appended events."""

count_followers: list[Callable[..., int]] = []
"""
What is called after the commit of a transaction that changed counts, with ``using`` and the ids
of the batches; with None for all that have changes.
"""


@dataclass(slots=True)
class Counts:
    """What is to be added to the counts of a batch."""

    total: int = 0
    finished: int = 0
    dead: int = 0


def note_ended(db: Session, followed: Mapping[int, int], *, finished: bool = False) -> None:
    """
    Append that tasks have ended that are followed as their tickets say; nothing else is locked.
    """
    parents = [task_id for task_id, by in followed.items() if by % 2]
    if parents:
        note(db, parents, DependencyEvent.Kind.ENDED)
    batches = Counter(by // 2 for by in followed.values() if by > 1)
    if batches:
        each = {
            batch: Counts(finished=count) if finished else Counts(dead=count)
            for batch, count in batches.items()
        }
        note_counts(db, each)


def note_counts(db: Session, changes: Mapping[int, Counts]) -> None:
    """Append changes of batches' counts."""
    if not changes:
        return
    rows = ", ".join(
        f"({int(batch)}, {one.total}, {one.finished}, {one.dead})" for batch, one in changes.items()
    )
    db.execute(DELTA.replace("{rows}", rows))
    follow_later(db.cursor.db, batches=changes.keys())


def join(db: Session, batch: int, ids: Collection[int], change: Counts) -> None:
    """Make live tasks members of a batch, of whose counts this is to be changed, too."""
    rows = ", ".join(f"({task_id}, {batch})" for task_id in sorted(ids))
    db.execute(JOIN.replace("{rows}", rows))
    mark = MARK.replace("{hint}", db.dialect.by_primary_key)
    db.execute(mark, {"mark": 2 * batch}, ids=ids)
    change.total += len(ids)
    note_counts(db, {batch: change})


def counts_without(db: Session, ids: Collection[int]) -> dict[int, Counts]:
    """
    Return how the counts of batches change where these tasks are forgotten.

    The tasks are locked: nobody ends one or puts it back before it is gone.
    """
    changes: dict[int, Counts] = {}
    for batch, outcome in db.rows(LEAVING + db.dialect.lock_clause(), ids=ids):
        change = changes.setdefault(batch, Counts())
        change.total -= 1
        if outcome == Outcome.FINISHED:
            change.finished -= 1
        elif outcome:
            change.dead -= 1
    return changes


def note_added(db: Session, ids: Iterable[int]) -> None:
    """Append that the dependencies of tasks are to be looked at."""
    note(db, ids, DependencyEvent.Kind.ADDED)


def note(db: Session, ids: Iterable[int], kind: DependencyEvent.Kind) -> None:
    rows = ", ".join(f"({int(task_id)}, {kind.value})" for task_id in ids)
    db.execute(NOTE.replace("{rows}", rows))
    follow_later(db.cursor.db, events=True)


def follow_later(
    connection: BaseDatabaseWrapper, *, events: bool = False, batches: Collection[int] = ()
) -> None:
    """Act on events, and on the counts of these batches, once they are committed."""
    if not (connection.in_atomic_block or connection.autocommit):
        return  # Django does not say when such a transaction commits: the sweep finds it.
    last = connection.run_on_commit[-1:]
    if last and last[0][0] == set(connection.savepoint_ids) and isinstance(last[0][1], Follow):
        last[0][1].events |= events
        last[0][1].batches.update(batches)
    else:
        act = Follow(connection.alias, events, set(batches))
        connection.on_commit(act, robust=True)


@dataclass(slots=True)
class Follow:
    """Acts on the events of a database and the counts of these batches, after a commit."""

    using: str
    events: bool
    batches: set[int]

    def __call__(self) -> None:
        with calls_of_others():
            if self.events:
                act_on_events(using=self.using)
            for act in count_followers if self.batches else ():
                act(self.batches, using=self.using)


def follow(*, using: str, now: datetime | None = None) -> int:
    """Act on the events and counts that are there, if any; return how many."""
    if not are_some(using=using):
        return 0
    with calls_of_others():
        counts = sum(act(None, using=using, now=now) for act in count_followers)
        return act_on_events(using=using, now=now) + counts


@retry_transaction
def are_some(*, using: str) -> bool:
    with reading(using) as db:
        return any(db.execute(ANY).fetchone())


def act_on_events(*, using: str, now: datetime | None = None) -> int:
    return sum(act(using=using, now=now) for act in event_followers)


def follow_uncommitted(*, using: str) -> int:
    """Do so where the commit may never come, as in a TestCase; return how many."""
    connection: BaseDatabaseWrapper = connections[using]
    hooks = connection.run_on_commit if connection.in_atomic_block else ()
    return follow(using=using) if any(isinstance(hook[1], Follow) for hook in hooks) else 0
