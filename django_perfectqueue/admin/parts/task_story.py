"""The facts of a task's page: what it is, where it stands and why, and each attempt's end."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Count, Sum
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.timezone import template_localtime  # type: ignore[attr-defined]
from django.utils.translation import gettext as _

from django_perfectqueue.exceptions import PayloadError
from django_perfectqueue.inspection.attempts import (
    Episode,
    Try,
    due_at,
    episodes,
    journals_of,
    present,
    remark,
    steps_of,
    tries,
    waited,
)
from django_perfectqueue.inspection.family import Known
from django_perfectqueue.inspection.schedules import origin_of
from django_perfectqueue.inspection.steering import actions_of, describe_action
from django_perfectqueue.inspection.why_waiting import Case, Code, Reason
from django_perfectqueue.inspection.workers import location_of
from django_perfectqueue.lib.printable import printable, printable_lines
from django_perfectqueue.models import (
    Attempt,
    BatchMember,
    Journal,
    Lane,
    State,
    Status,
    Task,
    Ticket,
)
from django_perfectqueue.payload.codecs import decode
from django_perfectqueue.payload.journal import Line
from django_perfectqueue.payload.redaction import STARS, masked

from .cells import NOTHING, badge, duration, list_link, moment, next_moment, page_url, tasks_link

EXPLAINED = (Code.ENDED, Code.RUNNING, Code.STALLED)
NAMING = (Code.BLOCKED, Code.PARENT_FAILED, Code.BATCH_OPEN, Code.BATCH_FAILED)
"""Reasons that name another task or a batch, which may be another user's."""
ATTEMPTS = 50
STEPS = 50
TAGS = 100
LONGEST = 100_000


@dataclass(frozen=True, slots=True)
class Text:
    """A stored payload as it can be shown."""

    text: str
    problem: str = ""
    cut: int = 0


@dataclass(frozen=True, slots=True)
class Said:
    """A line of a log as it is shown."""

    at: str
    level: str
    source: str
    text: str


@dataclass(frozen=True, slots=True)
class Shown:
    """One attempt as it is shown; without ``attempt`` it runs, or does not count."""

    attempt: Try | None
    message: str
    traceback: str
    number: int | None
    label: str
    started: str
    ran: str
    log: list[Said]
    is_open: bool


@dataclass(frozen=True, slots=True)
class HowFar:
    """A handler's progress; ``percent`` is None where it reported no part."""

    percent: int | None
    stage: str
    at: str


def task_story(task: Any, *, using: str, known: Known, sees_all: bool = True) -> dict[str, Any]:
    """Return the context of a task's page: names of other users' tasks only for ``sees_all``."""
    ticket: Ticket | None = getattr(task, "ticket", None)
    case = Case(task, ticket, using, task.clock) if ticket else None
    member = BatchMember.objects.using(using).filter(pk=task.pk).values("batch_id")
    batch = known.batches.filter(pk__in=member).order_by().first()
    journals = list(journals_of(task, using=using))
    steps = list(steps_of(task, using=using)[: STEPS + 1])
    newest = list(task.attempts.order_by("-pk")[:ATTEMPTS])
    ended = attempts(task, newest[::-1])
    letter = getattr(task, "dead_letter", None)
    return {
        "badge": badge(task.status),
        "sentences": [explain(task), *reasons(task, case, sees_all)],
        "about": [*about(task), *location_facts(task, using)],
        "batch": batch,
        "batch_name": printable(batch.name) if batch else "",
        "times": times(task, ticket, ended, task.clock),
        "line": position_facts(task, case),
        "letter": letter,
        "why": printable_lines(letter.message) if letter else "",
        "data": shown(task.payload),
        "result": None if task.result_text is None else shown(task.result_text),
        "context": None if task.context is None else shown(task.context),
        "steps": [
            (printable(step.name), moment(step.kept_at), shown(step.result_text)) for step in steps
        ],
        "steps_shown": STEPS,
        "actions": [
            (moment(one.at), one.by, describe_action(one)) for one in actions_of(task, using=using)
        ],
        "progress": how_far(present(task, journals)),
        "attempts": [attempt_row(task, one) for one in episodes(task, ended, journals)],
        "attempts_shown": ATTEMPTS,
        "attempts_hidden": bool(ended) and ended[0].number > 1,
    }


