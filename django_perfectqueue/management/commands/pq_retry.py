from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from django_perfectqueue.exceptions import IdempotentError, NotFoundError
from django_perfectqueue.models import DEAD, Outcome, TaskQuerySet
from django_perfectqueue.queue import Task

from ..base import at_least
from ..hints import no_group
from ..progress import Progress
from ..steering import SteeringCommand
from ..words import printable

PAGE = 500
KEYS_SHOWN = 100
ENDINGS = [outcome.value for outcome in DEAD]


class Command(SteeringCommand):
    summary = gettext_lazy(
        "Puts failed, cancelled and expired tasks back in their line, with their counts of"
        " errors at nought, and hastens tasks that wait for their time."
    )

    def add_options(self, parser: CommandParser) -> None:
        parser.add_argument("keys", metavar="KEY", nargs="*", help=_("Keys of the tasks."))
        parser.add_argument(
            "--group",
            metavar="ERROR",
            help=_("Every task that ended for this reason, such as builtins.ValueError."),
        )
        parser.add_argument(
            "--all", action="store_true", help=_("Every task that ended with --status.")
        )
        parser.add_argument(
            "--status",
            choices=ENDINGS,
            metavar="STATUS",
            help=_("%s (failed).") % ", ".join(ENDINGS),
        )
        parser.add_argument(
            "--limit",
            type=at_least(1),
            metavar="N",
            help=_("Of these, no more than the first N."),
        )
        parser.add_argument(
            "--dry-run",
            action="store_true",
            help=_("Only list their keys, the first 100, and say how many."),
        )

    def act(self, **options: Any) -> None:
        many = options["all"] or options["group"] is not None
        check_choice(many, **options)
        if not many:
            self.steer_all(options["keys"])
            return
        dead = self.dead(options["group"], options["status"])
        keys = keys_of(dead, options["limit"])
        if options["group"] is not None and not self.as_json and not dead.exists():
            self.say(printable(no_group(self.queue, options["group"])))
        elif options["dry_run"]:
            self.tell(keys)
        else:
            self.retry(keys)

    def steer(self, task: Task) -> tuple[str, str]:
        task.retry()
        return _("Task '%s' will be tried again.") % task.key, "retried"

    def dead(self, group: str | None, status: str | None) -> TaskQuerySet:
        tasks = self.queue.list()
        if group is not None:
            tasks = tasks.filter(dead_letter__group=group)
        if status or group is None:
            tasks = tasks.in_status(status or Outcome.FAILED)
        return tasks.order_by("dead_letter__task_id")

    def tell(self, keys: Iterator[str]) -> None:
        count = 0
        for key in keys:
            count += 1
            if self.as_json:
                self.print_json({"key": key})
            elif count <= KEYS_SHOWN:
                self.stdout.write(printable(key))
        if self.as_json:
            return
        if count > KEYS_SHOWN:
            self.stdout.write(_("… and %s more") % (count - KEYS_SHOWN))
        self.say(
            ngettext("%s task would be tried again.", "%s tasks would be tried again.", count)
            % count
        )

    def retry(self, keys: Iterator[str]) -> None:
        progress = Progress(self.stderr, _("%s tasks"))
        done = 0
        for key in keys:
            done += self.retried(self.queue[key])
            progress.show(done)
        progress.clear()
        if self.as_json:
            self.print_json({"retried": done})
        else:
            self.say(
                ngettext("%s task will be tried again.", "%s tasks will be tried again.", done)
                % done
            )

    def retried(self, task: Task) -> bool:
        try:
            task.retry()
        except (IdempotentError, NotFoundError):
            return False
        return True


def check_choice(many: bool, **options: Any) -> None:
    """Raise CommandError unless the options say one thing."""
    if many and options["keys"]:
        raise CommandError(_("Give keys, or --group or --all, but not both."))
    if many:
        return
    for option in ("status", "limit", "dry_run"):
        if options[option]:
            name = option.replace("_", "-")
            raise CommandError(_("--%s is for --group or --all.") % name)
    if not options["keys"]:
        raise CommandError(_("Which tasks? Give their keys, or --group ERROR, or --all."))


def keys_of(tasks: TaskQuerySet, limit: int | None) -> Iterator[str]:
    """Yield keys in pages by the tasks' ids, so that one that fails again is not met twice."""
    last, left = 0, limit
    while left != 0:
        size = PAGE if left is None else min(PAGE, left)
        behind = tasks.filter(dead_letter__task_id__gt=last)
        page = list(behind.values_list("id", "key")[:size])
        yield from (key for _id, key in page)
        if len(page) < size:
            return
        last = page[-1][0]
        left = None if left is None else left - size
