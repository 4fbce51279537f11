"""A task's whole story, for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime

from django.utils.timezone import localtime

from django_perfectqueue.exceptions import NotFoundError
from django_perfectqueue.inspection.attempts import Episode, Try, steps_of
from django_perfectqueue.inspection.family import family
from django_perfectqueue.inspection.steering import describe_action
from django_perfectqueue.inspection.story import Story
from django_perfectqueue.lib.durations import short_duration
from django_perfectqueue.lib.printable import on_one_line, printable
from django_perfectqueue.models import Change, Journal, Step, Task, TaskQuerySet
from django_perfectqueue.models.fields import ServerNow
from django_perfectqueue.payload.journal import Line
from django_perfectqueue.queue import batch_of

from . import facts
from .base import CommandOptions, QueueCommand
from .listing import with_hint
from .terminal import ago, bar, is_id, local

LAST_LINES = 10
LONGEST_STEP = 200
BELOW = 11
PAINT = {"WARNING": "WARNING", "ERROR": "ERROR", "CRITICAL": "ERROR"}


def show_tasks(command: QueueCommand, options: CommandOptions) -> None:
    """Show where tasks stand, their attempts, data, logs and results."""
    for key in options["names"]:
        TaskPage(command, options).show(key)


class TaskPage:
    """A task on a terminal, or as JSON."""

    def __init__(self, command: QueueCommand, options: CommandOptions) -> None:
        self.command = command
        self.options = options
        self.stdout, self.style = command.stdout, command.style
        self.next_number = 1

    def show(self, key: str) -> None:
        """Raise NotFoundError, with where it may be found, when there is no such task."""
        options = self.options
        using = self.command.queue.using
        task = self.found(key)
        story = Story(task, using=using)
        own = family(task.pk, using=using, levels=1)
        batch = batch_of(self.command.queue, task.pk)
        steps = steps_of(task, using=using).iterator()
        listed = story.episodes
        with_data = not options["no_data"]
        if self.command.as_json:
            found = facts.story_facts(story, with_data=with_data)
            found |= facts.family_facts(own, batch)
            found["actions"] = [action_facts(one) for one in story.actions]
            found["progress"] = facts.progress_facts(story.progress)
            found["steps"] = [facts.step_facts(one, with_data=with_data) for one in steps]
            if options["log"] != "none":
                journals = map(facts.journal_facts, listed)
                found["journals"] = [journal for journal in journals if journal]
            self.command.print_json(found)
            return
        self.command.print_title(f"Task '{task.key}' in queue '{task.queue}'")
        self.print_fields(facts.standing(story))
        own_facts = [fact for fact in story.about() if fact.name != "queue"]  # the title has it
        self.print_fields(facts.fields([*own_facts, *story.times(), *story.counts()]))
        self.print_fields(facts.family_fields(own, batch))
        self.print_actions(story.actions, task.clock)
        if story.progress:
            self.command.print_field("progress", how_far(story.progress, task.clock))
        for episode in listed:
            self.print_episode(task, episode)
            is_last = episode is listed[-1]
            whole = options["log"] == "all"
            if episode.journal and (whole or (options["log"] == "last" and is_last)):
                self.print_log(episode.journal.log, whole=whole)
        self.print_steps(steps, with_data=with_data)
        if with_data:
            self.print_content("data", facts.content("data", task.payload))
            if task.result_text is not None:
                self.print_content("result", facts.content("result", task.result_text))
            if task.context is not None:
                self.print_content("context", facts.context_of(task))

    def found(self, key: str) -> Task:
        """
        Return a task with its tries, and the time on the database's clock.

        Where the queue has no such key it may be the id of a task, of any queue.
        """
        rows: TaskQuerySet = Task.objects.using(self.command.queue.using)
        rows = rows.select_related("ticket", "dead_letter").with_tries()
        rows = rows.annotate(clock=ServerNow())  # type: ignore[no-redef]
        try:
            with with_hint(self.command.queue[key]):
                found = rows.get(id=self.command.queue[key].id)
        except NotFoundError:
            by_id = rows.filter(id=int(key)).first() if is_id(key) else None
            if by_id is None:
                raise
            found = by_id
        return found

    def print_fields(self, known: Iterable[tuple[str, str]]) -> None:
        for name, value in known:
            self.command.print_field(name, on_one_line(value))

    def print_actions(self, actions: list[Change], now: datetime) -> None:
        for one in actions:
            what = f"{one.by}: {describe_action(one)}, {ago(one.at, now)}"
            self.command.print_field("by", on_one_line(what))

    def print_episode(self, task: Task, episode: Episode) -> None:
        if episode.attempt:
            self.print_gap(episode.attempt.number)
            self.print_attempt(episode.attempt)
            return
        title = "Uncounted attempt"
        if episode.is_running:
            title = f"Attempt {task.tries}: running"
        self.stdout.write(self.style.MIGRATE_LABEL(title))

    def print_gap(self, number: int) -> None:
        first, self.next_number = self.next_number, number + 1
        if number > first:
            self.stdout.write(f"… Attempts {first} to {number - 1} are not stored any more.")

    def print_log(self, log: list[Line], *, whole: bool) -> None:
        listed = log if whole else log[-LAST_LINES:]
        if len(listed) < len(log):
            hidden = len(log) - len(listed)
            lines = "line" if hidden == 1 else "lines"
            self.stdout.write(f"  … {hidden} {lines} before these: --log all")
        for line in listed:
            self.print_line(line)

    def print_line(self, line: Line) -> None:
        paint = PAINT.get(line.level)
        first, *more = line.text.splitlines() or [""]
        if line.at:
            level = f"{line.level:<7}"
            level = getattr(self.style, paint)(level) if paint else level
            clock = localtime(line.at).strftime("%H:%M:%S")
            first = f"{clock} {level} {printable(line.source)}: {printable(first)}"
        self.stdout.write("  " + first)
        for text in more:
            self.stdout.write(" " * BELOW + printable(text))

    def print_attempt(self, attempt: Try) -> None:
        duration = lasted(attempt.started_at, attempt.ended_at)
        self.stdout.write(
            self.style.MIGRATE_LABEL(f"Attempt {attempt.number}")
            + f": {attempt.label} {local(attempt.ended_at)}{duration}"
            + (", " + printable(attempt.worker) if attempt.worker else "")
        )
        if attempt.error or attempt.message:
            self.stdout.write("  " + self.style.ERROR(facts.why(attempt.error, attempt.message)))
        if attempt.traceback and self.command.verbosity > 1:
            self.print_block(attempt.traceback)

    def print_steps(self, steps: Iterable[Step], *, with_data: bool) -> None:
        for number, step in enumerate(steps):
            if not number:
                self.stdout.write(self.style.MIGRATE_LABEL("Steps"))
            text = step.name
            if with_data:
                [result] = facts.content("result", step.result_text).values()
                text += ": " + json.dumps(result, ensure_ascii=False)
            self.stdout.write(f"  {local(step.kept_at)} {shortened(on_one_line(text))}")

    def print_content(self, name: str, found: facts.Facts) -> None:
        [(key, value)] = found.items()
        broken = key.startswith("broken")
        label = f"{name}, which is not JSON" if broken else name
        self.stdout.write(self.style.MIGRATE_LABEL(label.capitalize()))
        self.print_block(str(value) if broken else json.dumps(value, ensure_ascii=False, indent=2))

    def print_block(self, text: str) -> None:
        for line in text.splitlines():
            self.stdout.write("  " + printable(line))


def shortened(text: str) -> str:
    return text if len(text) <= LONGEST_STEP else text[: LONGEST_STEP - 1] + "…"


def action_facts(change: Change) -> dict[str, object]:
    return {"at": facts.iso(change.at), "by": change.by, **(change.after or {})}


def how_far(journal: Journal, now: datetime) -> str:
    """Return how far a handler said it is, and when."""
    said = ago(journal.updated_at, now)
    parts = [bar(journal.progress)] if journal.progress is not None else []
    return "  ".join([*parts, ", ".join(filter(None, [on_one_line(journal.stage), said]))])


def lasted(start: datetime | None, end: datetime) -> str:
    return f" after {short_duration((end - start).total_seconds())}" if start else ""