def explain(task: Task) -> str:
    """Return what the status means, in a sentence."""
    if task.outcome and (closed := remark(task)):
        return closed
    sentences = {
        Status.WAITING: _("It is due, and waits for a processor."),
        Status.SCHEDULED: _("It waits for its time."),
        Status.RETRYING: _("An attempt did not finish it; it waits to be tried again."),
        Status.BLOCKED: "",  # the reason says for which
        Status.RUNNING: _("A processor has it, and renews the lease as long as it works on it."),
        Status.STALLED: _(
            "Its lease has run out: the processor or its host went away. It will be tried again."
        ),
        Status.FINISHED: _("Its handler has returned."),
        Status.FAILED: _("It is given up, and kept until someone acts."),
        Status.CANCELLED: _("It was cancelled, as someone asked."),
        Status.EXPIRED: _("Its time had passed before it could start."),
    }
    return sentences[Status(task.status)]


def reasons(task: Task, case: Case | None, sees_all: bool) -> list[str]:
    """Return what else keeps a task where it is."""
    if case is None:
        return []
    found = [_("It has been asked to stop.")] if case.ticket.cancel_requested else []
    if remarked := remark(task):
        found.append(remarked)
    reason = case.reason
    if reason.code in NAMING and not sees_all:
        reason = Reason(code=Code.BLOCKED)
    return found + ([] if reason.code in EXPLAINED else [reason.sentence])


def about(task: Task) -> list[tuple[str, str]]:
    return [
        (_("queue"), tasks_link(printable(task.queue), queue=task.queue)),
        (_("type"), tasks_link(printable(task.type), queue=task.queue, type=task.type)),
        (_("priority"), str(task.priority)),
        *([(_("limits"), limit_links(task))] if task.limits else []),
        *([(_("time limit"), duration(task.time_limit))] if task.time_limit else []),
        *tag_facts(task),
        *schedule_facts(task),
        (_("id"), str(task.pk)),
        *([(_("worker"), task.worker)] if task.worker else []),
    ]


def tag_facts(task: Task) -> list[tuple[str, str]]:
    """Return the tags of a task, each with a link to all tasks that have it."""
    links = [
        (tasks_link(printable(tag.tag), tag=tag.tag),) for tag in task.tags.order_by("pk")[:TAGS]
    ]
    chip = '<span class="pq-tag">{}</span>'
    return [(_("tags"), format_html_join(" ", chip, links))] if links else []


def limit_links(task: Task) -> SafeString:
    links = ([list_link("limit", printable(name), q=name)] for name in task.limits.split(","))
    return format_html_join(", ", "{}", links)


def schedule_facts(task: Task) -> list[tuple[str, str]]:
    """Return which schedule has submitted a task, with a link, and for which tick."""
    if (origin := origin_of(task)) is None:
        return []
    link = list_link("schedule", printable(origin.schedule), q=origin.schedule)
    return [(_("schedule"), link), (_("tick"), moment(origin.tick))]


def location_facts(task: Task, using: str) -> list[tuple[str, str]]:
    """Return which processor runs a task, and since when, as far as its worker has reported."""
    held = task.status in (Status.RUNNING, Status.STALLED)
    if not held or (found := location_of(task, using=using)) is None:
        return []
    url = page_url("worker_changelist")
    worker = format_html('<a href="{}">{}</a>', url, found)
    if found.since is None:
        return [(_("held by"), worker)]
    return [(_("runs on"), worker), (_("runs since"), moment(found.since))]


