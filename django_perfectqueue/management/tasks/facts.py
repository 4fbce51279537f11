"""The facts about a task, for people and for programs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.utils.translation import gettext as _

from django_perfectqueue.exceptions import PayloadError
from django_perfectqueue.inspection.attempts import Episode, Try, due_at, remark, waited
from django_perfectqueue.lib.durations import short_duration
from django_perfectqueue.models import DeadLetter, Journal, Status, Task, Ticket
from django_perfectqueue.payload.codecs import decode
from django_perfectqueue.payload.redaction import masked


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
        return (_("leased for %s") if held_until > now else _("lapsed %s ago")) % away
    if task.ended_at:
        return _("ended %s ago") % short_duration((now - task.ended_at).total_seconds())
    if task.status == Status.BLOCKED:
        return ""
    if task.expires_at and task.expires_at <= now:
        return _("expired %s ago") % short_duration((now - task.expires_at).total_seconds())
    wait = (due_at(task) - now).total_seconds()
    return (_("due in %s") if wait > 0 else _("due for %s")) % short_duration(wait)


def summary(task: Any, *, with_data: bool) -> dict[str, object]:
    facts = {
        "id": task.id,
        "queue": task.queue,
        "key": task.key,
        "type": task.type,
        "user": task.user or None,
        "status": task.status,
        "priority": task.priority,
        "limits": task.limits.split(",") if task.limits else [],
        "time_limit": task.time_limit,
        "attempts": task.tries,
        "created_at": iso(task.created_at),
        "run_at": iso(due_at(task)),
        "expected_at": iso(task.expected_at),
        "lease_until": iso(lease_until(task)),
        "expires_at": iso(task.expires_at),
        "ended_at": iso(task.ended_at),
    }
    return facts | (content("data", task.payload) if with_data else {})


def story(task: Any, attempts: Sequence[Try], *, with_data: bool) -> dict[str, Any]:
    ticket, letter = ticket_of(task), dead_letter_of(task)
    counts = ticket or letter
    facts = summary(task, with_data=with_data) | {
        "started_at": iso(task.started_at),
        "worker": task.worker or None,
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


def attempt_facts(attempt: Try) -> dict[str, Any]:
    return {
        "attempt": attempt.number,
        "ending": attempt.ending,
        "worker": attempt.worker or None,
        "started_at": iso(attempt.started_at),
        "ended_at": iso(attempt.ended_at),
        "error": attempt.error or None,
        "message": attempt.message or None,
        "traceback": attempt.traceback or None,
    }


def progress_facts(journal: Journal | None) -> dict[str, object] | None:
    if journal is None:
        return None
    return {
        "progress": journal.progress,
        "stage": journal.stage or None,
        "updated_at": iso(journal.updated_at),
    }


def journal_facts(episode: Episode) -> dict[str, object] | None:
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


def content(name: str, text: str | None) -> dict[str, object]:
    """Return stored JSON as it was given; where it can't be read, its text under another name."""
    if text is None:
        return {name: None}
    try:
        return {name: decode(text)}
    except PayloadError:
        return {f"broken_{name}": text}


def context_of(task: Task) -> dict[str, object]:
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
