from __future__ import annotations

import json
from argparse import ArgumentTypeError
from collections.abc import Iterator
from typing import cast

from django.core.management.base import CommandError, CommandParser
from django.db import connections

from django_perfectqueue.bulk import in_time
from django_perfectqueue.exceptions import InvalidTaskError
from django_perfectqueue.models import Status, Task, TaskQuerySet, id_for
from django_perfectqueue.models.fields import ServerNow

from ..base import CommandOptions, QueueCommand, at_least
from ..tasks.bulk_preview import add_times
from ..tasks.facts import ListedTask, content, situation, summary
from ..tasks.hints import no_tasks
from ..terminal.table import Column
from ..terminal.text import ago, is_id

PAGE = 1000
STYLES = {
    "running": "HTTP_INFO",
    "retrying": "WARNING",
    "stalled": "WARNING",
    "finished": "SUCCESS",
    "failed": "ERROR",
}


class Command(QueueCommand):
    summary = "Lists a queue's tasks, the newest first, whether they wait, run or have ended."

    def add_options(self, parser: CommandParser) -> None:
        add = parser.add_argument
        add("--status", choices=Status.values, metavar="STATUS", help=", ".join(Status.values))
        add("-u", "--user", help="Only the tasks that run for this user.")
        add("--type", help="Only the tasks of this type.")
        add(
            "--tag",
            action="append",
            dest="tags",
            metavar="TAG",
            help="Only the tasks with this tag; may be repeated, for those with all.",
        )
        add("--key-prefix", metavar="PREFIX", help="Only keys that begin so.")
        add_times(parser)
        add("--limit", type=at_least(0), default=100, metavar="N", help="How many (100); 0: all.")
        add("--after", type=task_id, metavar="ID", help="Go on behind the task with this id.")
        add("--oldest-first", action="store_true", help="The oldest first, not the newest.")
        add("--data", action="store_true", help="Show what was submitted too.")

    def act(self, options: CommandOptions) -> None:
        listing = Listing(self.tasks(options), options["limit"])
        if self.as_json:
            for task in listing:
                self.print_json(summary(task, with_data=options["data"]))
            return
        self.print_tasks(listing, with_data=options["data"])
        if listing.count:
            self.say(entries(listing))
        elif narrowed(options):
            self.say(f"Queue '{self.queue.name}' has no such tasks.")
        else:
            self.say(no_tasks(self.queue))

    def tasks(self, options: CommandOptions) -> TaskQuerySet:
        tasks = self.list_tasks(options).select_related("ticket").with_tries()
        tasks = tasks.annotate(clock=ServerNow())
        if options["status"]:
            tasks = tasks.in_status(options["status"])
        for field in ("user", "type"):
            if options[field] is not None:
                tasks = tasks.filter(**{field: options[field]})
        tasks = tasks.tagged(*options["tags"] or ())
        try:
            tasks = tasks.filter(in_time(options["since"] or "", options["until"] or ""))
        except InvalidTaskError as error:
            raise CommandError(str(error)) from error
        order = self.order(options["status"])
        tasks = tasks.order_by(order if options["oldest_first"] else f"-{order}")
        if options["after"] is not None:
            tasks = behind(tasks, options["after"])
        return tasks.defer("result_text", *(() if options["data"] else ("payload",)))

    def list_tasks(self, options: CommandOptions) -> TaskQuerySet:
        """Return the queue's tasks, by the index of keys or else as they come by their ids."""
        if prefix := options["key_prefix"]:
            return self.queue.list().key_begins(prefix)
        if options["status"] not in (None, Status.FINISHED):
            return self.queue.list()
        tasks: TaskQuerySet = Task.objects.using(self.queue.using)
        return tasks.filter(queue__unindexed=self.queue.name)

    def order(self, status: str | None) -> str:
        """Return the column of ids by which to read: SQLite would sort all that wait."""
        if status == Status.WAITING and connections[self.queue.using].vendor == "sqlite":
            return "ticket__task_id"
        return id_for(status)

    def print_tasks(self, listing: Listing, *, with_data: bool) -> None:
        columns = [
            Column[ListedTask]("key", lambda task: task.key, elastic=True),
            Column("type", lambda task: task.type, elastic=True),
            Column("user", lambda task: task.user, elastic=True),
            Column("status", lambda task: task.status, paint=self.coloured),
            Column("created", lambda task: ago(task.created_at, task.clock), spare=True),
            Column("when", lambda task: situation(task, task.clock)),
            Column("attempts", lambda task: str(task.tries), right=True),
            Column("data", data_of, elastic=True),
        ]
        self.print_table(columns if with_data else columns[:-1], listing)

    def coloured(self, word: str) -> str:
        style = STYLES.get(word.strip())
        return str(getattr(self.style, style)(word)) if style else word


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

    def __iter__(self) -> Iterator[ListedTask]:
        while page := cast("list[ListedTask]", list(self.tasks[: self.page_size()])):
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


def task_id(text: str) -> int:
    if not is_id(text):
        raise ArgumentTypeError(f"must be the id of a task, not {text!r}")
    return int(text)


def behind(tasks: TaskQuerySet, task_id: int) -> TaskQuerySet:
    order = str(tasks.query.order_by[0])
    side = "lt" if order.startswith("-") else "gt"
    return tasks.filter(**{f"{order.lstrip('-')}__{side}": task_id})


def narrowed(options: dict[str, object]) -> bool:
    names = ("status", "user", "type", "tags", "key_prefix", "since", "until", "after")
    return any(options[name] is not None for name in names)


def data_of(task: ListedTask) -> str:
    [shown] = content("data", task.payload).values()
    return json.dumps(shown, ensure_ascii=False)


def entries(listing: Listing) -> str:
    counted = f"{listing.count} entry." if listing.count == 1 else f"{listing.count} entries."
    if not listing.more:
        return counted
    return f"{counted} There are more: --after {listing.last}"
