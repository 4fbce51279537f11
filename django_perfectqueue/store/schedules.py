"""Decide what is to be done with ticks that have come, and submit their tasks."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from functools import partial

from django.conf import settings
from django.db import transaction

from django_perfectqueue.exceptions import AlreadyExistsError
from django_perfectqueue.models import Outcome, Schedule, Task
from django_perfectqueue.models.fields import ServerNow
from django_perfectqueue.payload.codecs import decode, part
from django_perfectqueue.payload.context import OF_SCHEDULES
from django_perfectqueue.payload.inputs import checked_limits, encoded
from django_perfectqueue.payload.limit_names import filled, of_type

from .arithmetic.rate_limit import split
from .arithmetic.ticks import SECOND, TickTiming, jitter_of
from .database.dialects import dialect_of
from .database.transaction import in_transaction, retry_transaction
from .dependencies.submit import submit_linked
from .limits.meters import lane_behind
from .notify.ring import notify_workers
from .tasks.steer import cancel_each
from .tasks.submit import in_chunks, submit
from .upkeep.timers import MOST, are_due, fire_timers
from .values import Ids, Name, Now, Submission, Watermarks, as_text, put_in_others

# So many ticks of one schedule are submitted by one look, and so many may wait.
MOST_AT_ONCE = 1_000


@dataclass(slots=True)
class Decision:
    """The ticks to submit now, and whether the task before is to be cancelled."""

    ticks: list[datetime] = field(default_factory=list)
    cancel: bool = False


def timing_of(row: Schedule) -> TickTiming:
    return TickTiming(
        cron=row.cron,
        every=row.every,
        zone=row.timezone or settings.TIME_ZONE,
        starts_at=row.starts_at,
        ends_at=row.ends_at,
    )


def due_time(row: Schedule, tick: datetime) -> datetime:
    """Return when the task of a tick is to be submitted."""
    return tick + row.delay * SECOND + jitter_of(row.name, tick, row.jitter)


def set_next(row: Schedule, tick: datetime | None, now: datetime) -> None:
    """Move the cursor; what is paused, has ended or is gone is not due."""
    if row.remaining == 0:
        tick = None
    row.next_at = tick
    row.due_at = None if tick is None else due_time(row, tick)
    if row.pending:
        # The end of the task before is not announced here, so it is looked for each second.
        again = now + SECOND
        row.due_at = again if row.due_at is None else min(row.due_at, again)
    if row.paused or row.origin == Schedule.Origin.GONE:
        row.next_at = row.due_at = None


def start_over(row: Schedule, now: datetime) -> None:
    """Set the cursor to the first tick after now: nothing of the past is submitted."""
    row.problem = ""
    row.pending = []
    set_next(row, timing_of(row).first_after(now), now)


def pause(row: Schedule, note: str, by: str) -> None:
    row.paused, row.note, row.paused_by = True, note[:255], by[:255]
    row.pending = []
    row.next_at = row.due_at = None


def decide(row: Schedule, now: datetime, before: str | None) -> Decision:
    """
    Apply deadline, catch-up and overlap to the ticks that are due; change the row accordingly.

    ``before`` is the outcome of the task before, empty while it has yet to end, None where
    there is none any more. The row is not saved. Raise InvalidScheduleError or ConfigError
    where its ticks can't be worked out.
    """
    row.problem = ""
    count_failure(row, before)
    if row.pause_after and row.failures >= row.pause_after:
        pause(row, f"{row.failures} tasks in a row have failed.", "")
        return Decision()
    wanted, next_tick = wanted_ticks(row, now)
    decision = overlapping(row, wanted, running=before == "")
    if row.remaining is not None:
        del decision.ticks[row.remaining :]
        row.remaining -= len(decision.ticks)
    if decision.ticks:
        row.counted = False
        row.last_at = decision.ticks[-1]
        row.fired += len(decision.ticks)
    set_next(row, next_tick, now)
    return decision


def count_failure(row: Schedule, before: str | None) -> None:
    """Count how the task before has ended, once."""
    if row.counted or before == "":
        return
    row.counted = True
    if before == Outcome.FAILED:
        row.failures += 1
    elif before in (Outcome.FINISHED, None):
        row.failures = 0


def wanted_ticks(row: Schedule, now: datetime) -> tuple[list[datetime], datetime | None]:
    """Return the due ticks that are neither too old nor too many, and the next tick."""
    if row.next_at is None or due_time(row, row.next_at) > now:
        return [], row.next_at
    timing = timing_of(row)

    def is_due(tick: datetime) -> bool:
        return due_time(row, tick) <= now

    if row.catch_up is None:
        passed = timing.first_passed(row.next_at, is_due, MOST_AT_ONCE)
    else:
        keep = min(row.catch_up + 1, MOST_AT_ONCE)
        sure = now - (row.delay + row.jitter) * SECOND
        passed = timing.last_passed(row.next_at, is_due, keep, sure)
    ticks = passed.ticks
    if row.deadline is not None:
        oldest = now - timedelta(seconds=row.deadline)
        ticks = [tick for tick in ticks if due_time(row, tick) >= oldest]
    row.skipped_late += passed.omitted + len(passed.ticks) - len(ticks)
    return ticks, passed.next_tick


def overlapping(row: Schedule, ticks: list[datetime], *, running: bool) -> Decision:
    """Return which of these ticks may be submitted now; count or keep the others."""
    overlap = Schedule.Overlap(row.overlap)
    waiting = [datetime.fromisoformat(tick) for tick in row.pending] + ticks
    row.pending = []
    if overlap == Schedule.Overlap.ALLOW:
        return Decision(waiting)
    if overlap == Schedule.Overlap.CANCEL:
        row.skipped_overlap += max(0, len(waiting) - 1)
        latest = waiting[-1:]
        if running:
            # A request that a death has lost is made again by the next look.
            row.pending = [tick.isoformat() for tick in latest]
            return Decision(cancel=bool(latest))
        return Decision(latest)
    now = [] if running else waiting[:1]
    places = {Schedule.Overlap.QUEUE_ONE: 1, Schedule.Overlap.QUEUE: MOST_AT_ONCE}.get(overlap, 0)
    later = waiting[len(now) :]
    row.skipped_overlap += max(0, len(later) - places)
    row.pending = [tick.isoformat() for tick in later[:places]]
    return Decision(now)


# Submit the tasks whose ticks have come, and move the cursors of their schedules.


logger = logging.getLogger("django_perfectqueue.schedules")

LEAST = timedelta(microseconds=1)
BATCH = 500
MOST_BATCHES = 5
# By database, how many are fired together next: fewer after what was cut short, as by a limit of
# how long a transaction may stand still.
sizes: dict[str, int] = {}
BETWEEN = 0.03
# After so long a broken schedule is looked at again: another host may know its zone.
BROKEN_FOR = 60 * SECOND
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
SCHEDULE, SCHEDULED_FOR = OF_SCHEDULES


def fire_schedules(*, using: str, now: Now = None) -> bool:
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


def fire_due_timers(*, using: str, now: Now = None, marks: Watermarks | None = None) -> bool:
    """
    Do what is due: admit scheduled tasks, take back lapsed leases, and fire schedules.

    Do a bounded part of it; return whether some is left. Costs two index look-ups in
    one statement when nothing is due. ``marks`` are those of earlier looks.
    """
    marks = marks or Watermarks()
    timers, ticks = are_due(marks, using=using, now=now)
    left = timers and fire_timers(marks, using=using, now=now) == MOST
    return (ticks and fire_schedules(using=using, now=now)) or left


@retry_transaction
def fire_some(*, using: str, now: Now) -> bool:
    """Fire one batch; return whether more is due."""
    size = sizes.get(using, BATCH)
    sizes[using] = max(1, size // 2)
    with in_transaction(using):
        # What others hold, they fire.
        found = Schedule.objects.using(using).select_for_update(skip_locked=True)
        found = found.filter(due_at__lte=now or ServerNow()).order_by("due_at")
        rows = list(found.annotate(now=ServerNow())[:size])  # type: ignore[no-redef]
        for row in rows:
            row.now = now or row.now
        is_due = bool(rows) and fire_rows(rows, using=using)
    sizes[using] = min(BATCH, size * 2)
    return is_due or len(rows) == size


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
    """Return how the last tasks have ended, by their ids; an empty text if a task has not."""
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
    stored: Ids = {}
    for some in in_chunks(submissions):
        stored |= submit_terms(some, using=using)
    for row, decision in chosen:
        if decision.cancel and row.last_task_id:
            cancel_each([row.last_task_id], using=using)
        if decision.ticks:
            keys = [(row.queue, key_of(row.name, tick)) for tick in decision.ticks]
            known = known_tasks(row, [key for key in keys if key not in stored], using=using)
            row.fired -= len(known)
            row.last_task_id = (stored | known)[keys[-1]]
    Schedule.objects.using(using).bulk_update([row for row, _decision in chosen], MOVED)


def submission(row: Schedule, tick: datetime, now: datetime, *, using: str) -> Submission:
    """Return the task of one tick."""
    after, templates = row.expires_after, [*split(row.limits), *of_type(row.type)]
    names = checked_limits(filled(templates, partial(items_of, row.payload), row.user))
    context = {**row.surroundings, SCHEDULE: row.name, SCHEDULED_FOR: tick.isoformat()}
    given = {**row.options, "context": encoded(context, "The context")}
    put_in_others(given)
    return Submission.like(
        row,
        key_of(row.name, tick),
        lane_behind(row.queue, row.type, row.user, names, using=using),
        limits=names,
        expires_at=None if after is None else now + after * SECOND,
        **given,
    )


def submit_terms(given: Sequence[Submission], *, using: str) -> Ids:
    """Submit tasks, with the tags and sequences that they have."""
    if any(task.after or task.tags for task in given):
        return submit_linked(submit, given, using=using)
    return submit(given, using=using)


def items_of(payload: str) -> object:
    """Return the data that templates name: of one of Django's tasks its keyword arguments."""
    data = decode(payload)
    is_call = isinstance(data, dict) and {"args", "kwargs"} >= data.keys()
    return data.get("kwargs") if is_call and data else data


def key_of(name: str, tick: datetime) -> str:
    """Return the key of a tick's task; keys of one schedule sort by their ticks, to the second."""
    return f"{name}@{tick.astimezone(timezone.utc).replace(tzinfo=None).isoformat()}Z"


def known_tasks(row: Schedule, keys: Sequence[Name], *, using: str) -> Ids:
    """
    Return the tasks that ticks had before, as after a backfill.

    Raise AlreadyExistsError where a task that is not the schedule's has the key of a tick.
    """
    if not keys:
        return {}
    found = {}
    tasks = Task.objects.using(using).filter(queue=row.queue, key__in=[key for _queue, key in keys])
    for id_, key, context in tasks.values_list("pk", "key", "context"):
        if part(context, SCHEDULE) != row.name:
            raise AlreadyExistsError(f"Another task has the key of a tick: {key!r}. Delete it.")
        found[row.queue, key] = id_
    return found


def submit_ticks(
    row: Schedule,
    ticks: Sequence[datetime],
    now: datetime,
    *,
    using: str,
    submit: Callable[..., Ids] = submit_terms,
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