def times(
    task: Task, ticket: Ticket | None, attempts: Sequence[Try], now: datetime
) -> list[tuple[str, str]]:
    """Return its moments in order, and how long it waited and ran."""
    facts = [(_("submitted"), moment(task.created_at))]
    if task.run_at != task.created_at:
        facts.append((_("wanted at"), moment(task.run_at)))
    if task.expected_at:
        facts.append((_("expected at"), moment(task.expected_at)))
    if task.expires_at:
        facts.append((_("expires at"), moment(task.expires_at)))
    if not task.outcome:
        word, at = next_moment(task)
        facts.append((str(word), moment(at)))
    if ticket and task.status == Status.WAITING:
        facts.append((_("waiting for"), duration(seconds(due_at(task), now))))
    if (wait := waited(task, attempts)) is not None:
        facts.append((_("waited"), duration(wait)))
    if task.started_at:
        facts.append((_("last started"), moment(task.started_at)))
    if task.ended_at:
        facts.append((_("ended"), moment(task.ended_at)))
    if task.started_at and task.ended_at:
        facts.append((_("ran"), duration(seconds(task.started_at, task.ended_at))))
    return facts


def position_facts(task: Task, case: Case | None) -> list[tuple[str, str]]:
    """Return a live task's position in its queue."""
    if case is None:
        return []
    ticket, lane = case.ticket, case.lane
    facts = [
        *([(_("waits for"), wanted)] if (wanted := waits_for(task, ticket)) else []),
        (_("times acquired"), str(ticket.attempt)),
        (_("errors"), str(ticket.errors)),
        (_("crashes"), str(ticket.crashes)),
    ]
    if lane.id == ticket.lane:
        share = list_link("fairshare", f"{lane.weight:g}", q=lane.user)
        running = list_link("lane", runs(lane), q=lane.user, queue=lane.queue)
        facts += [(_("user's weight"), share), (_("user's running tasks"), running)]
    return facts


def runs(lane: Lane) -> str:
    """Return how many tasks of a user run, and how many may."""
    if lane.max_running is None:
        return str(lane.running)
    return _("%(running)d, at most %(most)d") % {
        "running": lane.running,
        "most": lane.max_running,
    }


def waits_for(task: Task, ticket: Ticket) -> str:
    """Return what a task waits for, or nothing when someone has it."""
    if ticket.state == State.RUNNING:
        return ""
    state = State.WAITING if task.status == Status.WAITING else State(ticket.state)
    return str(state.label)


def attempts(task: Task, newest: Sequence[Attempt]) -> list[Try]:
    """Return its newest attempts, the first of them first."""
    if len(newest) < ATTEMPTS:
        return tries(task, newest)
    older = task.attempts.filter(pk__lt=newest[0].pk)
    facts = older.aggregate(count=Count("pk"), omitted=Sum("omitted", default=0))
    return tries(task, newest, before=facts["count"] + facts["omitted"])


def attempt_row(task: Any, episode: Episode) -> Shown:
    attempt, journal = episode.attempt, episode.journal
    number, label = None, _("not counted")
    if attempt:
        number, label = attempt.number, attempt.label
    elif episode.is_running:
        number, label = task.tries, _("running")
    return Shown(
        attempt=attempt,
        message=printable_lines(attempt.message) if attempt else "",
        traceback=printable_lines(attempt.traceback) if attempt else "",
        number=number,
        label=label,
        started=moment(attempt.started_at or attempt.ended_at) if attempt else "",
        ran=duration(seconds(attempt.started_at, attempt.ended_at))
        if attempt and attempt.started_at
        else NOTHING,
        log=[said(line) for line in journal.log] if journal else [],
        is_open=episode.is_running,
    )


def said(line: Line) -> Said:
    at = template_localtime(line.at).strftime("%H:%M:%S") if line.at else ""
    return Said(at=at, level=line.level, source=line.source, text=printable_lines(line.text))


def how_far(journal: Journal | None) -> HowFar | None:
    if journal is None:
        return None
    percent = None if journal.progress is None else round(100 * journal.progress)
    return HowFar(percent=percent, stage=journal.stage, at=moment(journal.updated_at))


def shown(text: str) -> Text:
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
    return Text(pretty[:LONGEST], problem, cut=max(0, len(pretty) - LONGEST))


def readable(value: object) -> str:
    pretty = json.dumps(value, ensure_ascii=False, indent=2)
    try:
        pretty.encode()
    except UnicodeEncodeError:  # a lone surrogate, which only an escape can show
        return json.dumps(value, indent=2)
    return pretty


def seconds(start: datetime, end: datetime) -> float:
    return max(0.0, (end - start).total_seconds())
