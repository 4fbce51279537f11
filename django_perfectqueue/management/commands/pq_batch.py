from __future__ import annotations

from collections.abc import Callable

from django.core.management.base import CommandError, CommandParser, no_translations

from django_perfectqueue import models, store
from django_perfectqueue.bulk.selection import ANY
from django_perfectqueue.exceptions import NotFoundError
from django_perfectqueue.inspection import steering
from django_perfectqueue.inspection.family import (
    BATCH_STATES,
    COUNTED,
    callbacks,
    counts,
    exact,
    members,
    state_of,
)
from django_perfectqueue.lib.checks import nearest
from django_perfectqueue.lib.distinct import distinct
from django_perfectqueue.lib.printable import on_one_line
from django_perfectqueue.models import Task, TaskQuerySet
from django_perfectqueue.queue import Batch

from ..base import CommandOptions
from ..queues.rule_command import VerbCommand, first_rows, person
from ..tasks.bulk import WORDS
from ..tasks.bulk import counted as counted_tasks
from ..tasks.facts import Facts, picked
from ..tasks.family import batch_facts, counted, link_facts, listed
from ..terminal.progress import bar
from ..terminal.table import Column
from ..terminal.text import local

SAMPLE = 20
SIGNED = 500
DRY = {"cancel": "To be cancelled or asked to stop: %s", "retry": "To be put back in line: %s"}


class Command(VerbCommand):
    summary = "Shows and steers batches: list (also without a word), show, cancel, retry."
    queue_help: str = "Queue of the batch (default: DEFAULT_QUEUE; of a list: all)."
    name_help = "Name of the batch."

    def add_verbs(self, add: Callable[..., CommandParser]) -> None:
        self.add_listing(add("list", "List them, the newest first.", named=False))
        add("show", "Show one: its progress, its callbacks, and tasks that have not finished.")
        for verb, text in (
            ("cancel", "Take no more tasks, cancel those that wait, ask the others to stop."),
            ("retry", "Put its failed, cancelled and expired tasks back."),
        ):
            add(verb, text).add_argument(
                "--dry-run",
                action="store_true",
                help="Only say how many tasks of which status these are, and list the first.",
            )

    @no_translations
    def act(self, options: CommandOptions) -> None:
        if options["verb"] == "list":
            self.do_list(options)
        else:
            act = self.do_show if options["verb"] == "show" else self.steer
            act(self.found(options["name"]), options)

    def found(self, name: str) -> Batch:
        try:
            return self.queue.batch_named(name)
        except NotFoundError as error:
            rows = models.Batch.objects.using(self.queue.using).filter(queue=self.queue.name)
            raise CommandError(f"{error}{nearest(name, distinct(rows, 'name'))}") from error

    def do_list(self, options: CommandOptions) -> None:
        rows = models.Batch.objects.using(self.queue.using).order_by("-pk")
        if options["queue"]:
            rows = rows.filter(queue=self.queue.name)
        found, more = first_rows(rows, options["limit"])
        found = exact(found, using=self.queue.using)
        none = "There are no batches."
        self.print_listing(found, for_programs, columns(), more=more, none=none)

    def do_show(self, batch: Batch, options: CommandOptions) -> None:
        rows = models.Batch.objects.using(batch.using).filter(pk=batch.id)
        [row] = exact(rows, using=batch.using)
        ids = store.batches_within(batch.id, using=batch.using)
        called = callbacks(batch.id, using=batch.using)
        statuses = counts(members(ids, using=batch.using))
        inner = batch.inner()
        if self.as_json:
            self.print_json(
                {
                    **batch_facts(batch),
                    **picked(row, "created_at", "ended_at", "stopped"),
                    "statuses": statuses,
                    "batches": [batch_facts(one) for one in inner],
                    "callbacks": [{**one.facts(), **link_facts(link)} for one, link in called],
                }
            )
            return
        title = "Batch '%(name)s' in queue '%(queue)s'"
        words = {"name": batch.name, "queue": batch.queue.name}
        self.print_title(title % words)
        self.print_field("status", str(BATCH_STATES[state_of(row)]))
        self.print_field("progress", f"{bar(batch.progress().part)}, {counted(batch)}")
        if statuses:
            self.print_field("statuses", in_words(statuses))
        if batch.user:
            self.print_field("user", on_one_line(batch.user))
        self.print_field("created", local(row.created_at))
        if row.ended_at:
            self.print_field("ended", local(row.ended_at))
        for one in inner:
            self.print_field("has batch", on_one_line(f"{one.name}: {counted(one)}"))
        for pair in called:
            self.print_field("callback", on_one_line(listed([pair], more=False)))
        self.print_sample(members(ids, using=batch.using).exclude(outcome="finished"))

    def steer(self, batch: Batch, options: CommandOptions) -> None:
        """Cancel it, or put its dead tasks back."""
        verb = options["verb"]
        ids = store.batches_within(batch.id, using=batch.using)
        tasks = members(ids, using=batch.using).filter(ANY[verb])
        if options["dry_run"]:
            self.print_dry_run(batch, tasks, DRY[verb])
            return
        names = named(tasks)
        facts: Facts = {"name": batch.name, "done": WORDS[verb][0]}
        if verb == "cancel":
            count, asked = batch.cancel_request()
            facts |= {"tasks": count, "asked": asked}
        else:
            count, asked = batch.retry(), 0
            facts["tasks"] = count
        steering.sign(names, WORDS[verb][-1], by=person(), using=batch.using)
        text = counted_tasks(WORDS[verb][0], count)
        self.answer(facts, f"{text} {counted_tasks('requested', asked)}" if asked else text)

    def print_dry_run(self, batch: Batch, tasks: TaskQuerySet, text: str) -> None:
        statuses = counts(tasks)
        if self.as_json:
            sample = list(tasks.order_by("pk").values_list("key", flat=True)[:SAMPLE])
            facts = {"name": batch.name, "dry_run": True, "statuses": statuses}
            self.print_json({**facts, "tasks": sum(statuses.values()), "sample": sample})
            return
        self.say(text % (in_words(statuses) or "none"))
        self.print_sample(tasks)

    def print_sample(self, tasks: TaskQuerySet) -> None:
        self.print_table(
            [
                Column[Task]("task", lambda task: task.key, elastic=True),
                Column("status", lambda task: task.status),
                Column("type", lambda task: task.type, elastic=True, spare=True),
                Column("user", lambda task: task.user, elastic=True, spare=True),
            ],
            tasks.order_by("pk")[:SAMPLE],
            indent="  ",
        )


