from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from django.core.management.base import CommandError

from django_perfectqueue import conf, store
from django_perfectqueue.fairness.report import WINDOWS
from django_perfectqueue.health.checks import Finding, findings
from django_perfectqueue.health.queues import HeldByOne, Overview, held_by_one, overview
from django_perfectqueue.inspection.statistics import Statistics, types_of, within
from django_perfectqueue.inspection.workers import Assignment, Processor, processors_of
from django_perfectqueue.lib.checks import nearest
from django_perfectqueue.lib.distinct import distinct
from django_perfectqueue.lib.durations import short_duration
from django_perfectqueue.lib.printable import printable, printable_lines
from django_perfectqueue.metrics.views import of_database
from django_perfectqueue.models import UNSEEN, Usage, Worker
from django_perfectqueue.models.fields import ServerNow
from django_perfectqueue.payload.inputs import QUEUE_LENGTH, checked

from ..base import CommandOptions
from ..terminal import Column, ago, for_programs, plural, unseen
from ..verbs import NounCommand, Subcommand
from .pq_queue import print_queues

MOST = 1000
MEGABYTE = 2**20
# In seconds: so often a worker reads its row.
REREAD = 10


def show_overview(command: NounCommand, options: CommandOptions) -> None:
    """Show the state of all queues and workers, as without a verb."""
    found = overview(using=command.queue.using)
    if command.as_json:
        print_queues(command, found)
        return
    at = found.now.astimezone().strftime("%H:%M:%S")
    running = sum(queue.running for queue in found.queues)
    rate = sum(queue.finished_a_minute for queue in found.queues)
    well = command.style.SUCCESS("All queues are served, and none is late.")
    verdict = well if found.is_well else command.style.ERROR(trouble(found))
    held = held_by_one(found, using=command.queue.using)
    holds = [command.style.WARNING(who_holds(held, found.now))] if held else []
    heading = f"{at}  {running:,} running, {rate:,.1f} finished a minute"
    command.print([heading, verdict, *holds, ""])
    print_queues(command, found)
    command.stdout.write("")
    for worker in found.workers:
        worker.clock = found.now
    command.print_table(WORKERS, found.workers)


def who_holds(held: HeldByOne, now: datetime) -> str:
    """Return which user holds all processors, since when, and what it would take."""
    whose = f"of user '{held.user}'" if held.user else "without a user"
    return printable(
        f"Tasks {whose} have run on all processors ({held.processors}) for"
        f" {short_duration((now - held.since).total_seconds())}, and others wait. Tasks in steps"
        " would make way between two of them; HEADROOM keeps processors for short tasks."
    )


def trouble(found: Overview) -> str:
    """Return which queues need attention, and how many schedules."""
    late = found.late_schedules
    parts = [f"Queues that need attention: {', '.join(found.unwell)}."] if found.unwell else []
    parts += [f"Schedules that are late: {late:,}."] if late else []
    return printable(" ".join(parts))


def list_workers(command: NounCommand, options: CommandOptions) -> None:
    """List the workers of all hosts, the last seen first."""
    using = command.queue.using
    for names, draining in ((options["drains"], True), (options["undrains"], False)):
        if names:
            chosen = named(newest_workers(using), names)
            store.records.drain([one.pk for one in chosen], draining, using=using)
            command.complain(f"Workers that read it within {REREAD} s: {len(chosen)}.")
    found = [one for one in newest_workers(using) if options["queue"] in (None, *one.queues)]
    processors: dict[int, list[Processor]] = {}
    if command.as_json or options["tasks"]:
        processors = processors_of(found, using=using)
    if command.as_json:
        for worker in found:
            states = [
                {"kept": False, **state, "tasks": runs} for state, runs in processors[worker.id]
            ]
            facts = for_programs(WORKERS, worker) | {"states": states}
            command.print_json(facts | (worker.routes or {"types": None, "patterns": None}))
        return
    if found:
        table = command.table(WORKERS, found)
        command.stdout.write(next(table))
        for worker, line in zip(found, table, strict=True):
            command.stdout.write(line)
            for processor in processors.get(worker.id, ()):
                print_processor(command, processor, worker.clock)
    command.say(count_serving(found))


def newest_workers(using: str) -> list[Worker]:
    rows = Worker.objects.using(using).annotate(clock=ServerNow())  # type: ignore[no-redef]
    return list(rows.order_by("-seen_at")[:MOST])


def named(workers: list[Worker], names: list[str]) -> list[Worker]:
    """Return those of a host or a name; raise CommandError for a name that none has."""
    known = {name for worker in workers for name in (worker.host, str(worker))}
    for name in names:
        if name not in known:
            raise CommandError(f"No worker is called '{name}'.{nearest(name, known)}")
    return [worker for worker in workers if {worker.host, str(worker)} & {*names}]


def give_back(command: NounCommand, options: CommandOptions) -> None:
    """Give back the tasks of workers that are gone, and delete the workers' rows."""
    names, using = options["names"], command.queue.using
    chosen = named(newest_workers(using), names)
    gone = [worker for worker in chosen if options["force"] or worker.state == "gone"]
    if not gone:
        raise CommandError(
            f"{chosen[0]} was seen {ago(chosen[0].seen_at, chosen[0].clock)}; it is gone when it"
            f" was not seen for {UNSEEN.seconds} s. If you know that it has ended, add --force."
        )
    holders = [state["holder"] for worker in gone for state in worker.states]
    count = store.leases.lapse(holders, using=using, alive_time=conf.options().ALIVE_TIME)
    store.records.sign_off(*(worker.id for worker in gone), using=using)
    command.answer({"given_back": count}, f"Tasks that are given back: {count}.")


