from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from django.core.management.base import CommandParser
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from django_perfectqueue.inspection.workers import Assignment, Processor, processors_of
from django_perfectqueue.lib.durations import short_duration
from django_perfectqueue.lib.printable import printable
from django_perfectqueue.models import Worker
from django_perfectqueue.models.fields import ServerNow

from ..base import CommandOptions, QueueCommand
from ..terminal.table import GAP, Column, lines, terminal_width

MOST = 1000
MEGABYTE = 2**20


class Command(QueueCommand):
    summary = gettext_lazy(
        "Lists the workers of all hosts: since when they are there, what they serve, when they"
        " were last seen, and what each processor runs."
    )
    queue_help: str | Promise = gettext_lazy("Only those that serve this queue (default: all).")

    def add_options(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--tasks",
            action="store_true",
            help=_("Show the processors of each worker, and the tasks that they run."),
        )

    def act(self, options: CommandOptions) -> None:
        rows: Any = Worker.objects.using(self.queue.using).annotate(clock=ServerNow())
        found = [
            worker
            for worker in rows.order_by("-seen_at")[:MOST]
            if options["queue"] in (None, *worker.queues)
        ]
        processors: dict[int, list[Processor]] = {}
        if self.as_json or options["tasks"]:
            processors = processors_of(found, using=self.queue.using)
        if self.as_json:
            for worker in found:
                self.print_json(facts(worker, processors[worker.id]))
            return
        if found:
            self.print_table(found, processors)
        self.say(count_serving(sum(serves(worker) for worker in found)))

    def print_table(self, workers: list[Any], processors: dict[int, list[Processor]]) -> None:
        columns = [
            Column(_("host"), elastic=True),
            Column(_("pid"), right=True),
            Column(_("generation"), right=True),
            Column(_("since")),
            Column(_("queues"), elastic=True),
            Column(_("processors"), right=True),
            Column(_("busy"), right=True),
            Column(_("seen")),
            Column(""),
        ]
        table = lines(columns, cells(workers), width=terminal_width(self.stdout))
        self.stdout.write(self.style.MIGRATE_HEADING(GAP.join(next(table)).rstrip()))
        for worker, row in zip(workers, table, strict=True):
            self.stdout.write(GAP.join(row).rstrip())
            for processor in processors.get(worker.id, ()):
                self.print_processor(processor, worker.clock)

    def print_processor(self, processor: Processor, now: datetime) -> None:
        words = [_("processor %d") % processor.number, _("pid %d") % processor.pid]
        if processor.memory is not None:
            words.append(f"{processor.memory / MEGABYTE:.0f} MB")
        words += [f"{count} {_(word)}" for word, count in processor.counts.items()]
        self.stdout.write("  " + self.style.MIGRATE_LABEL(", ".join(words)))
        for task in processor.runs:
            self.stdout.write(f"    {describe_assignment(task, now)}")


def cells(workers: list[Any]) -> Iterator[list[str]]:
    for worker in workers:
        yield [
            worker.host,
            str(worker.pid),
            str(worker.generation),
            ago(worker.started_at, worker.clock),
            ", ".join(worker.queues),
            str(worker.processors),
            str(sum(bool(seat["tasks"]) for seat in worker.seats)),
            ago(worker.seen_at, worker.clock),
            status_of(worker),
        ]


def status_of(worker: Any) -> str:
    if worker.is_gone(worker.clock):
        return _("gone")
    return _("leaving") if worker.leaving else ""


def serves(worker: Any) -> bool:
    return not (worker.leaving or worker.is_gone(worker.clock))


def describe_assignment(task: Assignment, now: datetime) -> str:
    """Return in a line what a processor runs, and for how long."""
    span = _("for %s") % short_duration((now - task.since).total_seconds())
    if not task.key:
        return _("task %(id)d, which is no longer stored, %(span)s") % {
            "id": task.task_id,
            "span": span,
        }
    words = [task.key, f"type={task.type}"]
    if task.user:
        words.append(f"user={task.user}")
    words += [f"queue={task.queue}", span]
    return printable(" ".join([*words, *([task.how_far] if task.how_far else [])]))


def ago(moment: datetime, now: datetime) -> str:
    return _("%s ago") % short_duration((now - moment).total_seconds())


def count_serving(serving: int) -> str:
    if not serving:
        return _("No worker takes tasks. Start one: manage.py pq_worker")
    return ngettext("%s worker takes tasks.", "%s workers take tasks.", serving) % serving


def facts(worker: Any, processors: list[Processor]) -> dict[str, Any]:
    return {
        "id": worker.id,
        "host": worker.host,
        "pid": worker.pid,
        "launcher": worker.launcher,
        "generation": worker.generation,
        "version": worker.version,
        "started_at": worker.started_at.isoformat(),
        "seen_at": worker.seen_at.isoformat(),
        "gone": worker.is_gone(worker.clock),
        "leaving": worker.leaving,
        "queues": worker.queues,
        "processors": worker.processors,
        "seats": [processor.facts() for processor in processors],
        **(worker.routes or {"types": None, "patterns": None}),
    }
