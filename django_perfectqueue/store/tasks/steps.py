"""What is kept of a task until it ends: what its steps have returned, its waits, its signals."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db import IntegrityError

from django_perfectqueue.conf import options
from django_perfectqueue.exceptions import AlreadyFinishedError, InvalidTaskError, NotFoundError
from django_perfectqueue.models import JOINED, LastEnding, Step, Task, Ticket

from ..database.dialects.base import Row
from ..database.transaction import (
    Session,
    Tries,
    in_transaction,
    reading,
    retry_remembering_commits,
    retry_transaction,
)
from ..leases import locked_lease
from ..notify.ring import notify_workers
from ..records.dependency_events import note
from ..values import Lease, Now, Wait

KEEP = """
INSERT INTO "perfectqueue_step" ("task_id", "kind", "name", "result", "kept_at", "until")
VALUES (%(task_id)s, %(kind)s, %(name)s, %(result)s, {kept_at}, %(until)s)
"""
COPY = """
INSERT INTO "perfectqueue_step" ("task_id", "kind", "name", "result", "kept_at", "until")
SELECT %(to)s, "kind", "name", "result", "kept_at", "until" FROM "perfectqueue_step"
WHERE "task_id" = %(task_id)s AND "id" < %(before)s ORDER BY "id"
"""
COPY_LINKS = f"""
INSERT INTO "perfectqueue_dependency" ("child_id", "parent_id", "if_failed", "state")
SELECT %(to)s, "task"."id", "link"."if_failed", 3 FROM "perfectqueue_dependency" AS "link"
JOIN "perfectqueue_task" AS "task" ON "task"."id" = "link"."parent_id"
WHERE "link"."child_id" = %(task_id)s AND "link"."if_failed" = {JOINED}
    AND "task"."created_at" <= (SELECT "kept_at" FROM "perfectqueue_step" WHERE "id" = %(before)s)
"""
# An error names fewer steps.
NAMED = 20
UNIQUE = ("task_id", "kind", "name")
SIGNAL = """
SELECT "result" FROM "perfectqueue_step"
WHERE "task_id" = %(task_id)s AND "kind" = 1 AND "name" = %(name)s
"""
LOOK = f"SELECT {{now}}, ({SIGNAL})"
# So many a task may have; of those that are sent at once some more.
MOST_SIGNALS = 1_000
STANDING = f"""
SELECT "key", "outcome", ({SIGNAL}), (
    SELECT 1 FROM "perfectqueue_step" WHERE "task_id" = %(task_id)s AND "kind" = 1
    LIMIT 1 OFFSET {MOST_SIGNALS - 1}
) FROM "perfectqueue_task" WHERE "id" = %(task_id)s
"""


def keep(db: Session, lease: Lease, wait: Wait, result: str, *changed: str) -> None:
    """Write a row of a held task; where it is there, change these columns of it."""
    values: dict[str, Any] = {
        "task_id": lease.task_id,
        "kind": int(wait.kind),
        "name": wait.name,
        "result": result,
        "until": wait.until and db.dialect.parameter(wait.until),
    }
    if wait.since:
        values["since"] = db.dialect.parameter(wait.since)
    clause = db.dialect.upsert("perfectqueue_step", UNIQUE, dict.fromkeys(changed, "{new}"))
    kept_at = "%(since)s" if wait.since else "{now}"
    db.execute(KEEP + clause, values, kept_at=kept_at)


@retry_transaction
def keep_step(lease: Lease, name: str, result: str, *, using: str) -> None:
    """
    Write what a step of a held task has returned; twice is the same.

    Raise PreemptedError, and write nothing, when the lease has passed on.
    """
    with locked_lease(lease, using=using) as db:
        keep(db, lease, Wait(Step.Kind.STEP, name), result, "result", "kept_at")


@retry_transaction
def copy_steps(task: Task, to: int, before: str, *, using: str) -> None:
    """
    Keep for another task, a new one, what a task had kept and had run before this step.

    Raise NotFoundError where it has kept no such step.
    """
    with in_transaction(using) as db:
        rows = Step.objects.using(using).filter(task_id=task.pk).exclude(kind=Step.Kind.SIGNAL)
        kept = dict(rows.order_by("-pk").values_list("name", "pk"))
        if before not in kept:
            names = ", ".join(f"'{name}'" for name in [*kept][:-NAMED:-1])
            raise NotFoundError(
                f"Task '{task.key}' has kept no step '{before}'."
                + (f" It has kept: {names}." if names else "")
            )
        values = {"task_id": task.pk, "to": to, "before": kept[before]}
        db.execute(COPY, values)
        # Its children are kept until it has finished, too.
        db.execute(COPY_LINKS, values)
        # So its first attempt reads them.
        goes_on = Ticket.objects.using(using).filter(pk=to)
        goes_on.update(last_ending=LastEnding.SUSPENDED)


# A task waits: its attempt ends, with the row of the wait. What answers a wait, a signal, is a
# row, too; each of both commits appends an event, so the fold sees both after the later one.


def open_wait(db: Session, lease: Lease, wait: Wait) -> None:
    """Write the row of a wait, open; the newest one of a task says what it waits for."""
    if wait.id is not None:
        db.dialect.delete(db.cursor, "perfectqueue_step", [wait.id])
    keep(db, lease, wait, "", "result")
    if wait.kind != Step.Kind.SLEEP:
        note(db, added=[lease.task_id])


@retry_transaction
def look_for_signal(
    task_id: int, name: str, *, using: str, now: Now = None
) -> tuple[datetime, str | None]:
    """Return the server's time, and the data of a signal that is there, as they are stored."""
    with reading(using, now=now) as db:
        row = db.execute(LOOK, {"task_id": task_id, "name": name}).fetchone()
        return now or db.dialect.moment(row[0]), row[1]


