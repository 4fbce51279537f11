from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, datetime
from typing import TYPE_CHECKING, TypeAlias, cast

from django.core.management.base import CommandError
from django.db import Error

from django_perfectqueue import conf, queue, store
from django_perfectqueue.health.checks import Finding, findings
from django_perfectqueue.health.queues import Overview, overview
from django_perfectqueue.inspection.statistics import Statistics, by_type, lifetime
from django_perfectqueue.inspection.workers import Assignment, ProcessorFacts, processors_of
from django_perfectqueue.lib.checks import nearest
from django_perfectqueue.lib.distinct import distinct
from django_perfectqueue.lib.durations import short_duration
from django_perfectqueue.lib.printable import printable, printable_lines
from django_perfectqueue.metrics.views import of_database
from django_perfectqueue.models import UNSEEN, Usage, Worker
from django_perfectqueue.models.fields import ServerNow

from ..base import CommandOptions, diagnosis
from ..facts import Clock, Facts, picked
from ..figures import facts, pauses, queue_columns
from ..terminal import GAP, Column, ago
from ..verbs import NounCommand, Subcommand

if TYPE_CHECKING:
    from django_stubs_ext import WithAnnotations

ListedWorker: TypeAlias = "WithAnnotations[Worker, Clock]"

# Take another screen and hide the cursor; and back.
OPEN, CLOSE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
HOME, REST = "\x1b[H", "\x1b[J"
MOST = 1000
MEGABYTE = 2**20
TODAY, ALL_TIME = "today", "all"


class Screen:
    """All queues and workers as they are, once or again and again."""

    def __init__(self, command: NounCommand, options: CommandOptions) -> None:
        self.command = command
        self.stdout, self.style = command.stdout, command.style
        self.interval = options["watch"]

    def run(self) -> None:
        if not self.interval:
            self.print(self.look())
            return
        try:
            with self.screen():
                while True:
                    self.show(self.look_or_say_why())
                    time.sleep(self.interval)
        except KeyboardInterrupt:
            return

    @property
    def is_live(self) -> bool:
        return self.stdout.isatty() and not self.command.as_json

    @contextmanager
    def screen(self) -> Iterator[None]:
        """On a terminal take a screen of its own, and leave the other as it was."""
        if not self.is_live:
            yield
            return
        self.stdout.write(OPEN, ending="")
        try:
            yield
        finally:
            self.stdout.write(CLOSE, ending="")
            self.stdout.flush()

    def look_or_say_why(self) -> list[str]:
        """Return the lines; where the database is away, why, since the next look may find it."""
        try:
            return self.look()
        except Error as error:
            return [self.style.ERROR(printable(diagnosis(self.command.queue.using, error)))]

    def look(self) -> list[str]:
        using = self.command.queue.using
        found = overview(using=using)
        paused = pauses(found.queues, using=using)
        if self.command.as_json:
            for queue in found.queues:
                self.command.print_json(facts(queue, found, paused))
            return []
        return [
            *self.heading(found),
            "",
            *self.command.table(queue_columns(paused), found.queues),
            "",
            *self.command.table(serving_columns(), found.workers),
        ]

    def heading(self, found: Overview) -> Iterator[str]:
        at = found.now.astimezone().strftime("%H:%M:%S")
        running = sum(queue.running for queue in found.queues)
        rate = sum(queue.finished_a_minute for queue in found.queues)
        yield f"{at}  {running:,} running, {rate:,.1f} finished a minute"
        if found.is_well:
            yield self.style.SUCCESS("All queues are served, and none is late.")
        else:
            yield self.style.ERROR(trouble(found))

    def print(self, lines: list[str]) -> None:
        if lines:
            self.stdout.write("\n".join(lines))

    def show(self, lines: list[str]) -> None:
        if not self.is_live:
            self.print(lines and [*lines, ""])
        else:
            # Each line wipes its rest, so that nothing flickers; more than fit would scroll.
            fitting = lines[: shutil.get_terminal_size().lines - 1]
            screen = "".join(f"{line}\x1b[K\n" for line in fitting)
            self.stdout.write(f"{HOME}{screen}{REST}", ending="")
        self.stdout.flush()


