"""
What is known of one task, as labelled facts: its page, the commands and JSON show the same ones.

Data, results and context are not among them, since not everyone who looks may see them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from itertools import accumulate
from typing import Any, NamedTuple

from django.db.models import Count, Exists, OuterRef, Sum
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_perfectqueue import models
from django_perfectqueue.payload.codecs import part
from django_perfectqueue.payload.context import OF_ATTEMPTS
from django_perfectqueue.store.records.journal import SIGNAL

from .schedules import TaskOrigin, origin_of
from .steering import actions_of
from .why_waiting import Case, Code, Reason
from .workers import Location, location_of

JOURNALS = 1_000


class Fact(NamedTuple):
    """
    One value, by its ``name`` for programs and its ``label`` for people; either may be empty.

    A time is a datetime, a duration a timedelta, several texts a list. What is not known, or
    does not apply, is None or empty.
    """

    name: str
    label: Any
    value: object

    @property
    def is_shown(self) -> bool:
        """Whether people see it."""
        return bool(self.label) and self.value not in (None, "", [])


def about(task: Any) -> list[Fact]:
    """Return what was submitted, and where it stands; ``tries`` counts its attempts."""
    return [
        Fact("queue", _("queue"), task.queue),
        Fact("key", "", task.key),
        Fact("type", _("type"), task.type),
        Fact("user", _("user"), task.user),
        Fact("status", "", task.status),
        Fact("priority", _("priority"), task.priority),
        Fact("limits", _("limits"), task.limits.split(",") if task.limits else []),
        Fact("time_limit", _("time limit"), span(task.time_limit)),
        Fact("attempts", _("attempts"), task.tries),
        Fact("merged", _("merged submits"), task.merged),
        Fact("worker", _("worker"), task.worker),
        Fact("id", _("id"), task.pk),
    ]


def times(task: models.Task) -> list[Fact]:
    """Return a task's moments in order."""
    return [
        Fact("created_at", _("created"), task.created_at),
        Fact("run_at", _("due"), due_at(task)),
        Fact("expected_at", _("expected at"), task.expected_at),
        Fact("expires_at", _("expires at"), task.expires_at),
        Fact("started_at", _("last started"), task.started_at),
        Fact("lease_until", _("lease until"), lease_until(task)),
        Fact("ended_at", _("ended"), task.ended_at),
    ]


def span(seconds: float | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=seconds)


def waits_in_words(kept: Any) -> str:
    """Return a backoff as it is stored in words."""
    if kept is None:
        return ""
    name, values = kept
    return f"{name}({', '.join(f'{key}={value}' for key, value in values.items())})"


def ticket_of(task: models.Task) -> models.Ticket | None:
    return getattr(task, "ticket", None)


def is_held(task: models.Task) -> bool:
    return task.status in (models.Status.RUNNING, models.Status.STALLED)


def lease_until(task: models.Task) -> datetime | None:
    """Return until when a processor has a task, or had it; None where none has."""
    ticket = ticket_of(task)
    return ticket.timer_at if ticket and is_held(task) else None


