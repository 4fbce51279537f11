"""The facts of a task's page: what it is, where it stands and why, and each attempt's end."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.utils.html import format_html_join
from django.utils.safestring import SafeString
from django.utils.timezone import template_localtime  # type: ignore[attr-defined]
from django.utils.translation import gettext as _

from django_perfectqueue.exceptions import PayloadError
from django_perfectqueue.inspection.steering import describe_action
from django_perfectqueue.inspection.task import Episode, Fact, Story, remark, steps_of
from django_perfectqueue.inspection.why_waiting import Code, Reason
from django_perfectqueue.lib.printable import printable, printable_lines
from django_perfectqueue.models import Journal, Status, Task
from django_perfectqueue.payload.codecs import decode
from django_perfectqueue.payload.context import STARS, masked
from django_perfectqueue.payload.journal import Line

from .cells import NOTHING, badge, duration, list_link, moment, tasks_link

# Reasons that name another task or a batch, which may be another user's.
NAMING = (Code.BLOCKED, Code.PARENT_FAILED, Code.BATCH_OPEN, Code.BATCH_FAILED)
ATTEMPTS = 50
STEPS = 50
LONGEST = 100_000


def task_story(task: Any, *, using: str, sees_all: bool = True) -> dict[str, Any]:
    """Return the context of a task's page: names of other users' tasks only for ``sees_all``."""
    story = Story(task, using=using, most=ATTEMPTS)
    steps = list(steps_of(task, using=using)[: STEPS + 1])
    letter = story.letter
    return {
        "badge": badge(task.status),
        "sentences": sentences(story, sees_all),
        "about": shown_facts(story, story.about()),
        "batch": task.known_batch,
        "batch_name": printable(task.batch_name or ""),
        "times": shown_facts(story, story.times()),
        "line": shown_facts(story, story.counts()) if story.ticket else [],
        "letter": letter,
        "why": printable_lines(letter.message) if letter else "",
        "data": shown(task.payload),
        "result": None if task.result_text is None else shown(task.result_text),
        "context": None if task.context is None else shown(task.context),
        "steps": [
            (printable(step.name), moment(step.kept_at), shown(step.result_text)) for step in steps
        ],
        "steps_shown": STEPS,
        "actions": [(moment(one.at), one.by, describe_action(one)) for one in story.actions],
        "progress": how_far(story.progress),
        "attempts": [attempt_row(task, one) for one in story.episodes],
        "attempts_shown": ATTEMPTS,
        "attempts_hidden": bool(story.attempts) and story.attempts[0].number > 1,
    }


def shown_facts(story: Story, facts: Sequence[Fact]) -> list[tuple[str, object]]:
    """Return facts as the page shows them, with links to what they name."""
    return [(str(fact.label), shown_value(story.task, fact)) for fact in facts if fact.is_shown]


def shown_value(task: Task, fact: Fact) -> object:
    value: Any = fact.value
    if isinstance(value, datetime):
        return moment(value)
    if isinstance(value, timedelta):
        return duration(value.total_seconds())
    if isinstance(value, list):
        links = ((linked(task, fact.name, one),) for one in value)
        return format_html_join(" ", '<span class="pq-tag">{}</span>', links)
    return linked(task, fact.name, f"{value:g}" if isinstance(value, float) else value)


def linked(task: Task, name: str, value: object) -> SafeString | str:
    """Return a value with a link to the list that has more of the kind, if one has."""
    text = printable(str(value))
    links: dict[str, Callable[[], SafeString]] = {
        "queue": lambda: tasks_link(text, queue=task.queue),
        "type": lambda: tasks_link(text, queue=task.queue, type=task.type),
        "user": lambda: tasks_link(text, user=task.user),
        "tags": lambda: tasks_link(text, tag=value),
        "limits": lambda: list_link("limit", text, q=value),
        "schedule": lambda: list_link("schedule", text, q=value),
        "runs": lambda: list_link("worker", text),
        "weight": lambda: list_link("fairshare", text, user=task.user, queue=task.queue),
        "user_running": lambda: list_link("fairshare", text, user=task.user, queue=task.queue),
    }
    return links[name]() if name in links else text


def sentences(story: Story, sees_all: bool) -> list[str]:
    """Return what became of a task, or what keeps it where it is."""
    remarked = remark(story.task)
    if story.ticket is None:
        closed = {
            Status.FINISHED: _("Its handler has returned."),
            Status.FAILED: _("It has failed, and is kept until someone acts."),
            Status.CANCELLED: _("It was cancelled on request."),
            Status.EXPIRED: _("Its time had passed before it could start."),
        }
        # It may have ended after its row was read.
        return [str(said) for said in [remarked or closed.get(Status(story.task.status))] if said]
    reason = story.reason
    if reason.code in NAMING and not sees_all:
        reason = Reason(code=Code.BLOCKED)
    asked = _("It has been asked to stop.") if story.ticket.cancel_requested else ""
    return [*filter(None, [asked, remarked]), said_of(reason, story.task)]


def said_of(reason: Reason, task: Task) -> str:
    """Return a reason in words; what is paused leads to where it is unpaused."""
    pages = {
        Code.USER_PAUSED: ("fairshare", {"user": task.user, "queue": task.queue}),
        Code.QUEUE_PAUSED: ("queueshare", {"queue": task.queue}),
        Code.LIMIT_PAUSED: ("limit", {"q": reason.name.rpartition(":")[2]}),
    }
    if reason.code not in pages:
        return reason.sentence
    model, query = pages[reason.code]
    return list_link(model, reason.sentence, **query)


def attempt_row(task: Any, episode: Episode) -> dict[str, object]:
    """Return one attempt as it is shown; without ``attempt`` it runs, or does not count."""
    attempt, journal = episode.attempt, episode.journal
    number, label = None, _("not counted")
    if attempt:
        number, label = attempt.number, attempt.label
    elif episode.is_running:
        number, label = task.tries, _("running")
    return {
        "attempt": attempt,
        "message": printable_lines(attempt.message) if attempt else "",
        "traceback": printable_lines(attempt.traceback) if attempt else "",
        "number": number,
        "label": label,
        "started": moment(attempt.started_at or attempt.ended_at) if attempt else "",
        "ran": duration(seconds(attempt.started_at, attempt.ended_at))
        if attempt and attempt.started_at
        else NOTHING,
        "log": [said(line) for line in journal.log] if journal else [],
        "is_open": episode.is_running,
    }


def said(line: Line) -> dict[str, str]:
    """Return a line of a log as it is shown."""
    at = template_localtime(line.at).strftime("%H:%M:%S") if line.at else ""
    text = printable_lines(line.text)
    return {"at": at, "level": line.level, "source": line.source, "text": text}


def how_far(journal: Journal | None) -> dict[str, object] | None:
    """Return a handler's progress; the percents are None where it reported no part."""
    if journal is None:
        return None
    percent = None if journal.progress is None else round(100 * journal.progress)
    return {"percent": percent, "stage": journal.stage, "at": moment(journal.updated_at)}


def shown(text: str) -> dict[str, object]:
    """
    Return JSON set out to be read, without what is sensitive; or else the text as it is.

    Of what is nested too deep for that nothing is shown: it may well be JSON with secrets.
    """
    try:
        pretty, problem = readable(masked(decode(text))), ""
    except (PayloadError, RecursionError) as error:
        is_deep = isinstance(error.__cause__ or error, RecursionError)
        pretty, problem = STARS if is_deep else text, str(error)
    pretty = printable_lines(pretty)
    cut = max(0, len(pretty) - LONGEST)
    return {"text": pretty[:LONGEST], "problem": problem, "cut": cut}


def readable(value: object) -> str:
    pretty = json.dumps(value, ensure_ascii=False, indent=2)
    try:
        pretty.encode()
    except UnicodeEncodeError:  # a lone surrogate, which only an escape can show
        return json.dumps(value, indent=2)
    return pretty


def seconds(start: datetime, end: datetime) -> float:
    return max(0.0, (end - start).total_seconds())