def trouble(found: Overview) -> str:
    """Return which queues need attention, and how many schedules."""
    late = found.late_schedules
    parts = [f"Queues that need attention: {', '.join(found.unwell)}."] if found.unwell else []
    parts += [f"Schedules that are late: {late:,}."] if late else []
    return printable(" ".join(parts))


def serving_columns() -> list[Column[Worker]]:
    def busy(worker: Worker) -> str:
        count = sum(bool(state["tasks"]) for state in worker.states)
        return f"{count}/{worker.processors}"

    return [
        Column("worker", str, elastic=True),
        Column("generation", lambda one: str(one.generation), right=True, spare=True),
        Column("version", lambda one: one.version, spare=True),
        Column("busy", busy, right=True),
        Column("queues", lambda one: ", ".join(one.queues), elastic=True),
    ]


def show_overview(command: NounCommand, options: CommandOptions) -> None:
    """Show all queues and workers as they are, as without a verb."""
    Screen(command, options).run()


def list_workers(command: NounCommand, options: CommandOptions) -> None:
    """List the workers of all hosts, the last seen first."""
    using = command.queue.using
    found = [one for one in newest_workers(using) if options["queue"] in (None, *one.queues)]
    processors: dict[int, list[ProcessorFacts]] = {}
    if command.as_json or options["tasks"]:
        processors = processors_of(found, using=using)
    if command.as_json:
        for worker in found:
            command.print_json(worker_facts(worker, processors[worker.id]))
        return
    if found:
        table = command.table(worker_columns(), found)
        command.stdout.write(next(table))
        for worker, line in zip(found, table, strict=True):
            command.stdout.write(line)
            for processor in processors.get(worker.id, ()):
                print_processor(command, processor, worker.clock)
    command.say(count_serving(sum(serves(worker) for worker in found)))


def newest_workers(using: str) -> list[ListedWorker]:
    rows = Worker.objects.using(using).annotate(clock=ServerNow())
    return cast("list[ListedWorker]", list(rows.order_by("-seen_at")[:MOST]))


def give_back(command: NounCommand, options: CommandOptions) -> None:
    """Have what workers hold that are gone run elsewhere now, and forget them."""
    names, using = options["names"], command.queue.using
    workers = newest_workers(using)
    named = [worker for worker in workers if {worker.host, str(worker)} & {*names}]
    gone = [worker for worker in named if options["force"] or worker.is_gone(worker.clock)]
    if not gone:
        known = [name for worker in workers for name in (worker.host, str(worker))]
        raise CommandError(
            f"{named[0]} was seen {ago(named[0].seen_at, named[0].clock)}; it is gone when it"
            f" was not seen for {UNSEEN.seconds} s. If you know that it has ended, add --force."
            if named
            else f"No worker is called '{names[0]}'.{nearest(names[0], known)}"
        )
    holders = [state["holder"] for worker in gone for state in worker.states]
    count = store.leases.lapse(holders, using=using, alive_time=conf.options().ALIVE_TIME)
    store.records.sign_off(*(worker.id for worker in gone), using=using)
    command.answer({"given_back": count}, f"Tasks that are given back: {count}.")


def print_processor(command: NounCommand, processor: ProcessorFacts, now: datetime) -> None:
    words = [f"processor {processor.number}", f"pid {processor.pid}"]
    if processor.memory is not None:
        words.append(f"{processor.memory / MEGABYTE:.0f} MB")
    words += [f"{count} {word}" for word, count in processor.counts.items()]
    command.stdout.write("  " + command.style.MIGRATE_LABEL(", ".join(words)))
    for task in processor.runs:
        command.stdout.write(f"    {describe_assignment(task, now)}")


def worker_columns() -> list[Column[ListedWorker]]:
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


def worker_facts(worker: ListedWorker, processors: list[ProcessorFacts]) -> Facts:
    return {
        **picked(worker, "id", "host", "pid", "launcher", "generation", "version"),
        **picked(worker, "started_at", "seen_at", "leaving", "queues", "processors"),
        "gone": worker.is_gone(worker.clock),
        "states": [processor.facts() for processor in processors],
        **(worker.routes or {"types": None, "patterns": None}),
    }


