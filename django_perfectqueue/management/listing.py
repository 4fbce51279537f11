"""Tasks listed page by page, and shown one by one; the filters that choose them, and hints."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime

from django.core.management.base import CommandError
from django.db import connections
from django.utils.timezone import localtime

from django_perfectqueue import models
from django_perfectqueue.bulk import Selection
from django_perfectqueue.exceptions import NotFoundError
from django_perfectqueue.inspection.family import family
from django_perfectqueue.inspection.steering import describe_action
from django_perfectqueue.inspection.task import Episode, Story, Try, WorkflowEntry, workflow
from django_perfectqueue.lib.checks import nearest
from django_perfectqueue.lib.distinct import distinct
from django_perfectqueue.lib.durations import short_duration
from django_perfectqueue.lib.printable import on_one_line, printable
from django_perfectqueue.models.fields import ServerNow
from django_perfectqueue.payload.journal import Line
from django_perfectqueue.queue import Batch, Queue, TaskHandle, batch_of

from . import facts
from .base import CommandOptions, QueueCommand
from .facts import content, situation, summary
from .terminal import Column, Facts, ago, bar, is_id, local, plural
from .verbs import NounCommand

PAGE = 1000
STYLES = {
    "running": "HTTP_INFO",
    "retrying": "WARNING",
    "stalled": "WARNING",
    "finished": "SUCCESS",
    "failed": "ERROR",
}
# The options that choose tasks; what they say of the columns of a Selection of that name.
FIELDS = ("status", "type", "user", "group", "since", "until")
CHOICES = (*FIELDS, "tags", "key_prefix", "batch")


def list_tasks(command: NounCommand, options: CommandOptions) -> None:
    """List tasks, the newest first."""
    listing = Listing(chosen(command.queue, options), command.first)
    if command.as_json:
        for task in listing:
            command.print_json(summary(task, with_data=options["data"]))
        return
    command.print_table(columns(command, with_data=options["data"]), listing)
    if listing.count:
        command.say(entries(listing))
    elif any(options[name] is not None for name in (*CHOICES, "after")):
        command.say(f"Queue '{command.queue.name}' has no such tasks.")
    else:
        command.say(no_tasks(command.queue))


def chosen(queue: Queue, options: CommandOptions) -> models.TaskQuerySet:
    """Return the tasks that the options say, in their order."""
    tasks = by_key(queue, options).select_related("ticket").with_tries()
    tasks = tasks.annotate(clock=ServerNow())  # type: ignore[no-redef]
    if options["status"]:
        tasks = tasks.in_status(options["status"])
    selection = replace(selection_of(queue, options), queue="", tag="")
    tasks = tasks.filter(selection.filters()).tagged(*options["tags"] or ())
    order = order_of(queue, options["status"])
    tasks = tasks.order_by(order if options["oldest_first"] else f"-{order}")
    if options["after"] is not None:
        tasks = behind(tasks, options["after"])
    return tasks.defer("result_text", *(() if options["data"] else ("payload",)))


def selection_of(queue: Queue, options: CommandOptions) -> Selection:
    """Return the filter that the options say, with the first of the tags."""
    batch, values = options["batch"], {name: options[name] or "" for name in FIELDS}
    return Selection(
        **{**values, "user": options["user"]},
        queue=queue.name,
        key=options["key_prefix"] or "",
        tag=(options["tags"] or [""])[0],
        batch=str(batch_named(queue, batch).id) if batch else "",
    )


def by_key(queue: Queue, options: CommandOptions) -> models.TaskQuerySet:
    """Return the queue's tasks, by the index of keys or else as they come by their ids."""
    if options["key_prefix"] or options["status"] not in (None, models.Status.FINISHED):
        return queue.list()
    tasks: models.TaskQuerySet = models.Task.objects.using(queue.using)
    return tasks.filter(queue__unindexed=queue.name)


def batch_named(queue: Queue, name: str) -> Batch:
    """Return the latest batch of a name; raise CommandError, with the nearest, for another."""
    try:
        return queue.batch_named(name)
    except NotFoundError as error:
        rows = models.Batch.objects.using(queue.using).filter(queue=queue.name)
        raise CommandError(f"{error}{nearest(name, distinct(rows, 'name'))}") from error


def order_of(queue: Queue, status: str | None) -> str:
    """Return the column of ids by which to read: SQLite would sort all that wait."""
    if status == models.Status.WAITING and connections[queue.using].vendor == "sqlite":
        return "ticket__task_id"
    return models.id_for(status)


