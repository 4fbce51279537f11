from __future__ import annotations

import json
from argparse import ArgumentTypeError
from collections.abc import Sequence

from django.core.management.base import CommandError, CommandParser, no_translations

from django_perfectqueue import queue
from django_perfectqueue.health.checks import Finding, findings, seconds
from django_perfectqueue.lib import durations
from django_perfectqueue.lib.printable import printable
from django_perfectqueue.worker.shared.status_page import LONG_AGO, WorkerStatus, statuses

from ..base import CommandOptions, SummedUpCommand, known_alias, speaking


class Command(SummedUpCommand):
    summary = (
        "Says whether tasks are being run, or whether a worker of this host lives, by its exit"
        " code: 0 when all is well, else 1."
    )
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        add = parser.add_argument
        add(
            "--queue",
            action="append",
            dest="queues",
            metavar="QUEUE",
            help=(
                "A queue to look at; may be repeated (default: all that the settings name, and all"
                " with a task that is due)."
            ),
        )
        add(
            "--database",
            metavar="ALIAS",
            help="Alias of the database that holds the queue (default: as in the settings).",
        )
        add(
            "--oldest",
            type=some_seconds,
            metavar="SECONDS",
            help="For how long the oldest task may have been due.",
        )
        add(
            "--live",
            action="store_true",
            help="Only whether a worker of this host lives; no database is asked.",
        )
        add(
            "--ready",
            action="store_true",
            help="Only whether a worker of this host takes tasks; no database is asked.",
        )
        add(
            "--pid-file",
            metavar="FILE",
            help="With --live or --ready: the worker whose pid is in this file.",
        )
        add("--json", action="store_true", help="Print one JSON object.")

    @no_translations
    def handle(self, *args: object, **options: object) -> None:
        if options["live"] or options["ready"]:
            found = [self.check_host(options)]
        else:
            if options["pid_file"]:
                raise CommandError("--pid-file goes with --live or --ready.")
            found = self.check_queues(options)
        self.print_findings(found, options)

    def check_queues(self, options: CommandOptions) -> list[Finding]:
        with speaking():
            using = known_alias(options["database"] or queue.database())
            given = options["queues"] or ()
            names = [queue.checked("queue", name, queue.QUEUE_LENGTH) for name in given]
            return list(findings(names, using=using, oldest=options["oldest"]))

    def check_host(self, options: CommandOptions) -> Finding:
        with speaking():
            shown = statuses()
        if options["pid_file"]:
            pid = pid_in(options["pid_file"])
            shown = [one for one in shown if pid in (one.launcher, one.supervisor)]
        return check_workers(shown, ready=options["ready"])

    def print_findings(self, found: Sequence[Finding], options: CommandOptions) -> None:
        wrong = [finding for finding in found if not finding.ok]
        if options["json"]:
            facts = [{**finding.facts(), **finding.keys} for finding in found]
            self.stdout.write(json.dumps({"ok": not wrong, "checks": facts}))
        elif options["verbosity"]:
            for finding in found:
                if finding.ok:
                    self.stdout.write(in_full(finding))
        if wrong:
            raise CommandError("\n".join(map(in_full, wrong)))


def check_workers(shown: Sequence[WorkerStatus], *, ready: bool) -> Finding:
    """Return how the worker stands that is best off."""
    if not shown:
        return Finding("worker", False, "No worker of this user runs on this host.")
    best = max(shown, key=lambda one: (one.is_ready, one.is_live, -one.turned))
    well = best.is_ready if ready else best.is_live
    return Finding("worker", well, describe_worker(best, ready=ready), best.facts())


def describe_worker(worker: WorkerStatus, *, ready: bool) -> str:
    name = f"The worker with pid {worker.supervisor}"
    if not worker.is_live and worker.turned >= LONG_AGO:
        return f"{name} is gone."
    if not worker.is_live:
        return f"{name} was last seen {durations.long_duration(worker.turned)} ago."
    if not ready:
        return f"{name} lives."
    if worker.leaving:
        return f"{name} takes no more tasks: it is stopping."
    if not worker.processors:
        return f"{name} has no processor."
    if not worker.is_ready:
        return f"{name} can't reach the database."
    return f"{name} takes tasks."


def pid_in(path: str) -> int:
    try:
        with open(path) as file:
            return int(file.read(32).strip())
    except (OSError, ValueError) as error:
        raise CommandError(f"There is no pid in '{path}': {error}.") from error


def in_full(finding: Finding) -> str:
    return printable(f"{finding.sentence} {finding.detail}".strip())


def some_seconds(text: str) -> float:
    try:
        return seconds(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from error