def check_health(command: NounCommand, options: CommandOptions) -> None:
    """Check whether tasks are being run: exits with 1 where something is wrong."""
    names = [queue.checked("queue", name, queue.QUEUE_LENGTH) for name in options["queues"] or ()]
    found = list(findings(names, using=command.queue.using, oldest=options["oldest"]))
    wrong = [finding for finding in found if not finding.ok]
    if command.as_json:
        rows = [{**finding.facts(), **finding.keys} for finding in found]
        command.print_json({"ok": not wrong, "checks": rows})
    for finding in found:
        if finding.ok and not command.as_json:
            command.say(in_full(finding))
    command.stdout.flush()
    if wrong:
        raise CommandError(*map(in_full, wrong))


def in_full(finding: Finding) -> str:
    return printable(f"{finding.sentence} {finding.detail}".strip())


def print_metrics(command: NounCommand, options: CommandOptions) -> None:
    """Print the metrics of all queues as Prometheus reads them."""
    text = of_database(command.queue.using)[0].decode()
    if not command.as_json:
        command.stdout.write(printable_lines(text), ending="")
        return
    from prometheus_client.parser import text_string_to_metric_families

    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            row = {"name": sample.name, "labels": sample.labels, "value": sample.value}
            command.print_json(row)


def show_types(command: NounCommand, options: CommandOptions) -> None:
    """Show how attempts of each type ended on a day, and how long they took."""
    using, text = command.queue.using, options["day"]
    day = day_of(text) if text not in (None, TODAY, ALL_TIME) else None
    used = Usage._default_manager.using(using).exclude(queue="")
    for name in [options["queue"]] if options["queue"] else distinct(used, "queue"):
        is_all = text == ALL_TIME
        found = lifetime(name, using=using) if is_all else by_type(name, day, using=using)
        if command.as_json:
            for one in found:
                command.print_json(one.facts())
            continue
        command.print_title(f"Queue '{name}', {found[0].day or 'all time'}")
        command.print_table(day_columns(), found, GAP)


def day_of(text: str) -> date:
    """Return a day. Raise CommandError for anything else."""
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise CommandError(f"'{text}' is no day such as 2026-11-22, and not 'all'.") from None


def day_columns() -> list[Column[Statistics]]:
    return [
        Column("type", lambda one: one.type or "all", elastic=True),
        Column("finished", lambda one: f"{one.finished:,}", right=True),
        Column("retried", lambda one: f"{one.retried:,}", right=True),
        Column("failed", lambda one: f"{one.failed:,}", right=True),
        Column("cancelled", lambda one: f"{one.cancelled:,}", right=True, spare=True),
        Column("lost", lambda one: f"{one.lost:,}", right=True, spare=True),
        Column("run mean s", lambda one: figure(one.run.mean), right=True),
        Column("deviation", lambda one: figure(one.run.deviation), right=True, spare=True),
        Column("p95", lambda one: figure(one.run.p95), right=True),
        Column("wait mean s", lambda one: figure(one.wait.mean), right=True),
        Column("p95", lambda one: figure(one.wait.p95), right=True),
    ]


def figure(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.3g}"


class Command(NounCommand):
    summary = (
        "Shows whether all is well: alone all queues and workers as they are; with a verb the"
        " workers, the checks, the metrics or how the tasks of each type end."
    )
    requires_system_checks = []
    name_help = "A host, or host:pid."
    default = "overview"
    default_flags = "--watch"
    examples = (
        "pq_status",
        "pq_status --watch",
        "pq_status workers --tasks",
        "pq_status health --oldest 600",
        "pq_status types --queue mail --day 2026-11-22",
    )
    verbs = {
        "overview": Subcommand(show_overview, terms="--watch"),
        "workers": Subcommand(list_workers, flags="--queue --tasks"),
        "give-back": Subcommand(give_back, "+", flags="--force"),
        "health": Subcommand(check_health, flags="--oldest --queue+"),
        "metrics": Subcommand(print_metrics),
        "types": Subcommand(show_types, flags="--queue --day"),
    }

    def connect(self) -> None:
        # The checks say themselves that the database is away.
        if self.options["verb"] != "health":
            super().connect()
