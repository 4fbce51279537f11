"""What waits for what and is cancelled with it, batches in batches, places, where parents stand."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Set
from itertools import islice
from typing import NamedTuple

from django.db import connections

from django_perfectqueue.exceptions import InvalidTaskError, NotSupportedError
from django_perfectqueue.models import Dependency, Outcome
from django_perfectqueue.models.batch import SEQUENCE, SEQUENCES

from ..database.transaction import Session, reading, retry_transaction
from ..records.dependency_events import EARLY
from ..tasks.steer import cancel_each, is_in_block, look_at, seen_task
from ..values import Now

ROWS = 1_000
# A child, a parent, how it waits, and the state.
Edge = tuple[int, int, int, int]

LINK = """
INSERT INTO "perfectqueue_dependency" ("child_id", "parent_id", "if_failed", "state") VALUES {rows}
"""
TURN = """
INSERT INTO "perfectqueue_dependencyevent" ("id", "task_id", "kind") VALUES (%(turn)s, 0, 0)
"""
# What is found step by step, as "found". MySQL stops with an error at the 1,000th level without the
# hint, which others read past.
WALK = """
WITH RECURSIVE "found" ("id") AS ({steps})
SELECT /*+ SET_VAR(cte_max_recursion_depth = 4294967295) */ "id" FROM "found"
"""
# Those that wait for their turns in a sequence are not cancelled with the one before; a task that
# joins another goes on when that is cancelled.
LINKED = f"""
SELECT "{{to}}" FROM "perfectqueue_dependency"
WHERE "{{of}}" IN ({{ids}}) AND "state" < 3 AND "if_failed" < {SEQUENCE}
UNION
SELECT "next"."{{to}}" FROM "found" JOIN "perfectqueue_dependency" AS "next"
ON "next"."{{of}}" = "found"."id" AND "next"."state" < 3 AND "next"."if_failed" < {SEQUENCE}
"""
# A batch, by minus its id, waits for its tasks, and for the batches in it.
WAITING = """
SELECT "id" FROM "perfectqueue_task" WHERE "id" = %(start)s
UNION
SELECT -"id" FROM "perfectqueue_batch" WHERE "id" = -%(start)s
UNION
SELECT COALESCE("child"."child_id", -"member"."batch_id", -"within"."parent_id")
FROM "found"
CROSS JOIN (SELECT 1 AS "way" UNION ALL SELECT 2 UNION ALL SELECT 3) AS "ways"
LEFT JOIN "perfectqueue_dependency" AS "child"
ON "way" = 1 AND "child"."parent_id" = "found"."id" AND "child"."state" < 3
LEFT JOIN "perfectqueue_batchmember" AS "member"
ON "way" = 2 AND "member"."task_id" = "found"."id"
LEFT JOIN "perfectqueue_batch" AS "within" ON "way" = 3 AND "within"."id" = -"found"."id"
WHERE COALESCE("child"."child_id", "member"."batch_id", "within"."parent_id") IS NOT NULL
"""
AMONG = 'WHERE "id" IN ({ids}) LIMIT 1'
WITHIN = """
SELECT "id" FROM "perfectqueue_batch" WHERE "id" IN ({ids})
UNION
SELECT "batch"."id" FROM "found" JOIN "perfectqueue_batch" AS "batch"
ON "batch"."parent_id" = "found"."id"
"""
AROUND = """
SELECT "batch_id" FROM "perfectqueue_batchmember" WHERE "task_id" IN ({ids})
UNION
SELECT "batch"."parent_id" FROM "found" JOIN "perfectqueue_batch" AS "batch"
ON "batch"."id" = "found"."id" WHERE "batch"."parent_id" IS NOT NULL
"""


def insert(db: Session, edges: Iterable[Edge]) -> None:
    rest = iter(edges)
    while some := list(islice(rest, ROWS)):
        rows = ", ".join(
            f"({child}, {parent}, {mode}, {state})" for child, parent, mode, state in some
        )
        db.execute(LINK, rows=rows)


def take_turn(db: Session, turn: int = -1) -> None:
    """
    Have others who may close a circle wait until the commit: each would see only its own part.
    By another negative number have others wait who take that turn.
    """
    # Who inserts the same key waits for the commit; a row that is gone by then nobody reads.
    upsert = db.dialect.upsert("perfectqueue_dependencyevent", ["id"], {"kind": "{new}"})
    db.execute(f"{TURN} {upsert}", {"turn": turn})
    db.dialect.delete(db.cursor, "perfectqueue_dependencyevent", [turn])


def descendants(ids: Collection[int], *, using: str) -> list[int]:
    """Return the tasks that wait for one of these, and for these again, the last first."""
    return sorted(
        walk(LINKED, ids, using=using, of="parent_id", to="child_id").difference(ids), reverse=True
    )


def ancestors(ids: Collection[int], *, using: str) -> set[int]:
    """Return the tasks for which these wait, and for which these wait again."""
    return walk(LINKED, ids, using=using, of="child_id", to="parent_id")


def batches_within(batch: int, *, using: str) -> list[int]:
    """Return a batch and those in it."""
    return sorted(walk(WITHIN, [batch], using=using))


def batches_around(tasks: Collection[int], *, using: str) -> set[int]:
    """Return the batches in which these tasks are, and those in which these are."""
    return walk(AROUND, tasks, using=using)


def refuse_circle(start: int, parents: Collection[int], why: str, *, using: str) -> None:
    """
    Raise InvalidTaskError, which says why, where one of these tasks waits for a task or, by
    minus its id, for a batch.
    """
    if walk(WAITING, parents, using=using, among=AMONG, start=start):
        raise InvalidTaskError(why)


@retry_transaction
def walk(
    steps: str, ids: Collection[int], *, using: str, among: str = "", start: int = 0, **names: str
) -> set[int]:
    """Return what these steps lead to; of it those that are ``among`` others."""
    if not ids:
        return set()
    with reading(using) as db:
        statement = db.dialect.deep(db.cursor) + WALK + among
        rows = db.rows(statement, {"start": start}, steps=steps, ids=ids, **names)
    return {id_ for (id_,) in rows}


# Cancel tasks with those that wait for them, or not at all.


LIVE_TASKS = """
SELECT "id", "key" FROM "perfectqueue_task" WHERE "id" IN ({ids}) AND "outcome" = ''
"""


class Dependents(NamedTuple):
    """The live tasks that wait for some tasks, directly or not: ids, the last first; some keys."""

    ids: tuple[int, ...]
    keys: tuple[str, ...]


class Chosen(NamedTuple):
    """Tasks that may be cancelled, the last first, and those for which others wait."""

    ids: list[int]
    awaited: set[int]


def cancel_request(task_id: int, *, using: str, together: bool = False, now: Now = None) -> bool:
    """
    Cancel a task that has yet to run, or ask the one who runs it to stop.

    ``together`` does so with the tasks that wait for it, too. Return whether it is cancelled
    already; in a transaction of the caller's it is not, as that is done after the commit.
    Raise NotFoundError when it is gone, AlreadyFinishedError when it has ended, and
    NotSupportedError where tasks wait for it and are not cancelled with it.
    """
    waiting = dependents([task_id], using=using).ids
    if waiting and not together:
        with reading(using) as db:
            key = seen_task(db, task_id).key
        raise NotSupportedError(
            f"{len(waiting)} tasks wait for task '{key}', directly or not."
            " Cancel them with it: cancel_request(together=True)."
        )
    if is_in_block(connections[using]):
        look_at(task_id, using=using)
    done = cancel_each([*waiting, task_id], using=using, now=now)
    if task_id not in done:
        look_at(task_id, using=using)
    return done.get(task_id, False)


@retry_transaction
def choose(
    ids: Collection[int],
    *,
    using: str,
    among: Callable[[Collection[int]], Collection[int]] = lambda ids: (),
) -> Chosen:
    """
    Return which of these tasks may be cancelled, with the tasks that wait for them.

    Those for which a task waits that is not among them may not; ``among`` says of tasks that
    wait for them which are among them, too.
    """
    others = set(dependents(ids, using=using).ids).difference(ids)
    more = set(among(others)) if others else set()
    awaited = ancestors(others - more, using=using)
    chosen = more.union(ids) - awaited
    return Chosen(sorted(chosen, reverse=True), awaited.intersection(ids))


@retry_transaction
def dependents(ids: Collection[int], *, using: str, sample: int = 10) -> Dependents:
    """Return which tasks would be cancelled together with these."""
    found = descendants(ids, using=using)
    with reading(using) as db:
        live = sorted(db.rows_of(LIVE_TASKS, "ids", found), reverse=True)
    keys = tuple(key for _id, key in live[-sample:][::-1])
    return Dependents(tuple(id_ for id_, _key in live), keys)


# Give the tasks of sequences their places: each waits for the one before.
#
# A task is stored as one that waits for its sequence, by a number made of its name. Who acts on
# that event, right after the commit or in a sweep, puts it behind the last one. So a submit locks
# nothing and waits for nobody, and the order is that of the ids among what is committed; what is
# committed later comes later. The last place is kept by a dependency on the sequence that is met;
# it goes with its task, which is not deleted before its turn.


PLACES = """
SELECT "parent_id", "state" < 3, "child_id", "id" FROM "perfectqueue_dependency"
WHERE "parent_id" IN ({ids})
"""
LAST_PLACE = 'UPDATE "perfectqueue_dependency" SET "state" = 3 WHERE "id" IN ({ids})'


def place(db: Session, sequences: Set[int]) -> None:
    """Put tasks that have no places yet behind the last ones, in the order of their ids."""
    for sequence in sorted(sequences):
        take_turn(db, sequence)
    # Submitters are not waited for. Where a SELECT would see the rows of before, locked ones are
    # passed over: who has locked the last place holds the turn.
    old = db.dialect.current_clause(db.cursor)
    rows = db.rows(PLACES + (db.dialect.skip_clause if old else ""), ids=sequences)
    links: list[Edge] = []
    over: list[int] = []
    last: dict[int, tuple[int, int]] = {}
    # The one with the last place is the first of its sequence.
    for sequence, _is_new, child, id_ in sorted(rows):
        if sequence in last:
            before, place_of_it = last[sequence]
            links.append((child, before, SEQUENCE, Dependency.State.NEW.value))
            over.append(place_of_it)
        last[sequence] = child, id_
    insert(db, links)
    db.dialect.delete(db.cursor, "perfectqueue_dependency", over)
    db.execute(LAST_PLACE, ids=[id_ for _child, id_ in last.values()])


# Where the parents of tasks stand; those that live are marked as followed.


ENDED = f"""
SELECT "id", "outcome", {EARLY} FROM "perfectqueue_task"
WHERE "id" IN ({{ids}}) AND "outcome" <> '' ORDER BY "id"
"""
TICKETS = """
SELECT "task_id", "followed" FROM "perfectqueue_ticket" WHERE "task_id" IN ({ids})
ORDER BY "task_id"
"""
FOLLOW = """
UPDATE "perfectqueue_ticket"{hint} SET "followed" = COALESCE("followed", 0) + 1
WHERE "task_id" IN ({ids})
"""
THERE = 'SELECT "id" FROM "perfectqueue_task" WHERE "id" IN ({ids})'


class ParentState(NamedTuple):
    """
    Where a parent stands; ``outcome`` is empty while it is live.

    ``is_locked`` means that someone else changes it at this moment; ``is_early`` that it has
    ended before its turn in its sequence. Of a batch ``some_died`` says that tasks of it have not
    finished, also while it goes on.
    """

    outcome: str = ""
    is_locked: bool = False
    is_gone: bool = False
    is_early: bool = False
    some_died: bool = False

    @property
    def is_live(self) -> bool:
        return not (self.outcome or self.is_gone)

    @property
    def has_finished(self) -> bool:
        return self.outcome == Outcome.FINISHED

    @property
    def is_dead(self) -> bool:
        return bool(self.outcome) and not self.has_finished


LIVE, LOCKED, GONE = ParentState(), ParentState(is_locked=True), ParentState(is_gone=True)


def follow(db: Session, ids: Collection[int]) -> dict[int, ParentState]:
    """
    Mark the parents that live as followed; return where each stands.

    Each is locked: its task if it has ended, else its ticket. So who ends it or puts it
    back either finds the mark and the dependencies, or has committed before. Nothing is
    waited for: a transaction of someone else's may hold a ticket for long.
    """
    skip = db.dialect.skip_clause
    # A batch is given by minus its id; its callbacks are looked at when it has ended.
    # One that waits for its sequence has yet to get a place.
    found = {id_: LIVE if id_ > SEQUENCES else LOCKED for id_ in ids if id_ < 0}
    if left := set(ids) - found.keys():
        ended = db.rows(ENDED + db.dialect.skip_changed_clause, ids=left)
        found |= {id_: ParentState(outcome, is_early=bool(early)) for id_, outcome, early in ended}
    if left := left - found.keys():
        live: dict[int, int | None] = dict(db.rows(TICKETS + skip, ids=left))
        if fresh := [id_ for id_, by in live.items() if not (by or 0) % 2]:
            db.execute(FOLLOW, ids=fresh)
        found |= dict.fromkeys(live, LIVE)
    if left := left - found.keys():
        # Someone ends it or puts it back at this moment, or has since the first look.
        there = {id_ for (id_,) in db.rows(THERE, ids=left)}
        found |= {id_: LOCKED if id_ in there else GONE for id_ in left}
    return found
