"""Submit the tasks whose ticks have come, and move the cursors of their schedules."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from datetime import datetime, timedelta, timezone
from typing import Any

from django.db import connections, transaction

from django_perfectqueue.exceptions import PerfectQueueError
from django_perfectqueue.models import Schedule, Task
from django_perfectqueue.models.fields import ServerNow
from django_perfectqueue.payload.codecs import decode
from django_perfectqueue.payload.context import OF_SCHEDULES
from django_perfectqueue.payload.inputs import encoded

from ..arithmetic.limit_keys import split
from ..arithmetic.ticks import SECOND
from ..database.dialects import dialect_of
from ..database.transaction import in_transaction, reading, retry_transaction
from ..limits.limit_cache import lane_behind
from ..notify.ring import notify_workers
from ..tasks.steer import cancel_each
from ..tasks.submit import in_chunks, submit
from ..values import Submission, as_text
from .decide import Decision, decide

logger = logging.getLogger("django_perfectqueue.schedules")

LEAST = timedelta(microseconds=1)
BATCH = 500
MOST_BATCHES = 5
BETWEEN = 0.03
BROKEN_FOR = 60 * SECOND
"""After so long a broken schedule is looked at again: another host may know its zone."""
MOVED = (
    "next_at",
    "due_at",
    "last_at",
    "last_task_id",
    "pending",
    "fired",
    "skipped_overlap",
    "skipped_late",
    "failures",
    "counted",
    "remaining",
    "paused",
    "note",
    "paused_by",
    "problem",
)
FIELDS: dict[str, Any] = {name: Schedule._meta.get_field(name) for name in MOVED}
MOVE = f"""
UPDATE "perfectqueue_schedule" SET {", ".join(f'"{name}" = %({name})s' for name in MOVED)}
WHERE "id" = %(id)s
"""
SCHEDULE, SCHEDULED_FOR = OF_SCHEDULES


def fire_schedules(*, using: str, now: datetime | None = None) -> bool:
    """
    Submit the tasks of all schedules that are due, in batches; return whether some are left.

    One batch is one transaction: its tasks are there and its cursors moved, or neither. What
    others are firing at this moment is left to them.
    """
    for _batch in range(MOST_BATCHES):
        if not fire_some(using=using, now=now):
            return False
        if dialect_of(using).one_writer:
            # SQLite has no line of writers: one who comes back at once keeps the others out.
            time.sleep(BETWEEN)
    return True


@retry_transaction
def fire_some(*, using: str, now: datetime | None) -> bool:
    """Fire one batch; return whether more is due."""
    with in_transaction(using):
        # What others hold, they fire.
        found = Schedule.objects.using(using).select_for_update(skip_locked=True)
        found = found.filter(due_at__lte=now or ServerNow()).order_by("due_at")
        rows = list(found.annotate(now=ServerNow())[:BATCH])  # type: ignore[no-redef]
        for row in rows:
            row.now = now or row.now
        is_due = bool(rows) and fire_rows(rows, using=using)
        return is_due or len(rows) == BATCH


def fire_rows(rows: Sequence[Schedule], *, using: str) -> bool:
    """
    Fire locked rows together, or each by itself where that fails; set aside what fails alone.

    Return whether one of them is due again.
    """
    moved = [copy(row) for row in rows]
    try:
        with transaction.atomic(using):
            before = outcomes(moved, using=using)
            write(
                [(row, decide(row, row.now, before.get(row.last_task_id))) for row in moved],
                using=using,
            )
    except Exception as error:
        if dialect_of(using).passes(error) or dialect_of(using).lost(error):
            raise
        if len(rows) > 1:
            due = [fire_rows([row], using=using) for row in rows]
            return any(due)
        set_aside(rows[0], error, using=using)
        return False
    return any(row.due_at and row.due_at <= row.now for row in moved)


def outcomes(rows: Sequence[Schedule], *, using: str) -> dict[int | None, str]:
    """Return how the last tasks have ended, by their ids; an empty text for who has not."""
    ids = {
        row.last_task_id
        for row in rows
        if row.last_task_id and (row.overlap != Schedule.Overlap.ALLOW or row.pause_after)
    }
    if not ids:
        return {}
    return dict(Task.objects.using(using).filter(pk__in=ids).values_list("pk", "outcome"))


def set_aside(row: Schedule, error: Exception, *, using: str) -> None:
    logger.error("A schedule is set aside. schedule=%s error=%s", row.name, error)
    Schedule.objects.using(using).filter(pk=row.pk).update(
        problem=as_text(error, 255) or type(error).__name__, due_at=row.now + BROKEN_FOR
    )


def write(chosen: Sequence[tuple[Schedule, Decision]], *, using: str) -> None:
    """Store the tasks, and move the cursors."""
    submissions = [
        submission(row, tick, row.now, using=using)
        for row, decision in chosen
        for tick in decision.ticks
    ]
    stored: dict[tuple[str, str], int] = {}
    for some in in_chunks(submissions):
        stored |= submit(some, using=using)
    for row, decision in chosen:
        if decision.cancel and row.last_task_id:
            cancel_each([row.last_task_id], using=using)
        if decision.ticks:
            keys = [(row.queue, key_of(row.name, tick)) for tick in decision.ticks]
            known = known_tasks(row, [key for key in keys if key not in stored], using=using)
            row.fired -= len(known)
            row.last_task_id = (stored | known)[keys[-1]]
        save(row, using=using)


def save(row: Schedule, *, using: str) -> None:
    """Write what a look has moved; the ORM takes thrice as long for each of many rows."""
    connection = connections[using]
    values = {
        column: field.get_db_prep_save(getattr(row, column), connection)
        for column, field in FIELDS.items()
    }
    with reading(using) as db:
        db.execute(MOVE, {**values, "id": row.pk})


class TakenError(PerfectQueueError):
    """The key of a tick is that of a task which the schedule has not submitted."""


def submission(row: Schedule, tick: datetime, now: datetime, *, using: str) -> Submission:
    """Return the task of one tick."""
    after = row.expires_after
    return Submission.like(
        row,
        key_of(row.name, tick),
        lane_behind(row.queue, row.type, row.user, split(row.limits), using=using),
        expires_at=None if after is None else now + after * SECOND,
        context=encoded(
            {**row.surroundings, SCHEDULE: row.name, SCHEDULED_FOR: tick.isoformat()}, "The context"
        ),
    )


def key_of(name: str, tick: datetime) -> str:
    """Return the key of a tick's task; keys of one schedule sort by their ticks, to the second."""
    return f"{name}@{tick.astimezone(timezone.utc).replace(tzinfo=None).isoformat()}Z"