def columns(command: QueueCommand, *, with_data: bool) -> list[Column[models.Task]]:
    def coloured(word: str) -> str:
        style = STYLES.get(word.strip())
        return str(getattr(command.style, style)(word)) if style else word

    found = [
        Column[models.Task]("key", "key", elastic=True),
        Column("type", "type", elastic=True),
        Column("user", "user", elastic=True),
        Column("status", "status", paint=coloured),
        Column("created", shown=lambda task: ago(task.created_at, task.clock), spare=True),
        Column("when", shown=lambda task: situation(task, task.clock)),
        Column("attempts", "tries", right=True),
        Column("data", shown=data_of, elastic=True),
    ]
    return found if with_data else found[:-1]


class Listing:
    """
    The tasks of a listing, read in pages by their ids, so that none waits for the whole.

    Once it has been read, it knows how many there were, and whether more are behind.
    """

    def __init__(self, tasks: models.TaskQuerySet, limit: int) -> None:
        self.tasks = tasks
        self.limit = limit
        self.count = 0
        self.last = 0
        self.more = False

    def __iter__(self) -> Iterator[models.Task]:
        most = self.limit or sys.maxsize
        while page := list(self.tasks[: min(PAGE, most - self.count + 1)]):
            for task in page:
                if self.count == most:
                    self.more = True
                    return
                self.count += 1
                self.last = task.id
                yield task
            self.tasks = behind(self.tasks, self.last)


def behind(tasks: models.TaskQuerySet, task_id: int) -> models.TaskQuerySet:
    order = str(tasks.query.order_by[0])
    side = "lt" if order.startswith("-") else "gt"
    return tasks.filter(**{f"{order.lstrip('-')}__{side}": task_id})


def data_of(task: models.Task) -> str:
    [shown] = content("data", task.payload).values()
    return json.dumps(shown, ensure_ascii=False)


def entries(listing: Listing) -> str:
    found = "1 entry." if listing.count == 1 else f"{listing.count} entries."
    return found + (f" There are more: --after {listing.last}" if listing.more else "")


NEIGHBOURS = 50
NAMED = 10


@contextmanager
def with_hint(task: TaskHandle) -> Iterator[None]:
    """Add to a NotFoundError where the task may be found."""
    try:
        yield
    except NotFoundError as error:
        raise NotFoundError(f"{error}{hint(task)}") from error


def hint(task: TaskHandle) -> str:
    """Name the other queue that has the key, or else the nearest key; by an index or not at all."""
    tasks = models.Task.objects.using(task.using)
    elsewhere = tasks.filter(queue__in=queues(task.using), key=task.key)
    for queue in elsewhere.values_list("queue", flat=True)[:1]:
        return f" Queue '{queue}' has one."
    return nearest(task.key, neighbours(task))


def queues(using: str) -> list[str]:
    """Return the names of the queues that have tasks."""
    return distinct(models.TaskQuerySet(models.Task, using=using), "queue")


def no_tasks(queue: Queue) -> str:
    """Say that a queue is empty, and which other queues have tasks."""
    return f"Queue '{queue.name}' has no tasks." + instead(queue.name, queues(queue.using))


def no_group(queue: Queue, group: str) -> str:
    """Say that no task ended for this reason, and for which ones others did."""
    sentence = f"No task of queue '{queue.name}' ended for the reason '{group}'."
    letters = models.DeadLetter.objects.using(queue.using).filter(task__queue=queue.name)
    # In the order of the index of groups.
    return sentence + instead(group, distinct(letters, "group"))


def instead(word: str, words: list[str]) -> str:
    """Return the word that was meant, or else those that there are."""
    listed = ", ".join(f"'{name}'" for name in words[:NAMED])
    return nearest(word, words) or (f" There is {listed}." if words else "")


def neighbours(task: TaskHandle) -> list[str]:
    keys = task.queue.list().values_list("key", flat=True)
    above = keys.filter(key__gt=task.key).order_by("key")[:NEIGHBOURS]
    below = keys.filter(key__lt=task.key).order_by("-key")[:NEIGHBOURS]
    return [*above, *below]


LAST_LINES = 10
LONGEST_STEP = 200
BELOW = 11
PAINT = {"WARNING": "WARNING", "ERROR": "ERROR", "CRITICAL": "ERROR"}


