"""A task's attempts, in order: those that did not finish it, and the one that did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from django.utils.translation import gettext as _

from .models import Attempt, Outcome, State, Task, Ticket


@dataclass(frozen=True, slots=True, kw_only=True)
class Try:
    """One attempt that has ended, by its place among those of its task."""

    number: int
    ending: str
    label: str
    worker: str
    started_at: datetime | None
    ended_at: datetime
    error: str = ""
    message: str = ""
    traceback: str = ""


def tries(task: Task, rows: Sequence[Attempt], *, before: int = 0) -> list[Try]:
    """Return a task's attempts; ``rows`` are those that did not finish it, but the first few."""
    told = [
        Try(
            number=number,
            ending=row.ending,
            label=row.get_ending_display(),
            worker=row.worker,
            started_at=row.started_at,
            ended_at=row.ended_at,
            error=row.error,
            message=row.message,
            traceback=row.traceback,
        )
        for number, row in enumerate(rows, before + 1)
    ]
    if task.outcome == Outcome.FINISHED and task.started_at and task.ended_at:
        success = Try(
            number=before + len(rows) + 1,
            ending=Outcome.FINISHED.value,
            label=str(Outcome.FINISHED.label),
            worker=task.worker,
            started_at=task.started_at,
            ended_at=task.ended_at,
        )
        told.append(success)
    return told


def remark(task: Task) -> str:
    """Return what the status alone does not tell, in a sentence, or nothing."""
    ticket: Ticket | None = getattr(task, "ticket", None)
    if task.outcome == Outcome.FINISHED and task.started_at is None:
        return _("Someone closed it as finished.")
    if ticket and was_given_back(task, ticket):
        return _("A worker gave it back untried; perhaps no worker has a handler for its type.")
    return ""


def was_given_back(task: Task, ticket: Ticket) -> bool:
    """Tell whether a release has put it off: that leaves the time at which it was due before."""
    if ticket.state != State.SCHEDULED or ticket.alarm_at is None:
        return False
    if was_expected(task, ticket):
        return False
    return ticket.attempt > 0 and ticket.alarm_at > ticket.run_at


def due_at(task: Task) -> datetime:
    """Return when a task may start, or when it was wanted if it has ended."""
    ticket: Ticket | None = getattr(task, "ticket", None)
    if ticket is None:
        return task.run_at
    if ticket.state == State.SCHEDULED and ticket.alarm_at:
        return ticket.alarm_at
    return task.run_at if was_expected(task, ticket) else ticket.run_at


def was_expected(task: Task, ticket: Ticket) -> bool:
    """Tell whether a ticket has the time at which its task is expected to start."""
    return task.expected_at is not None and ticket.run_at == task.expected_at