class Story:
    """
    One task with all that hangs on it. It needs its ``tries``, and the database's ``clock``.

    Of its attempts the newest ``most`` are read.
    """

    def __init__(self, task: Any, *, using: str, most: int | None = None) -> None:
        self.task = task
        self.using = using
        self.ticket = ticket_of(task)
        self.letter: models.DeadLetter | None = getattr(task, "dead_letter", None)
        self.case = Case(task, self.ticket, using, task.clock) if self.ticket else None
        self.attempts = newest_tries(task, most)
        journals = models.Journal.objects.using(using).filter(task_id=task.pk)
        self.journals = list(journals.order_by("number")[:JOURNALS])
        self.actions = list(actions_of(task, using=using))
        self.tags = [tag.tag for tag in task.tags.order_by("pk")]
        self.origin: TaskOrigin | None = origin_of(task)
        held = lease_until(task) is not None
        self.location: Location | None = location_of(task, using=using) if held else None

    @cached_property
    def reason(self) -> Reason:
        """Why it does not run now."""
        return self.case.reason if self.case else Reason(code=Code.ENDED, name=self.task.outcome)

    @property
    def episodes(self) -> list[Episode]:
        """Its attempts with their journals, in order; none of attempts not shown."""
        attempts, ticket = self.attempts, self.ticket
        tried = {one.row.number: one for one in attempts}
        known = {journal.number: journal for journal in self.journals}
        first = attempts[0].row.number if attempts and attempts[0].number > 1 else 0
        runs = ticket.attempt if ticket and is_held(self.task) else None
        return [
            Episode(attempt=tried.get(number), journal=known.get(number), is_running=number == runs)
            for number in sorted({*tried, *(number for number in known if number >= first)})
        ]

    @property
    def progress(self) -> models.Journal | None:
        """The journal with its progress; None where it has finished or reported none."""
        number = (self.ticket or self.task).attempt
        if self.task.outcome == models.Outcome.FINISHED:
            return None
        found = (one for one in self.journals if one.number == number and one.tells_progress)
        return next(found, None)

    def about(self) -> list[Fact]:
        located, origin = self.location, self.origin
        # What the submit said of attempts.
        most, backoff = (part(self.task.context, name) for name in OF_ATTEMPTS)
        return [
            *about(self.task),
            Fact("runs", _("runs on") if located and located.since else _("held by"), located),
            Fact("", _("runs since"), located and located.since),
            Fact("max_attempts", _("most attempts"), most),
            Fact("backoff", _("backoff"), waits_in_words(backoff)),
            Fact("tags", _("tags"), self.tags),
            Fact("schedule", _("schedule"), origin),
            Fact("", _("tick"), origin and origin.tick),
        ]

    def times(self) -> list[Fact]:
        waits = self.task.status == models.Status.WAITING
        return [
            *times(self.task),
            Fact("", _("waiting for"), self.task.clock - due_at(self.task) if waits else None),
            Fact("waited", _("waited"), span(waited(self.task, self.attempts))),
            Fact("ran", _("ran"), span(ran(self.attempts))),
        ]

    def counts(self) -> list[Fact]:
        """Return what counts for its next attempt, or did for its last one."""
        counts: Any = self.ticket or self.letter
        return [
            Fact("errors", _("errors"), counts and counts.errors),
            Fact("crashes", _("crashes"), counts and counts.crashes),
            *self.in_line(),
        ]

    def in_line(self) -> Iterator[Fact]:
        if self.case and self.ticket and self.case.lane.id == self.ticket.lane:
            lane = self.case.lane
            yield Fact("weight", _("user's weight"), lane.weight)
            yield Fact("user_running", _("user's running tasks"), lane.running)
            yield Fact("user_most", _("at most"), lane.max_running)

    def remarks(self) -> list[Fact]:
        """Return what became of it, for programs: its page and the command say so in words."""
        return [
            Fact("note", "", remark(self.task)),
            Fact("cancel_requested", "", bool(self.ticket and self.ticket.cancel_requested)),
            Fact("group", "", self.letter and self.letter.group),
            Fact("message", "", self.letter and self.letter.message),
            Fact("why", "", self.reason),
        ]


def newest_tries(task: models.Task, most: int | None) -> list[Try]:
    """Return a task's newest attempts, the first of them first."""
    newest = list(task.attempts.order_by("-pk")[:most])[::-1]
    if most is None or len(newest) < most:
        return tries(task, newest)
    older = task.attempts.filter(pk__lt=newest[0].pk)
    facts = older.aggregate(count=Count("pk"), omitted=Sum("omitted", default=0))
    return tries(task, newest, before=facts["count"] + facts["omitted"])


def ran(attempts: Sequence[Try]) -> float | None:
    """Return the seconds that these attempts took in all."""
    known = [attempt.seconds for attempt in attempts if attempt.seconds is not None]
    return sum(known) if known else None


# The attempts of a task, in order, with the one that finished it.


@dataclass(frozen=True, slots=True)
class Try:
    """
    One attempt that has ended, and its place among those of its task that count.

    The ``row`` of the one that finished the task is not stored: the task has its values.
    """

    number: int
    row: models.Attempt

    @property
    def seconds(self) -> float | None:
        """How long it took; None where it never started."""
        start = self.row.started_at
        return None if start is None else max(0.0, (self.row.ended_at - start).total_seconds())

    @property
    def label(self) -> str:
        is_finished = self.row.ending == models.Outcome.FINISHED
        return str(models.Outcome.FINISHED.label if is_finished else self.row.get_ending_display())


def tries(task: models.Task, rows: Sequence[models.Attempt], *, before: int = 0) -> list[Try]:
    """Return a task's attempts; ``rows`` are those that did not finish it, but the first few."""
    numbers = list(accumulate((1 + row.omitted for row in rows), initial=before))
    found = [Try(number, row) for number, row in zip(numbers[1:], rows, strict=True)]
    if task.outcome == models.Outcome.FINISHED and task.started_at and task.ended_at:
        success = models.Attempt(
            number=task.attempt,
            ending=models.Outcome.FINISHED.value,
            worker=task.worker,
            started_at=task.started_at,
            ended_at=task.ended_at,
        )
        found.append(Try(numbers[-1] + 1, success))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """
    One acquire: its try, and the journal of its handler.

    It has no try while it runs, nor after it was given back.
    """

    attempt: Try | None
    journal: models.Journal | None
    is_running: bool = False


# A workflow: what a task has kept and what it waits for, in order.


STATES = {
    "kept": _("step"),
    "sent": _("signal"),
    "waiting": _("waits for this signal"),
    "answered": _("has waited for this signal"),
    "timed_out": _("no such signal came in time"),
    "sleeping": _("sleeps"),
    "slept": _("has slept"),
    "joining": _("waits for these tasks"),
    "joined": _("has waited for these tasks"),
    "ended": _("the task ended first"),
}
SINCE = {models.Step.Kind.STEP: _("kept"), models.Step.Kind.SIGNAL: _("sent")}


