"""The tasks of a queue page by page, the filters that choose them, and hints for wrong names."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

from django.core.management.base import CommandError
from django.db import connections

from django_perfectqueue.bulk import in_time
from django_perfectqueue.exceptions import InvalidTaskError, NotFoundError
from django_perfectqueue.lib.checks import nearest
from django_perfectqueue.lib.distinct import distinct
from django_perfectqueue.models import Batch as BatchRow
from django_perfectqueue.models import (
    DeadLetter,
    Status,
    Task,
    TaskQuerySet,
    id_for,
    type_condition,
)
from django_perfectqueue.models.fields import ServerNow
from django_perfectqueue.queue import Batch, Queue, TaskHandle

from .base import CommandOptions, QueueCommand
from .facts import content, situation, summary
from .terminal import Column, ago
from .verbs import LISTED

PAGE = 1000
STYLES = {
    "running": "HTTP_INFO",
    "retrying": "WARNING",
    "stalled": "WARNING",
    "finished": "SUCCESS",
    "failed": "ERROR",
}
NARROWS = (
    *("status", "user", "type", "tags", "group", "key_prefix", "batch", "since", "until"),
    "after",
)


def list_tasks(command: QueueCommand, options: CommandOptions) -> None:
    """List tasks, the newest first."""
    first = LISTED if options["first"] is None else options["first"]
    listing = Listing(chosen(command.queue, options), first)
    if command.as_json:
        for task in listing:
            command.print_json(summary(task, with_data=options["data"]))
        return
    command.print_table(columns(command, with_data=options["data"]), listing)
    if listing.count:
        command.say(entries(listing))
    elif any(options[name] is not None for name in NARROWS):
        command.say(f"Queue '{command.queue.name}' has no such tasks.")
    else:
        command.say(no_tasks(command.queue))


def chosen(queue: Queue, options: CommandOptions) -> TaskQuerySet:
    """Return the tasks that the options say, in their order."""
    tasks = by_key(queue, options).select_related("ticket").with_tries()
    tasks = tasks.annotate(clock=ServerNow())  # type: ignore[no-redef]
    if options["status"]:
        tasks = tasks.in_status(options["status"])
    if options["user"] is not None:
        tasks = tasks.filter(user=options["user"])
    if options["type"] is not None:
        tasks = tasks.filter(type_condition(options["type"]))
    if options["group"] is not None:
        tasks = tasks.filter(dead_letter__group=options["group"])
    if options["batch"] is not None:
        tasks = tasks.filter(membership__batch_id=batch_of(queue, options["batch"]).id)
    tasks = tasks.tagged(*options["tags"] or ())
    try:
        tasks = tasks.filter(in_time(options["since"] or "", options["until"] or ""))
    except InvalidTaskError as error:
        raise CommandError(str(error)) from error
    order = order_of(queue, options["status"])
    tasks = tasks.order_by(order if options["oldest_first"] else f"-{order}")
    if options["after"] is not None:
        tasks = behind(tasks, options["after"])
    return tasks.defer("result_text", *(() if options["data"] else ("payload",)))


def by_key(queue: Queue, options: CommandOptions) -> TaskQuerySet:
    """Return the queue's tasks, by the index of keys or else as they come by their ids."""
    if prefix := options["key_prefix"]:
        return queue.list().key_begins(prefix)
    if options["status"] not in (None, Status.FINISHED):
        return queue.list()
    tasks: TaskQuerySet = Task.objects.using(queue.using)
    return tasks.filter(queue__unindexed=queue.name)


def batch_of(queue: Queue, name: str) -> Batch:
    """Return the latest batch of a name; raise CommandError, with the nearest, for another."""
    try:
        return queue.batch_named(name)
    except NotFoundError as error:
        rows = BatchRow.objects.using(queue.using).filter(queue=queue.name)
        raise CommandError(f"{error}{nearest(name, distinct(rows, 'name'))}") from error


def order_of(queue: Queue, status: str | None) -> str:
    """Return the column of ids by which to read: SQLite would sort all that wait."""
    if status == Status.WAITING and connections[queue.using].vendor == "sqlite":
        return "ticket__task_id"
    return id_for(status)


def columns(command: QueueCommand, *, with_data: bool) -> list[Column[Task]]:
    def coloured(word: str) -> str:
        style = STYLES.get(word.strip())
        return str(getattr(command.style, style)(word)) if style else word

    found = [
        Column[Task]("key", lambda task: task.key, elastic=True),
        Column("type", lambda task: task.type, elastic=True),
        Column("user", lambda task: task.user, elastic=True),
        Column("status", lambda task: task.status, paint=coloured),
        Column("created", lambda task: ago(task.created_at, task.clock), spare=True),
        Column("when", lambda task: situation(task, task.clock)),
        Column("attempts", lambda task: str(task.tries), right=True),
        Column("data", data_of, elastic=True),
    ]
    return found if with_data else found[:-1]


class Listing:
    """
    The tasks of a listing, read in pages by their ids, so that none waits for the whole.

    Once it has been read, it knows how many there were, and whether more are behind.
    """

    def __init__(self, tasks: TaskQuerySet, limit: int) -> None:
        self.tasks = tasks
        self.limit = limit
        self.count = 0
        self.last = 0
        self.more = False

    def __iter__(self) -> Iterator[Task]:
        while page := list(self.tasks[: self.page_size()]):
            for task in page:
                if self.limit and self.count == self.limit:
                    self.more = True
                    return
                self.count += 1
                self.last = task.id
                yield task
            self.tasks = behind(self.tasks, self.last)

    def page_size(self) -> int:
        return min(PAGE, self.limit - self.count + 1) if self.limit else PAGE


def behind(tasks: TaskQuerySet, task_id: int) -> TaskQuerySet:
    order = str(tasks.query.order_by[0])
    side = "lt" if order.startswith("-") else "gt"
    return tasks.filter(**{f"{order.lstrip('-')}__{side}": task_id})


def data_of(task: Task) -> str:
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
    elsewhere = Task.objects.using(task.using).filter(queue__in=queues(task.using), key=task.key)
    for queue in elsewhere.values_list("queue", flat=True)[:1]:
        return f" Queue '{queue}' has one."
    return nearest(task.key, neighbours(task))


def queues(using: str) -> list[str]:
    """Return the names of the queues that have tasks."""
    return distinct(TaskQuerySet(Task, using=using), "queue")


def no_tasks(queue: Queue) -> str:
    """Say that a queue is empty, and what else there is, for who asked for the wrong one."""
    return f"Queue '{queue.name}' has no tasks." + instead(queue.name, queues(queue.using))


def no_group(queue: Queue, group: str) -> str:
    """Say that no task ended for this reason, and for which ones others did."""
    sentence = f"No task of queue '{queue.name}' ended for the reason '{group}'."
    return sentence + instead(group, groups(queue))


def instead(word: str, words: list[str]) -> str:
    """Return the word that was meant, or else those that there are."""
    listed = ", ".join(f"'{name}'" for name in words[:NAMED])
    return nearest(word, words) or (f" There is {listed}." if words else "")


def groups(queue: Queue) -> list[str]:
    """Return the groups of its dead letters, in the order of the index of groups."""
    return distinct(DeadLetter.objects.using(queue.using).filter(task__queue=queue.name), "group")


def neighbours(task: TaskHandle) -> list[str]:
    keys = task.queue.list().values_list("key", flat=True)
    above = keys.filter(key__gt=task.key).order_by("key")[:NEIGHBOURS]
    below = keys.filter(key__lt=task.key).order_by("-key")[:NEIGHBOURS]
    return [*above, *below]
