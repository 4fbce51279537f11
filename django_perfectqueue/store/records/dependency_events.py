"""Append what is to be done about dependencies, in the transaction that makes it necessary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from django_perfectqueue.models import BatchMember, DependencyEvent, Outcome
from django_perfectqueue.models.batch import SEQUENCE

from ..database.transaction import Session, reading, retry_transaction, shared_operations
from ..values import Name, Now

NOTE = 'INSERT INTO "perfectqueue_dependencyevent" ("task_id", "kind") VALUES {rows}'
DELTA = """
INSERT INTO "perfectqueue_batchdelta" ("batch_id", "total", "finished", "dead") VALUES {rows}
"""
JOIN = 'INSERT INTO "perfectqueue_batchmember" ("task_id", "batch_id") VALUES {rows}'
PARENTS = """
SELECT DISTINCT "parent_id" FROM "perfectqueue_dependency"
WHERE "parent_id" IN ({ids}) AND "state" < 3
"""
# Of a task that has ended, as by force: whether it waits for its turn in its sequence.
EARLY = f"""EXISTS (
    SELECT 1 FROM "perfectqueue_dependency" AS "own"
    WHERE "own"."child_id" = "perfectqueue_task"."id" AND "own"."state" < 3
    AND "own"."if_failed" = {SEQUENCE}
)"""
ANY = """
SELECT (SELECT 1 FROM "perfectqueue_dependencyevent" LIMIT 1),
    (SELECT 1 FROM "perfectqueue_batchdelta" LIMIT 1),
    (SELECT 1 FROM "perfectqueue_debouncedsubmit" LIMIT 1)
"""

# What acts on Work, called with it and ``using`` after the commit of who has appended some.
followers: list[Callable[..., int]] = []


@dataclass(slots=True)
class Work:
    """
    Whether events were appended, of which batches counts were, and of which queues and keys
    submits that are to be merged; None is of any.
    """

    events: bool = False
    batches: set[int] | None = field(default_factory=set)
    debounced: set[Name] | None = field(default_factory=set)

    def add(self, other: Work) -> None:
        self.events |= other.events
        if self.batches is not None:
            self.batches = None if other.batches is None else self.batches | other.batches
        if self.debounced is not None:
            self.debounced = None if other.debounced is None else self.debounced | other.debounced


# The connections by which events are acted on now, and what was appended since.
acting: WeakKeyDictionary[BaseDatabaseWrapper, Work] = WeakKeyDictionary()


@dataclass(slots=True)
class MemberCounts:
    """What is to be added to the counts of a batch."""

    total: int = 0
    finished: int = 0
    dead: int = 0


def note_ended(db: Session, followed: Mapping[int, int], *, finished: bool = False) -> None:
    """
    Append that tasks have ended that are followed as their tickets say; nothing else is locked.
    """
    note(db, ended=[task_id for task_id, by in followed.items() if by % 2])
    batches = Counter(by // 2 for by in followed.values() if by > 1)
    each = {
        batch: MemberCounts(finished=count) if finished else MemberCounts(dead=count)
        for batch, count in batches.items()
    }
    note_counts(db, each)


def note_counts(db: Session, changes: Mapping[int, MemberCounts]) -> None:
    """Append changes of batches' counts."""
    if not changes:
        return
    rows = ", ".join(
        f"({int(batch)}, {one.total}, {one.finished}, {one.dead})" for batch, one in changes.items()
    )
    db.unanswered.execute(DELTA, rows=rows)
    follow_later(db, Work(batches=set(changes)))


def join(db: Session, batch: int, ids: Collection[int], change: MemberCounts) -> None:
    """
    Make tasks members of a batch, of whose counts this is to be changed, too.

    They were stored in this transaction, as followed by it.
    """
    rows = ", ".join(f"({task_id}, {batch})" for task_id in sorted(ids))
    db.execute(JOIN, rows=rows)
    change.total += len(ids)
    note_counts(db, {batch: change})


def counts_without(db: Session, ids: Collection[int]) -> dict[int, MemberCounts]:
    """
    Return how the counts of batches change where these tasks are forgotten.

    The tasks are locked: nobody ends one or puts it back before it is gone.
    """
    changes: dict[int, MemberCounts] = {}
    members = BatchMember.objects.using(db.using).select_for_update()
    leaving = members.filter(pk__in=ids).order_by("pk").values_list("batch_id", "task__outcome")
    for batch, outcome in leaving:
        change = changes.setdefault(batch, MemberCounts())
        change.total -= 1
        if outcome == Outcome.FINISHED:
            change.finished -= 1
        elif outcome:
            change.dead -= 1
    return changes


def note(db: Session, *, added: Iterable[int] = (), ended: Iterable[int] = ()) -> None:
    """
    Append that the dependencies of these children are to be looked at, and those on these parents:
    tasks, or batches by minus their ids.
    """
    kinds = DependencyEvent.Kind
    rows = [f"({int(id_)}, {kinds.ADDED.value})" for id_ in added]
    rows += [f"({int(id_)}, {kinds.ENDED.value})" for id_ in ended]
    if rows:
        db.unanswered.execute(NOTE, rows=", ".join(rows))
        follow_later(db, Work(events=True))


def note_gone(db: Session, ids: Collection[int]) -> None:
    """Append that these parents were deleted, of those for which others wait."""
    waited_for = db.rows(PARENTS + db.dialect.current_clause(db.cursor), ids=ids)
    note(db, ended=[id_ for (id_,) in waited_for])


def follow_later(db: Session, work: Work) -> None:
    """Act on what was appended once it is committed; who acts on some already looks again."""
    connection = db.cursor.db
    if connection in acting:
        acting[connection].add(work)
        return
    if not (connection.in_atomic_block or connection.autocommit):
        return  # Django does not say when such a transaction commits: the sweep finds it.
    last = connection.run_on_commit[-1:]
    if last and last[0][0] == set(connection.savepoint_ids) and isinstance(last[0][1], Follow):
        last[0][1].work.add(work)
    else:
        connection.on_commit(Follow(connection.alias, work), robust=True)


@dataclass(slots=True)
class Follow:
    """Acts on what was appended to a database, after a commit."""

    using: str
    work: Work

    def __call__(self) -> None:
        act(self.work, using=self.using)


def will_follow(connection: BaseDatabaseWrapper) -> bool:
    """Return whether this transaction has ended tasks for which others wait."""
    hooks = (hook[1] for hook in connection.run_on_commit)
    return any(isinstance(hook, Follow) and hook.work.events for hook in hooks)


def follow(*, using: str, now: Now = None) -> int:
    """Act on the events and counts that are there, if any; return how many."""
    everything = Work(events=True, batches=None, debounced=None)
    return act(everything, using=using, now=now) if are_some(using=using) else 0


@retry_transaction
def are_some(*, using: str) -> bool:
    with reading(using) as db:
        return any(db.execute(ANY).fetchone())


def act(work: Work, *, using: str, now: Now = None) -> int:
    with shared_operations():
        return sum(follower(work, using=using, now=now) for follower in followers)


def follow_uncommitted(*, using: str) -> int:
    """Do what follow() does for a commit that may never come, as in a TestCase."""
    connection: BaseDatabaseWrapper = connections[using]
    hooks = connection.run_on_commit if connection.in_atomic_block else ()
    return follow(using=using) if any(isinstance(hook[1], Follow) for hook in hooks) else 0
