"""A task's attempts, in order: those that did not finish it, and the one that did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from django.utils.translation import gettext as _

from .models import Attempt, DeadLetter, Outcome, State, Status, Task, Ticket
from .queue import GRAVE


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
    if ticket and ticket.was_given_back:
        return _("A worker gave it back untried; perhaps no worker has a handler for its type.")
    if ticket and ticket.was_snoozed and task.status == Status.SCHEDULED:
        return _("Its handler has put it off.")
    letter: DeadLetter | None = getattr(task, "dead_letter", None)
    if task.outcome == Outcome.CANCELLED and letter and letter.group == GRAVE:
        return _("Its handler has discarded it.")
    return ""


def due_at(task: Task) -> datetime:
    """Return when a task may start, or when it was wanted if it has ended."""
    ticket: Ticket | None = getattr(task, "ticket", None)
    if ticket is None:
        return task.run_at
    if ticket.state == State.SCHEDULED and ticket.alarm_at:
        return ticket.alarm_at
    return task.run_at if ticket.was_expected else ticket.run_at