def print_processor(command: NounCommand, processor: Processor, now: datetime) -> None:
    state, runs = processor
    words = [f"processor {state['number']}", f"pid {state['pid']}"]
    words += ["kept for short tasks"] if state.get("kept") else []
    if memory := state.get("memory"):
        words.append(f"{memory / MEGABYTE:.0f} MB")
    words += [f"{count} {word}" for word, count in state.get("counts", {}).items()]
    command.stdout.write("  " + command.style.MIGRATE_LABEL(", ".join(words)))
    for task in runs:
        command.stdout.write(f"    {describe_assignment(task, now)}")


WORKERS: list[Column[Worker]] = [
    Column("host", "host", elastic=True),
    Column("pid", "pid"),
    Column("generation", "generation", right=True, spare=True),
    Column("version", "version", spare=True),
    Column("since", "started_at", shown=lambda one: ago(one.started_at, one.clock), spare=True),
    Column("queues", "queues", elastic=True),
    Column("processors", "processors", shown=lambda one: processors_in_words(one), right=True),
    Column("busy", shown=lambda one: busy(one), right=True),
    Column("seen", "seen_at", shown=lambda one: ago(one.seen_at, one.clock)),
    Column(
        "", "gone", lambda one: one.state == "gone", lambda one: one.state.removeprefix("alive")
    ),
    *unseen("id", "launcher", "leaving", "draining"),
]


def processors_in_words(worker: Worker) -> str:
    kept = len(worker.kept)
    return f"{worker.processors} ({kept} kept)" if kept else str(worker.processors)


def busy(worker: Worker) -> int:
    return sum(bool(state["tasks"]) for state in worker.states)


def describe_assignment(task: Assignment, now: datetime) -> str:
    """Return in a line what a processor runs, and for how long."""
    span = f"for {short_duration((now - task.since).total_seconds())}"
    if not task.key:
        return f"task {task.task_id}, which is no longer stored, {span}"
    named = (("type", task.type), ("user", task.user), ("queue", task.queue))
    facts = [f"{name}={value}" for name, value in named if value]
    return printable(" ".join(filter(None, [task.key, *facts, span, task.how_far])))


def count_serving(found: Sequence[Worker]) -> str:
    serving = sum(worker.state == "alive" for worker in found)
    if not serving:
        drained = any(worker.draining for worker in found)
        again = ", or have a drained one take them again: --undrain WORKER" if drained else ""
        return f"No worker takes tasks. Start one: manage.py pq_worker{again}"
    return f"{plural(serving, 'worker')} {'takes' if serving == 1 else 'take'} tasks."


def check_health(command: NounCommand, options: CommandOptions) -> None:
    """Check whether tasks are being run: exits with 1 where something is wrong."""
    names = [checked("queue", name, QUEUE_LENGTH) for name in options["queues"] or ()]
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
    """Show how attempts of each type ended, and how long they took."""
    using, (length, _unit) = command.queue.using, WINDOWS[options["over"]]
    used = Usage._default_manager.using(using).exclude(queue="")
    queues = [options["queue"]] if options["queue"] else distinct(used, "queue")
    now = store.records.clock(using=using)
    found = types_of(queues, within(now - length, now), using=using)
    types = [one for _key, one in sorted(found.items())]
    if command.as_json:
        for one in types:
            command.print_json(one.facts())
        return
    command.print_table(TYPES, types)
    if not types:
        command.say(f"No attempt has ended in the last {options['over']}.")


def figure(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.3g}"


TYPES: list[Column[Statistics]] = [
    Column("queue", "queue", elastic=True),
    Column("type", "type", elastic=True),
    Column("finished", "finished", right=True),
    Column("retried", "retried", right=True),
    Column("failed", "failed", right=True),
    Column("cancelled", "cancelled", right=True, spare=True),
    Column("lost", "lost", right=True, spare=True),
    Column("run mean s", shown=lambda one: figure(one.run.mean), right=True),
    Column("deviation", shown=lambda one: figure(one.run.deviation), right=True, spare=True),
    Column("p95", shown=lambda one: figure(one.run.p95), right=True),
    Column("wait mean s", shown=lambda one: figure(one.wait.mean), right=True),
    Column("p95", shown=lambda one: figure(one.wait.p95), right=True),
]


class Command(NounCommand):
    help = (
        "Shows the state of all queues and workers; with a verb the workers, the checks, the "
        "metrics, or how the tasks of each type end."
    )
    requires_system_checks = []
    name_help = "A host, or host:pid."
    default = "overview"
    examples = (
        "pq_status",
        "pq_status workers --tasks",
        "pq_status workers --drain web-1",
        "pq_status health --oldest 600",
        "pq_status types --queue mail --over day",
    )
    verbs = {
        "overview": Subcommand(show_overview),
        "workers": Subcommand(list_workers, flags="--queue --tasks --drain+ --undrain+"),
        "give-back": Subcommand(give_back, "+", flags="--force"),
        "health": Subcommand(check_health, flags="--oldest --queue+"),
        "metrics": Subcommand(print_metrics),
        "types": Subcommand(show_types, flags="--queue --over"),
    }

    def connect(self) -> None:
        # The checks say themselves that the database is away.
        if self.options["verb"] != "health":
            super().connect()
