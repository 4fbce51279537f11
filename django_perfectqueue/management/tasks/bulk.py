"""Commands that do one thing to the tasks of some keys, or to all of a kind."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import ClassVar

from django.core.management.base import CommandError, CommandParser

from django_perfectqueue import store
from django_perfectqueue.bulk import RATE, Operation, Selection, Verb, submit_bulk
from django_perfectqueue.bulk.handler import REFUSED, chunks_of, in_place
from django_perfectqueue.bulk.selection import ALLOWED, Found
from django_perfectqueue.exceptions import InvalidTaskError
from django_perfectqueue.lib.printable import printable
from django_perfectqueue.models import TaskQuerySet

from ..base import CommandOptions, at_least
from ..queues.rule_command import person, rate
from ..terminal.progress import ProgressLine
from .bulk_preview import add_times, print_preview
from .hints import no_group, no_tasks
from .single import SteeringCommand

PAGE = 500
KEYS_SHOWN = 100

WORDS = {"retry": ["retried"], "cancel": ["cancelled", "requested"]}
"""What may be done to tasks that are chosen; of the first it is also said where it is none."""
SENTENCES = {
    "retried": ("1 task will be tried again.", "{} tasks will be tried again."),
    "would retry": ("1 task would be tried again.", "{} tasks would be tried again."),
    "cancelled": ("1 task is cancelled.", "{} tasks are cancelled."),
    "would cancel": ("1 task would be cancelled.", "{} tasks would be cancelled."),
    "requested": (
        "1 is held by a processor, and is asked to stop.",
        "{} are held by processors, and are asked to stop.",
    ),
}


def counted(word: str, count: int) -> str:
    one, many = SENTENCES[word]
    return one if count == 1 else many.format(count)


class SelectingCommand(SteeringCommand):
    """
    A command that takes keys, or else says by what its tasks are chosen.

    ``verb`` says what it does, and so to tasks of which statuses.
    """

    choices: ClassVar[tuple[str, ...]] = ("group", "all", "type", "user", "tag", "since", "until")
    all_help: ClassVar[str] = "Every task that waits or has failed, or only those with --status."
    status_help: ClassVar[str] = "%s (any of these)."
    verb: ClassVar[Verb]
    terms: ClassVar[tuple[str, ...]] = ("rate", "run_in")
    """The options by which a task is to do it, to those that are chosen by filters."""

    def add_options(self, parser: CommandParser) -> None:
        add = parser.add_argument
        add("keys", metavar="KEY", nargs="*", help="Keys of the tasks.")
        if "group" in self.choices:
            add("--group", metavar="ERROR", help="Every task that ended for this reason.")
        add("--all", action="store_true", help=self.all_help)
        add("--type", metavar="TYPE", help="Every such task of this type.")
        add("--user", metavar="USER", help="Every such task of this user.")
        add("--tag", metavar="TAG", help="Every such task with this tag.")
        add_times(parser)
        statuses = ALLOWED[self.verb]
        text = self.status_help % ", ".join(statuses)
        add("--status", choices=statuses, metavar="STATUS", help=text)
        add("--limit", type=at_least(1), metavar="N", help="Of these, no more than the first N.")
        add(
            "--dry-run",
            action="store_true",
            help="Only list their keys, the first 100, and say how many.",
        )
        add(
            "--rate",
            type=rate,
            metavar="N/TIME",
            help="Let a task of the queue do it, to so many in a time such as 50/min (500/s).",
        )
        add("--run-in", metavar="QUEUE", help="The queue of that task (the one of the others).")

    def act(self, options: CommandOptions) -> None:
        if not self.chooses(options):
            self.steer_all(options["keys"])
            return
        try:
            operation = self.operation(options)
            if any(options[name] is not None for name in self.terms):
                self.submit_bulk(operation, options)
                return
        except InvalidTaskError as error:
            raise CommandError(str(error)) from error
        tasks = operation.selection.tasks(self.verb, using=self.queue.using)
        if not self.as_json and not tasks.exists() and (why := self.why_none(options)):
            self.say(why)
            return
        tasks = tasks.filter(pk__lte=operation.until)
        if options["dry_run"]:
            self.print_keys(self.keys_of(tasks))
        else:
            self.do_in_place(operation, chunks_of(operation, using=self.queue.using))

    def operation(self, options: CommandOptions) -> Operation:
        """Return what the options say; raise InvalidTaskError where they don't fit."""
        count, period = options["rate"] or (RATE, 1.0)
        names = {name: options[name] for name in ("to", "patch") if options.get(name) is not None}
        operation = Operation(
            verb=self.verb,
            selection=self.selection(options),
            rate=count / period if period else math.inf,
            by=person(),
            until=store.newest_id(using=self.queue.using),
            **names,
        )
        if (limit := options["limit"]) is None:
            return operation
        ids = operation.selection.tasks(self.verb, using=self.queue.using).values_list("pk")
        return replace(operation, until=max([id_ for (id_,) in ids[:limit]], default=0))

    def keys_of(self, tasks: TaskQuerySet) -> Iterable[str]:
        """Return the keys of those of the chosen ``tasks`` to which it can be done."""
        return tasks.values_list("key", flat=True).iterator(chunk_size=PAGE)

    def why_none(self, options: CommandOptions) -> str:
        """Return what was named that does not exist, and what does, or an empty text."""
        if not self.queue.list().exists():
            return no_tasks(self.queue)
        return no_group(self.queue, options["group"]) if options.get("group") else ""

    def chooses(self, options: CommandOptions) -> bool:
        """
        Return whether tasks are chosen by filters and not by keys.

        Raise CommandError unless the options say one thing.
        """
        given = [name for name in self.choices if options[name] not in (None, False)]
        if given and options["keys"]:
            raise CommandError(f"Give keys, or {self.list_choices()}, but not both.")
        if given:
            # A filter that says nothing would be about all tasks.
            if empty := [name for name in given if name != "user" and not options[name]]:
                raise CommandError(f"--{empty[0]} is empty: name one, or say --all.")
            return True
        for option in ("status", "limit", "dry_run", "rate", "run_in"):
            if options[option]:
                name = option.replace("_", "-")
                raise CommandError(f"--{name} is for {self.list_choices()}.")
        if not options["keys"]:
            raise CommandError(f"Which tasks? Give their keys, or {self.list_choices()}.")
        return False

    def submit_bulk(self, operation: Operation, options: CommandOptions) -> None:
        """Submit the task that does it, or with --dry-run print what it would do."""
        if options["limit"] is not None:
            raise CommandError("--limit is not for a task that does it.")
        if options["dry_run"]:
            print_preview(self, operation)
            return
        task = submit_bulk(operation, queue=options["run_in"] or "", using=self.queue.using)
        facts = {"key": task.key, "queue": task.queue.name}
        text = "Task '%(key)s' of queue '%(queue)s' does it: %(count)s tasks, as far as known."
        self.answer(facts, text % {**facts, "count": task.metadata().data["total"]})

    def selection(self, options: CommandOptions) -> Selection:
        """Return the filter that the options say."""
        return Selection(
            queue=self.queue.name,
            status=options["status"] or "",
            type=options["type"] or "",
            user=options["user"],
            group=options.get("group") or "",
            tag=options["tag"] or "",
            since=options["since"] or "",
            until=options["until"] or "",
        )

    def list_choices(self) -> str:
        *others, last = (f"--{name}" for name in self.choices)
        return f"{', '.join(others)} or {last}"

    def print_keys(self, keys: Iterable[str]) -> None:
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
            self.stdout.write(f"… and {count - KEYS_SHOWN} more")
        self.say(counted(f"would {self.verb}", count))

    def do_in_place(self, operation: Operation, chunks: Iterable[Sequence[Found]]) -> None:
        progress = ProgressLine(self.stderr, "%s tasks")
        done = Counter(dict.fromkeys(WORDS[self.verb], 0))
        for some in in_place(operation, chunks, using=self.queue.using):
            done.update(some)
            progress.show(sum(done.values()))
        progress.clear()
        refused = done.pop(REFUSED, 0)
        first, *others = WORDS[self.verb]
        sentences = [counted(first, done[first]), *(counted(w, done[w]) for w in others if done[w])]
        self.answer(done, " ".join(sentences))
        if refused:
            why = "They have changed, or tasks wait for them that were not chosen."
            raise CommandError(f"Tasks that are left: {refused}. {why}")
