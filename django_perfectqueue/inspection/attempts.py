"""A task's attempts, in order, with the attempt that finished it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate

from django.db.models import QuerySet
from django.utils.translation import gettext as _

from django_perfectqueue.models import (
    DISCARDED_GROUP,
    Attempt,
    DeadLetter,
    Journal,
    LastEnding,
    Outcome,
    State,
    Status,
    Step,
    Task,
    Ticket,
)

JOURNALS = 1_000


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
    found = [
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
        found.append(success)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """
    One acquire: its try, and the journal of its handler.

    It has no try while it runs, nor after it was given back.
    """

    attempt: Try | None
    journal: Journal | None
    is_running: bool = False


def journals_of(task: Task, *, using: str) -> QuerySet[Journal]:
    """Return the first JOURNALS journals of a task's attempts, the first one first."""
    return Journal.objects.using(using).filter(task_id=task.pk).order_by("number")[:JOURNALS]


def steps_of(task: Task, *, using: str) -> QuerySet[Step]:
    """Return the steps of a task that are kept, in order."""
    return Step.objects.using(using).filter(task_id=task.pk).order_by("pk")


def episodes(task: Task, attempts: Sequence[Try], journals: Sequence[Journal]) -> list[Episode]:
    """Return a task's attempts with their journals, in order; none of attempts not shown."""
    tried = {one.acquired: one for one in attempts}
    known = {journal.number: journal for journal in journals}
    first = attempts[0].acquired if attempts and attempts[0].number > 1 else 0
    runs = running_number(task)
    return [
        Episode(attempt=tried.get(number), journal=known.get(number), is_running=number == runs)
        for number in sorted({*tried, *(number for number in known if number >= first)})
    ]


def running_number(task: Task) -> int | None:
    """Return the number of the attempt that runs, if one does."""
    ticket: Ticket | None = getattr(task, "ticket", None)
    runs = ticket is not None and task.status in (Status.RUNNING, Status.STALLED)
    return ticket.attempt if ticket and runs else None


def present(task: Task, journals: Sequence[Journal]) -> Journal | None:
    """Return the journal with a task's progress; None where it has finished or reported none."""
    ticket: Ticket | None = getattr(task, "ticket", None)
    number = ticket.attempt if ticket else task.attempt
    if task.outcome == Outcome.FINISHED:
        return None
    return next((one for one in journals if one.number == number and one.tells_progress), None)


def remark(task: Task) -> str:
    """Return what the status alone does not say, in a sentence, or an empty text."""
    ticket: Ticket | None = getattr(task, "ticket", None)
    if task.outcome == Outcome.FINISHED and task.started_at is None:
        return _("Someone closed it as finished.")
    if ticket and ticket.is_parked:
        return _("A worker without a handler for its type has given it back.")
    if ticket and is_put_off(task, LastEnding.RELEASED):
        return _("A worker gave it back untried; perhaps no worker has a handler for its type.")
    if ticket and is_put_off(task, LastEnding.SNOOZED):
        return _("Its handler has put it off.")
    letter: DeadLetter | None = getattr(task, "dead_letter", None)
    if task.outcome == Outcome.CANCELLED and letter and letter.group == DISCARDED_GROUP:
        return _("Its handler has discarded it.")
    return ""


def is_put_off(task: Task, ending: LastEnding) -> bool:
    """Return whether a task waits for its time because its last attempt ended like this."""
    return task.status == Status.SCHEDULED and task.ticket.last_ending == ending


def due_at(task: Task) -> datetime:
    """Return when a task may start, or when it was wanted if it has ended."""
    ticket: Ticket | None = getattr(task, "ticket", None)
    if ticket is None:
        return task.run_at
    if ticket.state == State.SCHEDULED and ticket.timer_at and not ticket.is_parked:
        return ticket.timer_at
    # A ticket whose task has an expected start is ordered by that.
    return task.run_at if ticket.run_at == task.expected_at else ticket.run_at


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
