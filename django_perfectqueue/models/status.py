"""Where a task stands, as a word and as a condition of queries."""

from __future__ import annotations

from datetime import datetime, timezone

from django.db import models
from django.db.models import Q, Value
from django.utils.translation import gettext_lazy as _

from .fields import ServerNow


class Outcome(models.TextChoices):
    """How a task ended."""

    FINISHED = "finished", _("finished")
    FAILED = "failed", _("failed")
    CANCELLED = "cancelled", _("cancelled")
    EXPIRED = "expired", _("expired")


class Status(models.TextChoices):
    """Where a task stands: one word, the same in queries, commands and API."""

    WAITING = "waiting", _("waiting")
    SCHEDULED = "scheduled", _("scheduled")
    RETRYING = "retrying", _("retrying")
    BLOCKED = "blocked", _("blocked")
    RUNNING = "running", _("running")
    STALLED = "stalled", _("stalled")
    FINISHED = Outcome.FINISHED.value, _("finished")
    FAILED = Outcome.FAILED.value, _("failed")
    CANCELLED = Outcome.CANCELLED.value, _("cancelled")
    EXPIRED = Outcome.EXPIRED.value, _("expired")


DEAD = tuple(outcome for outcome in Outcome if outcome != Outcome.FINISHED)

LIVE = tuple(status for status in Status if status.value not in Outcome.values)

# An ``timer_at`` from this time on means that a ticket is parked: see ``store/tasks/park.py``.
PARKED_FROM = datetime(9000, 1, 1, tzinfo=timezone.utc)


class State(models.IntegerChoices):
    """What a ticket waits for."""

    WAITING = 0, _("a processor")
    SCHEDULED = 1, _("its time")
    RUNNING = 2, _("its handler")
    BLOCKED = 3, _("other tasks or a signal")


class LastEnding(models.IntegerChoices):
    """How the last attempt ended that left its task in line."""

    NONE = 0, _("none yet")
    RETRIED = 1, _("retried")
    SNOOZED = 2, _("snoozed")
    RELEASED = 3, _("released")
    LOST = 4, _("lost")
    GIVEN_BACK = 5, _("given back")
    YIELDED = 6, _("yielded")
    SUSPENDED = 7, _("suspended")


# The endings of an attempt that counts and did not finish its task.
UNFINISHED = (LastEnding.RETRIED, LastEnding.LOST)

# The endings, above all others, after which a task goes on where it was.
GOES_ON = (LastEnding.YIELDED, LastEnding.SUSPENDED)


def condition(status: str, now: datetime | None = None) -> Q:
    """Return the condition that holds for the tasks with this status."""
    word = Status(status)
    if word in LIVE:
        return live_conditions(now, to="ticket__")[word]
    if word == Status.FINISHED:
        return Q(outcome=Outcome.FINISHED)
    return Q(dead_letter__status=word)


def id_for(status: str | None) -> str:
    """
    Return the column of task ids by which to list what has this status.

    The id column of the small table that decides the status; by task.id a database sorts all.
    """
    if status in (Status.SCHEDULED, Status.RETRYING, Status.RUNNING):
        return "ticket__task_id"
    return "dead_letter__task_id" if status in DEAD else "id"


def live_conditions(now: datetime | None = None, *, to: str = "") -> dict[Status, Q]:
    """Return what holds for the tickets of each live status; ``to`` leads to the ticket."""

    def ticket(**columns: object) -> Q:
        return Q(**{f"{to}{column}": value for column, value in columns.items()})

    clock = ServerNow() if now is None else Value(now)
    due, later = ticket(timer_at__lte=clock), ticket(timer_at__gt=clock)
    scheduled, running = ticket(state=State.SCHEDULED), ticket(state=State.RUNNING)
    retried = ticket(last_ending__in=UNFINISHED)
    return {
        Status.WAITING: ticket(state=State.WAITING) | (scheduled & due),
        Status.SCHEDULED: scheduled & later & ~retried,
        Status.RETRYING: scheduled & later & retried,
        Status.BLOCKED: ticket(state=State.BLOCKED),
        Status.RUNNING: running & later,
        Status.STALLED: running & due,
    }
