"""The facts about a task, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

from django_perfectqueue.exceptions import PayloadError
from django_perfectqueue.inspection import task as inspected
from django_perfectqueue.inspection.family import JOINED, Family, FamilyLink, Linked, Relative
from django_perfectqueue.inspection.why_waiting import Code
from django_perfectqueue.lib.durations import short_duration
from django_perfectqueue.lib.printable import on_one_line
from django_perfectqueue.models import Journal, Status, Task
from django_perfectqueue.payload.codecs import decode
from django_perfectqueue.payload.context import masked
from django_perfectqueue.queue import Batch

from .terminal import Facts, known, picked

RELATIVES = 5
OF_ATTEMPTS = ("ending", "worker", "started_at", "ended_at", "error", "message", "traceback")


def situation(task: Task, now: datetime) -> str:
    """Return what a task waits for, or when it ended, seen from now."""
    held_until = inspected.lease_until(task)
    if held_until:
        away = short_duration((held_until - now).total_seconds())
        return ("leased for %s" if held_until > now else "lapsed %s ago") % away
    if task.ended_at:
        return f"ended {short_duration((now - task.ended_at).total_seconds())} ago"
    if task.status == Status.BLOCKED:
        return ""
    if task.expires_at and task.expires_at <= now:
        return f"expired {short_duration((now - task.expires_at).total_seconds())} ago"
    if (ticket := inspected.ticket_of(task)) and ticket.is_parked:
        return "waits for a worker that knows its type"
    wait = (inspected.due_at(task) - now).total_seconds()
    return ("due in %s" if wait > 0 else "due for %s") % short_duration(wait)


def summary(task: Task, *, with_data: bool) -> Facts:
    facts = facts_for_programs([*inspected.about(task), *inspected.times(task)])
    return facts | (content("data", task.payload) if with_data else {})


def facts_for_programs(facts: Iterable[inspected.Fact]) -> Facts:
    return {fact.name: known(fact.value) for fact in facts if fact.name}


def fields(facts: Iterable[inspected.Fact]) -> Iterator[tuple[str, object]]:
    """Yield the labels and the values of the facts that people see."""
    return ((str(fact.label), fact.value) for fact in facts if fact.is_shown)


def story_facts(story: inspected.Story, *, with_data: bool) -> Facts:
    task = story.task
    facts = [*story.about(), *story.times(), *story.counts(), *story.remarks()]
    tried = [{"attempt": one.number, **picked(one.row, *OF_ATTEMPTS)} for one in story.attempts]
    found = facts_for_programs(facts) | {"history": tried}
    if not with_data:
        return found
    found |= content("data", task.payload) | content("result", task.result_text)
    return found | context_of(task)


def progress_facts(journal: Journal | None) -> Facts | None:
    return picked(journal, "progress", "stage", "updated_at") if journal else None


def journal_facts(episode: inspected.Episode) -> Facts | None:
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


def kept_facts(kept: inspected.WorkflowEntry, *, with_data: bool) -> Facts:
    return facts_for_programs(kept.facts()) | (content("result", kept.result) if with_data else {})


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


def standing(story: inspected.Story) -> Iterator[tuple[str, str]]:
    """Yield where a task stands, and why."""
    task, letter = story.task, story.letter
    state = situation(task, task.clock)
    yield "status", f"{task.status}, {state}" if state else task.status
    if story.reason.code not in (Code.ENDED, Code.RUNNING):
        yield "why", story.reason.sentence
    if remarked := inspected.remark(task):
        yield "note", remarked
    if letter:
        yield "because", why(letter.group, letter.message)
    if story.ticket and story.ticket.cancel_requested:
        yield "cancel", "requested"


def why(error: str, message: str) -> str:
    return on_one_line(": ".join(part for part in (error, message) if part))


def family_facts(found: Family, batch: Batch | None) -> Facts:
    """Return them for programs; ``family_more`` says that there are others."""
    return {
        "parents": relative_facts(found.parents),
        "children": relative_facts(found.children),
        "family_more": found.more,
        "batch": batch_facts(batch) if batch else None,
    }


def relative_facts(pairs: Iterable[Linked]) -> list[Facts]:
    return [{**one.facts(), "if_failed": link.mode, "state": link.state} for one, link in pairs]


def batch_facts(batch: Batch) -> Facts:
    counts = picked(batch.progress(), "total", "finished", "dead", "open", "ended")
    return {**picked(batch, "name", "id", "user"), "queue": batch.queue.name, **counts}


def family_fields(found: Family, batch: Batch | None) -> Iterator[tuple[str, str]]:
    """Yield the lines of a task's family, each with its label."""
    joined = [pair for pair in found.parents if pair[1].mode == JOINED]
    if parents := [pair for pair in found.parents if pair not in joined]:
        yield "waits for", listed(parents, more=found.more)
    if joined:
        yield "runs or joins", listed(joined, more=found.more)
    if found.children:
        yield "followed by", listed(found.children, more=found.more)
    if batch:
        yield "batch", f"{batch.name}: {counted(batch)}"


def listed(pairs: Sequence[Linked], *, more: bool) -> str:
    """Return the first of some relatives in a line, each with its status and mode."""
    words = [described(one, link) for one, link in pairs[:RELATIVES]]
    if more or len(pairs) > RELATIVES:
        words.append("and more")
    return ", ".join(words)


def described(one: Relative, link: FamilyLink) -> str:
    name = f"batch {one.key}" if one.is_batch else one.key
    option = "when" if link.parent < 0 else "if_failed"
    if link.mode == "sequence":
        return f"{name} ({one.word}, sequence)"
    mode = "" if link.mode in ("wait", JOINED) else f", {option}={link.mode}"
    return f"{name} ({one.word}{mode})"


def counted(batch: Batch) -> str:
    """Return in words what a batch has."""
    found = batch.progress()
    return f"{found.finished} of {found.total} finished, {found.dead} dead, {found.open} open"
