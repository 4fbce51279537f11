"""Delete tasks whose retention has passed, or all of a queue, a bounded batch at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import NoReturn

from django.db import IntegrityError, connections
from django.db.models import Q

from django_perfectqueue.exceptions import NotSupportedError
from django_perfectqueue.lib.distinct import distinct
from django_perfectqueue.models import Account, Outcome, State, Task
from django_perfectqueue.models.batch import SEQUENCE

from ..database.transaction import (
    Session,
    in_transaction,
    is_callers,
    pages,
    reading,
    retry_transaction,
    with_retries,
)
from ..lanes.accounts import Accounts
from ..records.dependency_events import EARLY, counts_without, note, note_counts, note_gone
from ..tasks.close import lock_tickets
from ..tasks.park import forget_story, forget_tasks
from ..tasks.steer import seen_task
from ..values import Now

BATCH = 1000
COUNTED = 10_000
NOTHING: Mapping[str, NoReturn] = MappingProxyType({})
DONE = Outcome.FINISHED.value

SCAN = """
SELECT "id", "outcome", "queue", {past} AND {chosen}, {chosen} FROM "perfectqueue_task"
WHERE "id" > %(after)s ORDER BY "id" LIMIT %(limit)s
"""
CONDITIONS = {
    "queue": '"queue" = %(queue)s',
    "type": '"type" = %(type)s',
    "user": '"user" = %(user)s',
    "group": """EXISTS (
        SELECT 1 FROM "perfectqueue_deadletter"
        WHERE "task_id" = "perfectqueue_task"."id" AND "group" = %(group)s
    )""",
}
DOOMED = f"""
SELECT "id" FROM "perfectqueue_task" WHERE "id" IN ({{ids}}) AND "outcome" <> '' AND NOT EXISTS (
    SELECT 1 FROM "perfectqueue_dependency" AS "dependency"
    JOIN "perfectqueue_task" AS "child" ON "child"."id" = "dependency"."child_id"
    WHERE "dependency"."parent_id" = "perfectqueue_task"."id" AND "child"."outcome" <> 'finished'
    {{which}}
) AND NOT {EARLY} AND NOT EXISTS (
    SELECT 1 FROM "perfectqueue_batchmember" AS "member"
    JOIN "perfectqueue_batch" AS "batch" ON "batch"."id" = "member"."batch_id"
    WHERE "member"."task_id" = "perfectqueue_task"."id" AND ("batch"."ended_at" IS NULL OR EXISTS (
        SELECT 1 FROM "perfectqueue_dependency" AS "dependency"
        JOIN "perfectqueue_task" AS "callback" ON "callback"."id" = "dependency"."child_id"
        WHERE "dependency"."parent_id" = -"batch"."id" AND "callback"."outcome" IN ('', 'failed')
    ))
) ORDER BY "id"
"""
NOT_IN_SEQUENCE = f'AND "dependency"."if_failed" <> {SEQUENCE}'
# Its children may be submitted in a transaction that has yet to commit; but not those behind it in
# its sequence, which is joined later.
AWAITED = f"""
SELECT DISTINCT "parent_id" FROM "perfectqueue_dependency" AS "dependency"
JOIN "perfectqueue_task" AS "child" ON "child"."id" = "dependency"."child_id"
WHERE "dependency"."parent_id" IN ({{ids}}) AND "child"."outcome" = '' {NOT_IN_SEQUENCE}
"""
NEWEST = """
SELECT "queue", SUM(CASE WHEN "outcome" <> '' THEN 1 ELSE 0 END), COUNT(*), MIN("id") FROM (
    SELECT "id", "queue", "outcome" FROM "perfectqueue_task"
    WHERE "id" < %(before)s ORDER BY "id" DESC LIMIT %(limit)s
) AS "newest" GROUP BY "queue"
"""
NEXT_OVER = """
SELECT "id" FROM "perfectqueue_task"
WHERE "id" < %(before)s AND "queue" = %(queue)s AND "outcome" <> ''
ORDER BY "id" DESC LIMIT 1 OFFSET %(kept)s
"""
TASKS = "perfectqueue_task"
REFERRED = 'SELECT DISTINCT "{column}" FROM "{table}" WHERE "{column}" IN ({ids})'


@dataclass(frozen=True, slots=True)
class Swept:
    """
    One batch: the outcomes of the tasks that were deleted, or would be, by their ids, and
    where the next one begins; None at the end. ``kept_for`` says why the database refused to
    delete some.
    """

    doomed: Mapping[int, str]
    reached: int | None
    stopped: bool
    kept_for: Collection[str] = ()

    @property
    def deleted(self) -> int:
        return len(self.doomed)


@dataclass(frozen=True, slots=True)
class Surplus:
    """
    By queue the largest id that more than so many ended tasks have behind them, or none.

    ``newest`` is the largest id of all, and ``read`` how many rows it took to know this.
    """

    last: Mapping[str, int] = field(default_factory=dict)
    newest: int = 0
    read: int = 0


@retry_transaction
def surplus(keep: int, *, using: str) -> Surplus:
    """
    Return which tasks are beyond the newest ``keep`` of their queue that have ended.

    It reads from the newest task down, some thousand rows in a statement, until it knows this
    of every queue or has read them all.
    """
    limit = min(COUNTED, max(100, 2 * keep))
    ended: Counter[str] = Counter()
    last: dict[str, int] = {}
    queues = set(distinct(Account.objects.using(using), "queue", limit=None))
    newest = newest_id(using=using)
    read, before = 0, newest + 1
    with reading(using) as db:
        while rows := db.rows(NEWEST, {"before": before, "limit": limit}):
            for queue, count, _total, _lowest in rows:
                if queue not in last and ended[queue] + count > keep:
                    values = {"queue": queue, "before": before, "kept": keep - ended[queue]}
                    row = db.execute(NEXT_OVER, values).fetchone()
                    last[queue] = int(row[0]) if row else 0
                ended[queue] += int(count)
            read += sum(int(total) for _queue, _count, total, _lowest in rows)
            before = min(lowest for *_others, lowest in rows)
            if queues <= last.keys():
                break
    return Surplus(last, newest, read)


@retry_transaction
def purge(found: Swept, *, using: str) -> Swept:
    """
    Delete what purgeable() has found; return which.

    Rows stay that someone else holds, parents of which a child has yet to finish, and tasks of
    a batch that is open, or of which a callback has yet to end or has failed.
    """
    if not found.doomed:
        return found
    gone, kept_for = forget(found.doomed, using=using)
    return replace(found, doomed={id_: found.doomed[id_] for id_ in gone}, kept_for=kept_for)


@retry_transaction
def purgeable(
    retention: Mapping[str, float | None],
    *,
    using: str,
    after: int = 0,
    over: Mapping[str, int] = NOTHING,
    only: Mapping[str, str] = NOTHING,
    limit: int = BATCH,
    now: Now = None,
) -> Swept:
    """
    Look at up to ``limit`` tasks behind an id for those whose time has passed.

    ``retention`` gives the seconds that each outcome is kept; None is for ever. ``over`` is
    up to which id finished tasks of a queue go, too, as surplus() returns it. ``only`` are values
    of queue, type, user or group that a task must have. ``stopped`` means that a finished
    task was met whose time has yet to come: those behind it are mostly younger.
    """
    terms = {name: seconds for name, seconds in retention.items() if seconds is not None}
    past = " OR ".join(f'("outcome" = \'{name}\' AND "ended_at" <= {{{name}}})' for name in terms)
    chosen = " AND ".join(CONDITIONS[name] for name in only)
    parts = {"past": f"({past or 'FALSE'})", "chosen": f"({chosen or 'TRUE'})"}
    since = {name: -seconds for name, seconds in terms.items()}
    values = {"after": after, "limit": limit, **only}
    with reading(using, now=now) as db:
        rows = db.rows(SCAN, values, after=since, **parts)
    doomed = {
        id_: outcome
        for id_, outcome, queue, is_past, chosen in rows
        if is_past or (chosen and outcome == DONE and id_ <= over.get(queue, 0))
    }
    last = rows[-1][0] if rows else 0
    kept = any(outcome == DONE and not is_past for _id, outcome, _queue, is_past, _chosen in rows)
    return Swept(
        doomed=doomed,
        reached=last if len(rows) == limit else None,
        stopped=kept and last >= max(over.values(), default=0),
    )


@retry_transaction
def delete_ended(task_id: int, *, using: str) -> None:
    """
    Delete a task that has ended; with that those that wait behind it in its sequence go on.

    Raise NotFoundError when it is gone, NotSupportedError when it has yet to end, or purge()
    would keep it for another reason.
    """
    gone, kept_for = forget([task_id], using=using)
    if not (gone or kept_for):
        gone, kept_for = forget([task_id], using=using, skip=True)
    if gone:
        return
    if kept_for:
        raise NotSupportedError(" ".join(kept_for))
    with reading(using) as db:
        task = seen_task(db, task_id)
        if task.outcome:
            raise NotSupportedError(
                f"Task '{task.key}' is kept until the tasks that wait for it, or for its batch,"
                " have finished, and its turn in its sequence has come."
            )
        raise NotSupportedError(f"Task '{task.key}' is live; ended ones are deleted.")


def newest_id(*, using: str) -> int:
    """Return the largest id of a task, or 0."""
    ids = Task.objects.using(using).order_by("-pk").values_list("pk", flat=True)
    return with_retries(ids.first, using=using) or 0


def forget(ids: Collection[int], *, using: str, skip: bool = False) -> tuple[list[int], set[str]]:
    """
    Delete tasks that have ended; return which, and for what others are kept. With ``skip`` those
    are deleted, too, that stop their sequences.
    """
    free = set(ids) - awaited(ids, using=using)
    return past_references(partial(delete_free, using=using, skip=skip), free, using=using)


def past_references(
    delete: Callable[[Collection[int]], list[int]], ids: Collection[int], *, using: str
) -> tuple[list[int], set[str]]:
    """
    Delete tasks, all or none by a call; return which, and for what others are kept.

    Rows of other apps may refer to tasks, so that the database refuses to delete these.
    """
    try:
        return delete(ids) if ids else [], set()
    except IntegrityError as error:
        if is_callers(using):
            raise
        kept, names = referred_to(ids, using=using)
        if kept:
            gone, others = past_references(delete, set(ids) - kept, using=using)
            return gone, others | names
        if len(ids) == 1:
            return [], {str(error).strip()}
    # A trigger, or a table that can't be seen, refuses some.
    half = sorted(ids)[: len(ids) // 2]
    gone, names = past_references(delete, half, using=using)
    more, others = past_references(delete, set(ids).difference(half), using=using)
    return gone + more, names | others


def referred_to(ids: Collection[int], *, using: str) -> tuple[set[int], set[str]]:
    """Return which of these tasks rows of other tables refer to, and by which columns."""
    known: set[int] = set()
    names: set[str] = set()
    introspection = connections[using].introspection
    with reading(using) as db:
        for table in introspection.table_names(db.cursor):
            relations = introspection.get_relations(db.cursor, table)
            for column, relation in relations.items():
                if relation[1] == TASKS:
                    rows = db.rows(REFERRED, ids=ids, column=column, table=table)
                    if found := {id_ for (id_,) in rows}:
                        known |= found
                        names.add(f"Rows of {table!r} refer to tasks by {column!r}: these stay.")
    return known, names


def delete_free(free: Collection[int], *, using: str, skip: bool) -> list[int]:
    with in_transaction(using) as db:
        which = NOT_IN_SEQUENCE if skip else ""
        rows = db.rows(DOOMED + db.dialect.skip_clause, ids=free, which=which)
        locked = [task_id for (task_id,) in rows]
        if locked:
            note(db, ended=locked if skip else ())
            forget_story(db, locked)
            forget_tasks(db, locked)
    return locked


def awaited(ids: Collection[int], *, using: str) -> set[int]:
    """Return tasks for which others wait that may have yet to be committed."""
    with reading(using) as db:
        if not db.dialect.at_read_uncommitted or is_callers(using):
            return set()
        db.cursor.execute(db.dialect.at_read_uncommitted)
        rows = db.rows(AWAITED, ids=ids)
        return {parent for (parent,) in rows}


# Forget every task of a queue, or of a user.


def clear(chosen: Q, *, using: str) -> tuple[int, set[str]]:
    """
    Delete all tasks of which this holds, whatever their status, but for those to which rows of
    other apps refer; return how many, and for what others are kept.
    """
    total, kept_for = 0, set[str]()
    for ids in pages(Task.objects.using(using).filter(chosen), "pk", BATCH, using=using):
        gone, names = past_references(partial(clear_tasks, using=using), ids, using=using)
        total += len(gone)
        kept_for |= names
    return total, kept_for


@retry_transaction
def clear_tasks(ids: Collection[int], *, using: str) -> list[int]:
    with in_transaction(using) as db:
        accounts = Accounts()
        forget_tickets(db, accounts, ids)
        note_counts(db, counts_without(db, ids))
        forget_tasks(db, ids)
        forget_story(db, ids)
        # Those of children that were submitted after the caller had begun to read, too.
        note_gone(db, ids)
        # A task that was put back in its line before its row was gone has one again.
        forget_tickets(db, accounts, ids)
        accounts.write(db)
    return list(ids)


def forget_tickets(db: Session, accounts: Accounts, ids: Collection[int]) -> None:
    """Delete tickets, and take those that run off their lanes' accounts."""
    tickets = lock_tickets(db, ids)
    for ticket in tickets:
        if ticket.state == State.RUNNING:
            accounts.lose(ticket.lane)
    if tickets:
        locked = [ticket.task_id for ticket in tickets]
        db.dialect.delete(db.cursor, "perfectqueue_ticket", locked, key="task_id")