def known_tasks(
    row: Schedule, keys: Sequence[tuple[str, str]], *, using: str
) -> dict[tuple[str, str], int]:
    """
    Return the tasks that ticks had before, as after a backfill.

    Raise TakenError where a task that is not the schedule's has the key of a tick.
    """
    if not keys:
        return {}
    found = {}
    tasks = Task.objects.using(using).filter(queue=row.queue, key__in=[key for _queue, key in keys])
    for id_, key, context in tasks.values_list("pk", "key", "context"):
        if not context or decode(context).get(SCHEDULE) != row.name:
            raise TakenError(f"Another task has the key of a tick: {key!r}. Delete it.")
        found[row.queue, key] = id_
    return found


def submit_ticks(
    row: Schedule,
    ticks: Sequence[datetime],
    now: datetime,
    *,
    using: str,
    submit: Callable[..., Mapping[tuple[str, str], int]] = submit,
) -> None:
    """Submit tasks for these ticks, beside the cursor; the row is not saved."""
    given = [submission(row, tick, now, using=using) for tick in ticks]
    stored = submit(given, using=using)
    last = given[-1]
    row.last_task_id = stored.get((last.queue, last.key)) or row.last_task_id
    row.last_at, row.counted = ticks[-1], False


def without_tasks(row: Schedule, ticks: Sequence[datetime], *, using: str) -> list[datetime]:
    """Return those of these ticks that have no task, as far as tasks are retained."""
    keys = {key_of(row.name, tick): tick for tick in ticks}
    known = Task.objects.using(using).filter(queue=row.queue, key__in=list(keys))
    return sorted(set(ticks) - {keys[key] for key in known.values_list("key", flat=True)})


def wake(row: Schedule, now: datetime, *, using: str) -> None:
    """Notify the workers of when a schedule is due, once this is committed."""
    if row.due_at is not None:
        notify_workers(using=using, delay=max(0.0, (row.due_at - now).total_seconds()) + 0.001)