@dataclass(frozen=True, slots=True)
class WorkflowEntry:
    """A step, a wait or a signal of a task, its state, and who sent a signal, where known."""

    row: models.Step
    state: str
    by: str

    @property
    def word(self) -> str:
        return str(STATES[self.state])

    @property
    def result(self) -> str | None:
        """
        What was returned or sent, as it is stored; None of a wait that a signal ends, and of one
        for tasks, which have their results.
        """
        is_join = self.row.kind == models.Step.Kind.JOIN
        return None if is_join else self.row.result_text or None

    def facts(self) -> list[Fact]:
        row = self.row
        return [
            Fact("kind", "", models.Step.Kind(row.kind).name.lower()),
            Fact("name", "", row.name),
            Fact("state", "", self.state),
            Fact("kept_at", SINCE.get(models.Step.Kind(row.kind), _("since")), row.kept_at),
            Fact("until", _("until"), row.until),
            Fact("by", _("by"), self.by),
        ]


def workflow(story: Story, most: int | None = None) -> Iterator[WorkflowEntry]:
    """Yield the first ``most`` of what a task has kept, in order."""
    afters = ((change.after or {}, change.by) for change in story.actions)
    senders = {after[SIGNAL]: by for after, by in afters if SIGNAL in after}
    rows = models.Step.objects.using(story.using).filter(task_id=story.task.pk)
    signals = models.Step.objects.filter(
        task_id=OuterRef("task_id"), kind=models.Step.Kind.SIGNAL, name=OuterRef("name")
    )
    rows = rows.annotate(answered=Exists(signals)).order_by("pk")
    for row in rows[:most] if most else rows.iterator():
        by = senders.get(row.name, "") if row.kind == models.Step.Kind.SIGNAL else ""
        yield WorkflowEntry(row, state_of(row, story.task), by)


def state_of(row: Any, task: models.Task) -> str:
    """Return in which of the STATES a row is that was asked whether its signal is there."""
    if row.kind == models.Step.Kind.STEP:
        return "kept"
    if row.kind == models.Step.Kind.SIGNAL:
        return "sent"
    if row.kind == models.Step.Kind.SLEEP:
        word = "slept" if row.until <= task.clock else "sleeping"
    elif row.kind == models.Step.Kind.JOIN:
        word = "joined" if row.result_text else "joining"
    elif row.result_text:
        word = "timed_out"
    else:
        word = "answered" if row.answered else "waiting"
    return "ended" if task.outcome and word in ("sleeping", "waiting", "joining") else word


def remark(task: models.Task) -> str:
    """Return what the status alone does not say, in a sentence, or an empty text."""
    ticket = ticket_of(task)
    if task.outcome == models.Outcome.FINISHED and task.started_at is None:
        return gettext("Someone closed it as finished.")
    if ticket and ticket.is_parked:
        return gettext("A worker gave it back: it has no handler for its type.")
    if ticket and is_put_off(task, models.LastEnding.RELEASED):
        return gettext(
            "A worker gave it back untried; perhaps no worker has a handler for its type."
        )
    if ticket and is_put_off(task, models.LastEnding.SNOOZED):
        return gettext("Its handler has snoozed it.")
    if ticket and ticket.last_ending == models.LastEnding.YIELDED:
        return gettext("It has let the tasks of others go first between two of its steps.")
    letter: models.DeadLetter | None = getattr(task, "dead_letter", None)
    if (
        task.outcome == models.Outcome.CANCELLED
        and letter
        and letter.group == models.DISCARDED_GROUP
    ):
        return gettext("Its handler has discarded it.")
    return ""


def is_put_off(task: models.Task, ending: models.LastEnding) -> bool:
    """Return whether a task waits for its time because its last attempt ended like this."""
    return task.status == models.Status.SCHEDULED and task.ticket.last_ending == ending


def due_at(task: models.Task) -> datetime:
    """Return when a task may start, or when it was wanted if it has ended."""
    ticket = ticket_of(task)
    if ticket is None:
        return task.run_at
    if ticket.state == models.State.SCHEDULED and ticket.timer_at and not ticket.is_parked:
        return ticket.timer_at
    # A ticket whose task has an expected start is ordered by that.
    due = task.run_at if ticket.run_at == task.expected_at else ticket.run_at
    return max(due, task.created_at)


def waited(task: models.Task, attempts: Sequence[Try]) -> float | None:
    """
    Return the seconds from when it was first due until it first started.

    None where that is not known: it has not started, or its first attempts are not here.
    """
    first = attempts[0] if attempts else None
    if first is not None and first.number > 1:
        return None
    start = first.row.started_at if first else task.started_at
    if start is None:
        return None
    return max(0.0, (start - max(task.run_at, task.created_at)).total_seconds())