def for_programs(row: models.Batch) -> Facts:
    facts = picked(row, "name", "id", "queue", "user", "total", "finished", "dead")
    times = picked(row, "created_at", "ended_at", "stopped")
    return {**facts, "status": state_of(row), **times}


def columns() -> list[Column[models.Batch]]:
    return [
        Column("batch", lambda row: row.name, elastic=True),
        Column("queue", lambda row: row.queue, elastic=True, spare=True),
        Column("user", lambda row: row.user or "-", elastic=True, spare=True),
        Column("status", lambda row: str(BATCH_STATES[state_of(row)])),
        Column("tasks", lambda row: str(row.total), right=True),
        Column("finished", lambda row: str(row.finished), right=True),
        Column("dead", lambda row: str(row.dead), right=True),
        Column("created", lambda row: local(row.created_at), spare=True),
    ]


def in_words(statuses: dict[str, int]) -> str:
    """Return counts by status in a line; of more than COUNTED tasks they are at least so many."""
    words = ", ".join(f"{count} {status}" for status, count in statuses.items())
    if sum(statuses.values()) < COUNTED:
        return words
    return f"{words}, among the first {COUNTED}"


def named(tasks: TaskQuerySet) -> list[tuple[str, str]]:
    """Return the names of the first tasks, in whose histories it is written."""
    return list(tasks.order_by("pk").values_list("queue", "key")[:SIGNED])
