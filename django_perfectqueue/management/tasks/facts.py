"""The facts about a task, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, TypeAlias, TypedDict

from django_perfectqueue.exceptions import PayloadError
from django_perfectqueue.inspection.attempts import Episode, Try, due_at, remark, waited
from django_perfectqueue.inspection.why_waiting import Code, Reason
from django_perfectqueue.lib.durations import short_duration
from django_perfectqueue.lib.printable import on_one_line
from django_perfectqueue.models import DeadLetter, Journal, Status, Step, Task, Ticket
from django_perfectqueue.payload.codecs import decode
from django_perfectqueue.payload.redaction import masked

from ..terminal.text import local

if TYPE_CHECKING:
    from django_stubs_ext import WithAnnotations

Facts = dict[str, object]


class Clock(TypedDict):
    """What a listing adds to its rows: the time on the database's clock."""

    clock: datetime


class Added(Clock):
    tries: int


ListedTask: TypeAlias = "WithAnnotations[Task, Added]"


def picked(row: object, *names: str) -> Facts:
    """Return these values of a row by their names, with times and empty texts as JSON has them."""
    return {name: plain(getattr(row, name)) for name in names}


def plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat()
    return None if value == "" else value


def ticket_of(task: Task) -> Ticket | None:
    return getattr(task, "ticket", None)


def dead_letter_of(task: Task) -> DeadLetter | None:
    return getattr(task, "dead_letter", None)


def lease_until(task: Task) -> datetime | None:
    ticket = ticket_of(task)
    held = task.status in (Status.RUNNING, Status.STALLED)
    return ticket.alarm_at if ticket and held else None


def situation(task: Task, now: datetime) -> str:
    """Return what a task waits for, or when it ended, seen from now."""
    held_until = lease_until(task)
    if held_until:
        away = short_duration((held_until - now).total_seconds())
        return ("leased for %s" if held_until > now else "lapsed %s ago") % away
    if task.ended_at:
        return f"ended {short_duration((now - task.ended_at).total_seconds())} ago"
    if task.status == Status.BLOCKED:
        return ""
    if task.expires_at and task.expires_at <= now:
        return f"expired {short_duration((now - task.expires_at).total_seconds())} ago"
    wait = (due_at(task) - now).total_seconds()
    return ("due in %s" if wait > 0 else "due for %s") % short_duration(wait)


def summary(task: ListedTask, *, with_data: bool) -> Facts:
    facts = {
        **picked(task, "id", "queue", "key", "type", "user", "status", "priority"),
        "limits": task.limits.split(",") if task.limits else [],
        "time_limit": task.time_limit,
        "attempts": task.tries,
        "created_at": iso(task.created_at),
        "run_at": iso(due_at(task)),
        "expected_at": iso(task.expected_at),
        "lease_until": iso(lease_until(task)),
        **picked(task, "expires_at", "ended_at"),
    }
    return facts | (content("data", task.payload) if with_data else {})


def story(task: ListedTask, attempts: Sequence[Try], *, with_data: bool) -> Facts:
    ticket, letter = ticket_of(task), dead_letter_of(task)
    counts = ticket or letter
    facts = summary(task, with_data=with_data) | {
        **picked(task, "started_at", "worker"),
        "errors": counts.errors if counts else None,
        "crashes": counts.crashes if counts else None,
        "note": remark(task) or None,
        "cancel_requested": bool(ticket and ticket.cancel_requested),
        "group": letter.group if letter else None,
        "message": letter.message if letter else None,
        "waited": waited(task, attempts),
        "ran": ran(attempts),
        "history": [attempt_facts(attempt) for attempt in attempts],
    }
    if not with_data:
        return facts
    return facts | content("result", task.result_text) | context_of(task)


def attempt_facts(attempt: Try) -> Facts:
    names = ("ending", "worker", "started_at", "ended_at", "error", "message", "traceback")
    return {"attempt": attempt.number, **picked(attempt, *names)}


def progress_facts(journal: Journal | None) -> Facts | None:
    return picked(journal, "progress", "stage", "updated_at") if journal else None


def journal_facts(episode: Episode) -> Facts | None:
    """Return an attempt's journal; ``attempt`` is None if it is not counted or still runs."""
    if episode.journal is None:
        return None
    return {
        "acquired": episode.journal.number,
        "attempt": episode.attempt.number if episode.attempt else None,
        "running": episode.is_running,
        **(progress_facts(episode.journal) or {}),
        "log": [line.facts() for line in episode.journal.log],
    }


def step_facts(step: Step, *, with_data: bool) -> Facts:
    return picked(step, "name", "kept_at") | (
        content("result", step.result_text) if with_data else {}
    )


def content(name: str, text: str | None) -> Facts:
    """Return stored JSON as it was given; where it can't be read, its text under another name."""
    if text is None:
        return {name: None}
    try:
        return {name: decode(text)}
    except PayloadError:
        return {f"broken_{name}": text}


def context_of(task: Task) -> Facts:
    """Return what a task has taken along of its submitter's surroundings, for all eyes."""
    return {name: masked(value) for name, value in content("context", task.context).items()}


def ran(attempts: Sequence[Try]) -> float | None:
    """Return the seconds that these attempts took together."""
    known = [
        (attempt.ended_at - attempt.started_at).total_seconds()
        for attempt in attempts
        if attempt.started_at
    ]
    return sum(known) if known else None


def iso(moment: datetime | None) -> str | None:
    return moment.isoformat() if moment else None


def fields(task: ListedTask, attempts: list[Try], reason: Reason) -> Iterator[tuple[str, str]]:
    ticket, letter = ticket_of(task), dead_letter_of(task)
    state = situation(task, task.clock)
    yield "status", f"{task.status}, {state}" if state else task.status
    if reason.code not in (Code.ENDED, Code.RUNNING):
        yield "why", reason.sentence
    if remarked := remark(task):
        yield "note", remarked
    if letter:
        yield "because", why(letter.group, letter.message)
    if ticket and ticket.cancel_requested:
        yield "cancel", "requested"
    yield "type", task.type
    if task.user:
        yield "user", task.user
    yield "priority", str(task.priority)
    if task.limits:
        yield "limits", task.limits.replace(",", ", ")
    if task.time_limit:
        yield "time limit", short_duration(task.time_limit)
    yield from times(task, attempts)
    yield "attempts", attempts_line(task)
    if task.worker:
        yield "worker", task.worker
    yield "id", str(task.id)


def times(task: Task, attempts: list[Try]) -> Iterator[tuple[str, str]]:
    due = due_at(task)
    for name, moment in (
        ("created", task.created_at),
        ("due", None if due == task.created_at else due),
        ("expected", task.expected_at),
        ("lease until", lease_until(task)),
        ("expires", task.expires_at),
        ("started", task.started_at),
        ("ended", task.ended_at),
    ):
        if moment:
            yield name, local(moment)
    for name, span in (("waited", waited(task, attempts)), ("ran", ran(attempts))):
        if span is not None:
            yield name, short_duration(span)


def attempts_line(task: ListedTask) -> str:
    counts = ticket_of(task) or dead_letter_of(task)
    if counts is None or not (counts.errors or counts.crashes):
        return str(task.tries)
    return f"{task.tries} (errors: {counts.errors}, crashes: {counts.crashes})"


def why(error: str, message: str) -> str:
    return on_one_line(": ".join(part for part in (error, message) if part))
