from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, TypeAlias, cast

from django.core.management.base import CommandError, CommandParser, no_translations

from django_perfectqueue import conf, store
from django_perfectqueue.inspection.workers import Assignment, ProcessorFacts, processors_of
from django_perfectqueue.lib.checks import nearest
from django_perfectqueue.lib.durations import short_duration
from django_perfectqueue.lib.printable import printable
from django_perfectqueue.models import UNSEEN, Worker
from django_perfectqueue.models.fields import ServerNow

from ..base import CommandOptions, QueueCommand
from ..tasks.facts import Clock, Facts, picked
from ..terminal.table import Column
from ..terminal.text import ago

if TYPE_CHECKING:
    from django_stubs_ext import WithAnnotations

ListedWorker: TypeAlias = "WithAnnotations[Worker, Clock]"


MOST = 1000
MEGABYTE = 2**20


class Command(QueueCommand):
    summary = (
        "Lists the workers of all hosts: since when they are there, what they serve, when they were"
        " last seen, and what each processor runs."
    )
    queue_help: str = "Only those that serve this queue (default: all)."

    def add_options(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--tasks",
            action="store_true",
            help="Show the processors of each worker, and the tasks that they run.",
        )
        parser.add_argument(
            "--give-back",
            nargs="+",
            metavar="NAME",
            help="Have what workers hold that are gone run elsewhere now, and forget them."
            " NAME is a host, or host:pid.",
        )
        parser.add_argument(
            "--force",
            action="store_true",
            help="With --give-back: also what a worker holds that was seen lately. What it"
            " writes for these tasks from then on is refused.",
        )

    @no_translations
    def act(self, options: CommandOptions) -> None:
        rows = Worker.objects.using(self.queue.using).annotate(clock=ServerNow())
        newest = cast("list[ListedWorker]", rows.order_by("-seen_at")[:MOST])
        if options["give_back"]:
            self.give_back(newest, options["give_back"], force=options["force"])
            return
        found = [one for one in newest if options["queue"] in (None, *one.queues)]
        processors: dict[int, list[ProcessorFacts]] = {}
        if self.as_json or options["tasks"]:
            processors = processors_of(found, using=self.queue.using)
        if self.as_json:
            for worker in found:
                self.print_json(facts(worker, processors[worker.id]))
            return
        if found:
            self.print_workers(found, processors)
        self.say(count_serving(sum(serves(worker) for worker in found)))

    def give_back(self, workers: list[ListedWorker], names: list[str], *, force: bool) -> None:
        """Have the leases of workers with these names run out."""
        named = [worker for worker in workers if {worker.host, str(worker)} & {*names}]
        gone = [worker for worker in named if force or worker.is_gone(worker.clock)]
        if not gone:
            known = [name for worker in workers for name in (worker.host, str(worker))]
            raise CommandError(
                f"{named[0]} was seen {ago(named[0].seen_at, named[0].clock)}; it is gone when it"
                f" was not seen for {UNSEEN.seconds} s. If you know that it has ended, add --force."
                if named
                else f"No worker is called '{names[0]}'.{nearest(names[0], known)}"
            )
        holders = [state["holder"] for worker in gone for state in worker.states]
        using = self.queue.using
        count = store.lapse(holders, using=using, alive_time=conf.options().ALIVE_TIME)
        store.sign_off(*(worker.id for worker in gone), using=using)
        self.answer({"given_back": count}, f"Tasks that are given back: {count}.")

    def print_workers(
        self, workers: list[ListedWorker], processors: dict[int, list[ProcessorFacts]]
    ) -> None:
        table = self.table(columns(), workers)
        self.stdout.write(next(table))
        for worker, line in zip(workers, table, strict=True):
            self.stdout.write(line)
            for processor in processors.get(worker.id, ()):
                self.print_processor(processor, worker.clock)

    def print_processor(self, processor: ProcessorFacts, now: datetime) -> None:
        words = [f"processor {processor.number}", f"pid {processor.pid}"]
        if processor.memory is not None:
            words.append(f"{processor.memory / MEGABYTE:.0f} MB")
        words += [f"{count} {word}" for word, count in processor.counts.items()]
        self.stdout.write("  " + self.style.MIGRATE_LABEL(", ".join(words)))
        for task in processor.runs:
            self.stdout.write(f"    {describe_assignment(task, now)}")


def columns() -> list[Column[ListedWorker]]:
    return [
        Column("host", lambda worker: worker.host, elastic=True),
        Column("pid", lambda worker: str(worker.pid), right=True),
        Column("generation", lambda worker: str(worker.generation), right=True),
        Column("since", lambda worker: ago(worker.started_at, worker.clock)),
        Column("queues", lambda worker: ", ".join(worker.queues), elastic=True),
        Column("processors", lambda worker: str(worker.processors), right=True),
        Column("busy", lambda worker: str(busy(worker)), right=True),
        Column("seen", lambda worker: ago(worker.seen_at, worker.clock)),
        Column("", status_of),
    ]


def busy(worker: Worker) -> int:
    return sum(bool(state["tasks"]) for state in worker.states)


def status_of(worker: ListedWorker) -> str:
    if worker.is_gone(worker.clock):
        return "gone"
    return "leaving" if worker.leaving else ""


def serves(worker: ListedWorker) -> bool:
    return not (worker.leaving or worker.is_gone(worker.clock))


def describe_assignment(task: Assignment, now: datetime) -> str:
    """Return in a line what a processor runs, and for how long."""
    span = f"for {short_duration((now - task.since).total_seconds())}"
    if not task.key:
        return f"task {task.task_id}, which is no longer stored, {span}"
    words = [task.key, f"type={task.type}"]
    if task.user:
        words.append(f"user={task.user}")
    words += [f"queue={task.queue}", span]
    return printable(" ".join([*words, *([task.how_far] if task.how_far else [])]))


def count_serving(serving: int) -> str:
    if not serving:
        return "No worker takes tasks. Start one: manage.py pq_worker"
    return f"{serving} worker takes tasks." if serving == 1 else f"{serving} workers take tasks."


def facts(worker: ListedWorker, processors: list[ProcessorFacts]) -> Facts:
    return {
        **picked(worker, "id", "host", "pid", "launcher", "generation", "version"),
        **picked(worker, "started_at", "seen_at", "leaving", "queues", "processors"),
        "gone": worker.is_gone(worker.clock),
        "states": [processor.facts() for processor in processors],
        **(worker.routes or {"types": None, "patterns": None}),
    }