@retry_transaction
def time_out(lease: Lease, wait: Wait, nothing: str, *, using: str, now: Now = None) -> str:
    """
    Return what ends a wait whose time is over: the data of its signal, or else ``nothing``,
    which is then kept: a signal that is committed later changes it no more.

    Raise PreemptedError, and write nothing, when the lease has passed on.
    """
    with locked_lease(lease, using=using, now=now) as db:
        values = {"task_id": lease.task_id, "name": wait.name}
        found: Row | None = db.execute(SIGNAL, values).fetchone()
        if found is None:
            keep(db, lease, wait, nothing, "result")
        return nothing if found is None else str(found[0])


@retry_remembering_commits
def signal(
    tries: Tries, task_id: int, name: str, data: str, *, using: str, now: Now = None
) -> bool:
    """
    Write a signal to a task; return False where it has one of that name, which stays.

    Nothing is locked that who runs the task waits for. Raise NotFoundError where it is gone,
    AlreadyFinishedError where it has ended, InvalidTaskError where it has MOST_SIGNALS.
    """
    values = {"task_id": task_id, "name": name}
    with in_transaction(using, now=now) as db:
        row = db.execute(STANDING + db.dialect.keep_clause, values).fetchone()
        if row is None:
            raise NotFoundError(f"There is no task with the id {task_id}.")
        key, outcome, known, is_full = row
        # An earlier try of this call may have stored it, whatever became of the task since.
        if known is not None and known == data and tries:
            return True
        if outcome:
            raise AlreadyFinishedError(f"Task '{key}' has ended: it is {outcome}.")
        if known is not None:
            return False
        if is_full:
            raise InvalidTaskError(
                f"Task '{key}' has {MOST_SIGNALS:,} signals, the most that one may have. Send what"
                " comes more often as a task of its own."
            )
        values |= {"kind": Step.Kind.SIGNAL.value, "result": data, "until": None}
        try:
            # Apart: another may have stored one since, or be about to, and is waited for.
            with in_transaction(using, apart=True):
                db.execute(KEEP, values, kept_at="{now}")
        except IntegrityError:
            return False
        note(db, added=[task_id])
        tries.append(task_id)
    if options().EAGER:
        notify_workers(using=using)
    return True
