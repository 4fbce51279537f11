from __future__ import annotations

from collections.abc import Mapping

from django.core.management.base import CommandError, CommandParser

from django_perfectqueue.exceptions import ConfigError
from django_perfectqueue.lib.durations import LONGEST
from django_perfectqueue.models import Outcome
from django_perfectqueue.queue import Queue
from django_perfectqueue.queue.retention import PurgeRule, purge

from ..base import CommandOptions, QueueCommand, at_least
from ..tasks.hints import no_tasks
from ..terminal.progress import ProgressLine
from ..terminal.text import seconds

NARROWS = ("type", "user", "group")


class Command(QueueCommand):
    summary = (
        "Deletes the tasks, of every queue of a database or of one, that ended so long ago that"
        " their retention has passed. The workers do it too, bit by bit; this does it now."
    )
    queue_help = (
        "Only tasks of this queue; with --all: the queue to be cleared (default: DEFAULT_QUEUE)."
    )

    def add_options(self, parser: CommandParser) -> None:
        add = parser.add_argument
        add(
            "--older-than",
            metavar="SPAN",
            help=(
                "How long ago they must have ended, such as 7d, instead of RETENTION. What the"
                " settings keep for ever stays, unless its --status is given."
            ),
        )
        add(
            "--status",
            action="append",
            choices=Outcome.values,
            metavar="STATUS",
            help=f"Only tasks that ended so: {', '.join(Outcome.values)}. Can be repeated.",
        )
        add("--type", metavar="TYPE", help="Only tasks of this type.")
        add("--user", metavar="USER", help="Only tasks of this user.")
        add(
            "--group",
            metavar="GROUP",
            help="Only dead letters of this group: the class of an error, or a reason.",
        )
        add(
            "--batch",
            type=at_least(1),
            default=1000,
            metavar="N",
            help="How many to look at in one transaction (1000).",
        )
        add("--dry-run", action="store_true", help="Only say how many it would be.")
        add(
            "--all",
            action="store_true",
            help="Forget every task of one queue, those that wait or run too.",
        )
        add("--yes", action="store_true", help="With --all: mean it.")

    def act(self, options: CommandOptions) -> None:
        check_choice(self.queue, options)
        if options["all"]:
            self.clear(dry_run=options["dry_run"])
            return
        rule = asked(options)
        progress = ProgressLine(self.stderr, "%s tasks looked at")
        found = purge(
            rule,
            using=self.queue.using,
            batch=options["batch"],
            dry=options["dry_run"],
            progress=progress.show,
        )
        progress.clear()
        if options["dry_run"]:
            self.report(found.total(), by_status=found, dry_run=True)
        else:
            self.report(found.total())

    def clear(self, *, dry_run: bool) -> None:
        count = self.queue.list().count() if dry_run else self.queue.clear()
        if count or self.as_json:
            self.report(count, dry_run=dry_run)
        else:
            self.say(no_tasks(self.queue))

    def report(
        self, count: int, *, by_status: Mapping[str, int] | None = None, dry_run: bool = False
    ) -> None:
        if self.as_json:
            name = "would_delete" if dry_run else "deleted"
            self.print_json({name: count} | ({"by_status": by_status} if by_status else {}))
            return
        tasks = "task" if count == 1 else "tasks"
        done = "would be" if dry_run else "is" if count == 1 else "are"
        parts = [f"{number} {status}" for status, number in sorted((by_status or {}).items())]
        self.say(f"{count} {tasks} {done} deleted{': ' if parts else ''}{', '.join(parts)}.")


def asked(options: CommandOptions) -> PurgeRule:
    """
    Return the rule that was asked for; by default that of the settings.

    Raise CommandError when it would keep everything.
    """
    older_than = seconds("--older-than", options["older_than"])
    try:
        return PurgeRule.of(
            older_than=None if older_than is None else min(older_than, LONGEST),
            statuses=options["status"] or (),
            only={name: options[name] for name in ("queue", *NARROWS)},
        )
    except ConfigError as error:
        raise CommandError(
            "The settings keep these tasks for ever. Say how long with --older-than."
        ) from error


def check_choice(queue: Queue, options: CommandOptions) -> None:
    """Raise CommandError unless the options say one thing, and mean it."""
    if not options["all"]:
        return
    for name in ("older_than", "status", *NARROWS):
        if options[name] is not None:
            option = name.replace("_", "-")
            raise CommandError(f"--all is every task: it takes no --{option}.")
    if not options["yes"] and not options["dry_run"]:
        raise CommandError(
            f"This forgets every task of the queue '{queue.name}', running ones too. Say --yes"
            " to mean it."
        )
