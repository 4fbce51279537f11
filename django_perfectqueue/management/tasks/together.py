"""Commands that also do what they do to all tasks that wait for those of the keys."""

from __future__ import annotations

from django.core.management.base import CommandError, CommandParser

from django_perfectqueue import store
from django_perfectqueue.bulk import Operation, Selection
from django_perfectqueue.bulk.selection import ANY
from django_perfectqueue.models import Task

from ..base import CommandOptions
from ..queues.rule_command import person
from .bulk import PAGE, SelectingCommand
from .hints import with_hint


class TogetherCommand(SelectingCommand):
    """With --together: it is done to those of them that wait to which it can be done."""

    def add_options(self, parser: CommandParser) -> None:
        super().add_options(parser)
        parser.add_argument(
            "--together",
            action="store_true",
            help="Also all tasks that wait for these, directly or not; with --dry-run, too.",
        )

    def act(self, options: CommandOptions) -> None:
        if not options["together"]:
            super().act(options)
            return
        if not options["keys"] or any(options[name] for name in self.choices):
            raise CommandError("--together is for keys.")
        names = self.names_together(options["keys"])
        if options["dry_run"]:
            self.print_keys(key for _id, _queue, key in names)
            return
        until = store.newest_id(using=self.queue.using)
        operation = Operation(verb=self.verb, selection=Selection(), by=person(), until=until)
        chunks = (names[start : start + PAGE] for start in range(0, len(names), PAGE))
        self.do_in_place(operation, chunks)

    def names_together(self, keys: list[str]) -> list[tuple[int, str, str]]:
        """Return ids, queues and keys, those that wait before those for which they wait."""
        ids = []
        for key in keys:
            with with_hint(self.queue[key]):
                ids.append(self.queue[key].id)
        found = [*store.descendants(ids, using=self.queue.using), *ids]
        names: list[tuple[int, str, str]] = []
        for some in (found[start : start + 1_000] for start in range(0, len(found), 1_000)):
            rows = Task.objects.using(self.queue.using).filter(ANY[self.verb], pk__in=some)
            names += rows.values_list("pk", "queue", "key")
        return sorted(names, reverse=True)