def show_tasks(command: QueueCommand, options: CommandOptions) -> None:
    """Show the status of tasks, their attempts, data, logs and results."""
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
        own = family(task.pk, using=using)
        batch = batch_of(self.command.queue, task.pk)
        kept = workflow(story)
        listed = story.episodes
        with_data = not options["no_data"]
        if self.command.as_json:
            found = facts.story_facts(story, with_data=with_data)
            found |= facts.family_facts(own, batch)
            found["actions"] = [
                {"at": one.at, "by": one.by, **(one.after or {})} for one in story.actions
            ]
            found["progress"] = facts.progress_facts(story.progress)
            found["steps"] = [facts.kept_facts(one, with_data=with_data) for one in kept]
            if options["log"] != "none":
                journals = map(facts.journal_facts, listed)
                found["journals"] = [journal for journal in journals if journal]
            self.command.print_json(found)
            return
        self.command.print_title(f"Task '{task.key}' in queue '{task.queue}'")
        self.command.print_fields(facts.standing(story))
        own_facts = [fact for fact in story.about() if fact.name != "queue"]  # the title has it
        self.command.print_fields(facts.fields([*own_facts, *story.times(), *story.counts()]))
        self.command.print_fields(facts.family_fields(own, batch))
        self.print_actions(story.actions, task.clock)
        if story.progress:
            self.command.print_field("progress", how_far(story.progress, task.clock))
        for episode in listed:
            self.print_episode(task, episode)
            is_last = episode is listed[-1]
            whole = options["log"] == "all"
            if episode.journal and (whole or (options["log"] == "last" and is_last)):
                self.print_log(episode.journal.log, whole=whole)
        self.print_workflow(kept, with_data=with_data)
        if with_data:
            self.print_content("data", content("data", task.payload))
            if task.result_text is not None:
                self.print_content("result", content("result", task.result_text))
            if task.context is not None:
                self.print_content("context", facts.context_of(task))

    def found(self, key: str) -> models.Task:
        """
        Return a task with its tries, and the time on the database's clock.

        Where the queue has no such key it may be the id of a task, of any queue.
        """
        rows: models.TaskQuerySet = models.Task.objects.using(self.command.queue.using)
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

    def print_actions(self, actions: list[models.Change], now: datetime) -> None:
        whats = (f"{one.by}: {describe_action(one)}, {ago(one.at, now)}" for one in actions)
        self.command.print_fields(("by", what) for what in whats)

    def print_episode(self, task: models.Task, episode: Episode) -> None:
        if episode.attempt is None:
            title = f"Attempt {task.tries}: running" if episode.is_running else "Uncounted attempt"
            self.stdout.write(self.style.MIGRATE_LABEL(title))
            return
        first, last = self.next_number, episode.attempt.number - 1
        self.next_number = last + 2
        if first <= last:
            self.stdout.write(f"… Attempts {first} to {last} are not stored any more.")
        self.print_attempt(episode.attempt)

    def print_log(self, log: list[Line], *, whole: bool) -> None:
        listed = log if whole else log[-LAST_LINES:]
        if hidden := len(log) - len(listed):
            self.stdout.write(f"  … {plural(hidden, 'line')} before these: --log all")
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
        row, label = attempt.row, attempt.label
        took = attempt.seconds
        duration = "" if took is None else f" after {short_duration(took)}"
        self.stdout.write(
            self.style.MIGRATE_LABEL(f"Attempt {attempt.number}")
            + f": {label} {local(row.ended_at)}{duration}"
            + (", " + printable(row.worker) if row.worker else "")
        )
        if row.error or row.message:
            self.stdout.write("  " + self.style.ERROR(facts.why(row.error, row.message)))
        if self.command.verbosity > 1:
            self.print_block(row.traceback)
        elif row.traceback:
            _before, file, frame = row.traceback.rpartition('  File "')
            shown = (file + frame).splitlines()[:2] if file else ()
            self.print_block("\n".join([*shown, "… The whole traceback: -v 2"]))

    def print_workflow(self, rows: Iterable[WorkflowEntry], *, with_data: bool) -> None:
        for number, kept in enumerate(rows):
            if not number:
                self.stdout.write(self.style.MIGRATE_LABEL("Workflow"))
            text = f"{kept.row.name} ({kept.word}"
            text += f", until {local(kept.row.until)}" if kept.row.until else ""
            text += f", by {kept.by})" if kept.by else ")"
            if with_data and kept.result is not None:
                [result] = content("result", kept.result).values()
                text += ": " + json.dumps(result, ensure_ascii=False)
            self.stdout.write(f"  {local(kept.row.kept_at)} {shortened(on_one_line(text))}")

    def print_content(self, name: str, found: Facts) -> None:
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


def how_far(journal: models.Journal, now: datetime) -> str:
    """Return how far a handler said it is, and when."""
    said = ago(journal.updated_at, now)
    parts = [bar(journal.progress)] if journal.progress is not None else []
    return "  ".join([*parts, ", ".join(filter(None, [on_one_line(journal.stage), said]))])
