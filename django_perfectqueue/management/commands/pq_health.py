from __future__ import annotations

import json
from argparse import ArgumentTypeError
from collections.abc import Sequence

from django.core.management.base import CommandError, CommandParser, no_translations

from django_perfectqueue import queue
from django_perfectqueue.health.checks import Finding, findings, seconds
from django_perfectqueue.lib.printable import printable

from ..base import CommandOptions, SummedUpCommand, cli_errors, known_alias


class Command(SummedUpCommand):
    summary = "Says whether tasks are being run, by its exit code: 0 when all is well, else 1."
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
        add("--json", action="store_true", help="Print one JSON object.")

    @no_translations
    def handle(self, *args: object, **options: object) -> None:
        with cli_errors():
            self.print_findings(self.check_queues(options), options)

    def check_queues(self, options: CommandOptions) -> list[Finding]:
        using = known_alias(options["database"] or queue.database())
        given = options["queues"] or ()
        names = [queue.checked("queue", name, queue.QUEUE_LENGTH) for name in given]
        return list(findings(names, using=using, oldest=options["oldest"]))

    def print_findings(self, found: Sequence[Finding], options: CommandOptions) -> None:
        wrong = [finding for finding in found if not finding.ok]
        if options["json"]:
            facts = [{**finding.facts(), **finding.keys} for finding in found]
            self.stdout.write(json.dumps({"ok": not wrong, "checks": facts}))
        elif options["verbosity"]:
            for finding in found:
                if finding.ok:
                    self.stdout.write(in_full(finding))
        self.stdout.flush()
        if wrong:
            raise CommandError("\n".join(map(in_full, wrong)))


def in_full(finding: Finding) -> str:
    return printable(f"{finding.sentence} {finding.detail}".strip())


def some_seconds(text: str) -> float:
    try:
        return seconds(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from error
