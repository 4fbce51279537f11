"""What is to be done with the ticks of one schedule that have come; no database is asked."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from django.conf import settings

from django_perfectqueue.models import Outcome, Schedule

from ..arithmetic.ticks import SECOND, TickTiming, jitter_of

MOST_AT_ONCE = 1_000
"""So many ticks of one schedule are submitted by one look, and so many may wait."""


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
