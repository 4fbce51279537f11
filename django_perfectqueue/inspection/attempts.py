"""A task's attempts, in order: those that did not finish it, and the one that did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate

from django.utils.translation import gettext as _

from django_perfectqueue.models import (
    GRAVE,
    Attempt,
    DeadLetter,
    Journal,
    Outcome,
    State,
    Status,
    Task,
    Ticket,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Try:
    """One attempt that has ended, by its place among those of its task; ``acquired`` counts all."""

    number: int
    acquired: int
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
    numbers = list(accumulate((1 + row.omitted for row in rows), initial=before))
    told = [
        Try(
            number=number,
            acquired=row.number,
            ending=row.ending,
            label=row.get_ending_display(),
            worker=row.worker,
            started_at=row.started_at,
            ended_at=row.ended_at,
            error=row.error,
            message=row.message,
            traceback=row.traceback,
        )
        for number, row in zip(numbers[1:], rows, strict=True)
    ]
    if task.outcome == Outcome.FINISHED and task.started_at and task.ended_at:
        success = Try(
            number=numbers[-1] + 1,
            acquired=task.attempt,
            ending=Outcome.FINISHED.value,
            label=str(Outcome.FINISHED.label),
            worker=task.worker,
            started_at=task.started_at,
            ended_at=task.ended_at,
        )
        told.append(success)
    return told


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """
    What became of one acquire, and what its handler told.

    There is no try yet while it runs, and never one where it was given back.
    """

    told: Try | None
    journal: Journal | None
    is_running: bool = False


def journals_of(task: Task, *, using: str) -> list[Journal]:
    """Return what its attempts have told, the first one first."""
    return list(Journal.objects.using(using).filter(task_id=task.pk).order_by("number"))


def episodes(task: Task, told: Sequence[Try], journals: Sequence[Journal]) -> list[Episode]:
    """Return a task's attempts with what they told, in order; nothing of those not shown."""
    tried = {one.acquired: one for one in told}
    known = {journal.number: journal for journal in journals}
    first = told[0].acquired if told and told[0].number > 1 else 0
    runs = running_number(task)
    return [
        Episode(told=tried.get(number), journal=known.get(number), is_running=number == runs)
        for number in sorted({*tried, *(number for number in known if number >= first)})
    ]


def running_number(task: Task) -> int | None:
    """Return the number of the attempt that runs, if one does."""
    ticket: Ticket | None = getattr(task, "ticket", None)
    runs = ticket is not None and task.status in (Status.RUNNING, Status.STALLED)
    return ticket.attempt if ticket and runs else None


def present(task: Task, journals: Sequence[Journal]) -> Journal | None:
    """Return what tells how far a task is, or how far it got: nothing of one that is finished."""
    ticket: Ticket | None = getattr(task, "ticket", None)
    number = ticket.attempt if ticket else task.attempt
    if task.outcome == Outcome.FINISHED:
        return None
    return next((one for one in journals if one.number == number and one.tells_progress), None)


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
    if ticket.state == State.SCHEDULED and ticket.alarm_at and not ticket.is_parked:
        return ticket.alarm_at
    return task.run_at if ticket.was_expected else ticket.run_at


def waited(task: Task, attempts: Sequence[Try]) -> float | None:
    """
    Return the seconds from when it was first due until it first started.

    None where that is not known: it has not started, or its first attempts are not here.
    """
    first = attempts[0] if attempts else None
    if first is not None and first.number > 1:
        return None
    start = first.started_at if first else task.started_at
    if start is None:
        return None
    return max(0.0, (start - max(task.run_at, task.created_at)).total_seconds())
