from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db.models import Max
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from django_perfectqueue import store
from django_perfectqueue.conf import options as settings
from django_perfectqueue.fields import ServerNow
from django_perfectqueue.models import Outcome, Task
from django_perfectqueue.queue import Queue, span

from ..base import QueueCommand, at_least
from ..hints import no_tasks
from ..progress import Progress


class Command(QueueCommand):
    summary = gettext_lazy(
        "Deletes the tasks, of every queue of a database, that ended so long ago that their"
        " retention has passed. The workers do it too, bit by bit; this does it now."
    )
    queue_help = gettext_lazy("With --all: the queue to be cleared (default: DEFAULT_QUEUE).")

    def add_options(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--older-than",
            metavar="SPAN",
            help=_(
                "How long ago they must have ended, such as 7d, instead of RETENTION_TIME. What"
                " the settings keep for ever stays, unless its --status is given."
            ),
        )
        parser.add_argument(
            "--status",
            action="append",
            choices=Outcome.values,
            metavar="STATUS",
            help=_("Only tasks that ended so: %s. Can be repeated.") % ", ".join(Outcome.values),
        )
        parser.add_argument(
            "--batch",
            type=at_least(1),
            default=1000,
            metavar="N",
            help=_("How many to look at in one transaction (1000)."),
        )
        parser.add_argument(
            "--dry-run", action="store_true", help=_("Only say how many it would be.")
        )
        parser.add_argument(
            "--all",
            action="store_true",
            help=_("Forget every task of one queue, those that wait or run too."),
        )
        parser.add_argument("--yes", action="store_true", help=_("With --all: mean it."))

    def act(self, **options: Any) -> None:
        check_choice(self.queue, options)
        if options["all"]:
            self.clear(dry_run=options["dry_run"])
            return
        rule = Rule.of(options["older_than"], options["status"])
        if options["dry_run"]:
            found = self.counted(rule, options["batch"])
            self.report(found.total(), by_status=found, dry_run=True)
        else:
            self.report(self.purged(rule, options["batch"]))

    def clear(self, *, dry_run: bool) -> None:
        count = self.queue.list().count() if dry_run else self.queue.clear()
        if count or self.as_json:
            self.report(count, dry_run=dry_run)
        else:
            self.say(no_tasks(self.queue))

    def purged(self, rule: Rule, batch: int) -> int:
        progress = Progress(self.stderr, _("%s tasks looked at"))
        deleted = looked = 0
        after: int | None = 0
        while after is not None:
            swept = store.purge(
                rule.retention, using=self.queue.using, after=after, keep=rule.keep, limit=batch
            )
            deleted += swept.deleted
            after = swept.reached
            looked += batch
            progress.show(looked)
        progress.clear()
        return deleted

    def counted(self, rule: Rule, batch: int) -> Counter[str]:
        tasks = Task.objects.using(self.queue.using)
        newest = tasks.aggregate(Max("id"))["id__max"] or 0
        ended = tasks.order_by("id").values_list("id", "outcome", "ended_at", ServerNow())
        found: Counter[str] = Counter()
        after = 0
        while page := list(ended.filter(id__gt=after)[:batch]):
            after = page[-1][0]
            found.update(
                outcome
                for task_id, outcome, ended_at, now in page
                if outcome and rule.dooms(outcome, now - ended_at, newest - task_id)
            )
        return found

    def report(
        self, count: int, *, by_status: Mapping[str, int] | None = None, dry_run: bool = False
    ) -> None:
        if self.as_json:
            name = "would_delete" if dry_run else "deleted"
            self.print_json({name: count} | ({"by_status": by_status} if by_status else {}))
            return
        if dry_run:
            text = ngettext("%s task would be deleted", "%s tasks would be deleted", count)
        else:
            text = ngettext("%s task is deleted", "%s tasks are deleted", count)
        parts = [f"{number} {status}" for status, number in sorted((by_status or {}).items())]
        self.say(text % count + (": " + ", ".join(parts) if parts else "") + ".")


@dataclass(frozen=True, slots=True)
class Rule:
    """How many seconds what ended so is kept, and how many of the newest ids at most."""

    retention: Mapping[str, float | None]
    keep: int | None

    @classmethod
    def of(cls, older_than: str | None, statuses: list[str] | None) -> Rule:
        """
        Return the rule that was asked for; by default that of the settings.

        Raise CommandError when it would keep everything.
        """
        retention = {
            status: settings().retention_time(status) for status in statuses or Outcome.values
        }
        if older_than is not None:
            seconds = span("--older-than", older_than)
            retention = {
                status: seconds if statuses or kept is not None else None
                for status, kept in retention.items()
            }
        keep = None if statuses or older_than else settings().RETENTION_COUNT
        if keep is None and all(seconds is None for seconds in retention.values()):
            raise CommandError(
                _("The settings keep these tasks for ever. Say how long with --older-than.")
            )
        return cls(retention, keep)

    def dooms(self, outcome: str, age: timedelta, younger: int) -> bool:
        seconds = self.retention.get(outcome)
        over = seconds is not None and age >= timedelta(seconds=seconds)
        if self.keep is None or outcome != Outcome.FINISHED:
            return over
        return over or younger >= self.keep


def check_choice(queue: Queue, options: Mapping[str, Any]) -> None:
    """Raise CommandError unless the options say one thing, and mean it."""
    if not options["all"]:
        if options["queue"]:
            raise CommandError(_("Retention is swept for every queue: --queue is for --all."))
        return
    if options["older_than"] is not None or options["status"]:
        raise CommandError(_("--all is every task: it takes no --older-than and no --status."))
    if not options["yes"] and not options["dry_run"]:
        raise CommandError(
            _("This forgets every task of the queue '%s', running ones too. Say --yes to mean it.")
            % queue.name
        )
