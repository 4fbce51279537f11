from __future__ import annotations

from argparse import ArgumentTypeError
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, timedelta

from django.core.management.base import CommandParser

from django_perfectqueue.health.queues import QueueFigures, overview
from django_perfectqueue.inspection.statistics import Statistics, by_type, lifetime
from django_perfectqueue.lib.distinct import distinct
from django_perfectqueue.lib.durations import short_duration
from django_perfectqueue.models import DEAD, LIVE, DeadLetter, Outcome, Status, Task, Usage
from django_perfectqueue.store.records.counts import COUNTED

from ..base import CommandOptions, QueueCommand, at_least
from ..tasks.hints import no_tasks
from ..terminal.table import GAP, Column
from ..terminal.text import or_more

TODAY, ALL_TIME = "today", "all"

ALWAYS = ("waiting", "running", "finished")


@dataclass
class Figures:
    """
    What is in one queue: ``now`` is its row of the overview.

    ``finished`` and ``dead``, which is by status and group, are counted up to COUNTED: one more
    says that there are more.
    """

    now: QueueFigures
    finished: int
    dead: Counter[tuple[str, str]]

    @property
    def counts(self) -> dict[str, int]:
        """How many tasks have each status."""
        found = {word.value: getattr(self.now, word) for word in LIVE}
        found[Status.FINISHED.value] = self.finished
        for outcome in DEAD:
            found[outcome.value] = sum(
                count for (status, _group), count in self.dead.items() if status == outcome
            )
        return found

    @property
    def is_empty(self) -> bool:
        return not any(self.counts.values())

    def has_more(self, status: str) -> bool:
        """Return whether there may be more with this status than were counted."""
        if status in DEAD:
            return self.dead.total() > COUNTED
        moving = status in LIVE and status != Status.WAITING
        return self.now.is_bounded if moving else self.counts[status] > COUNTED


class Command(QueueCommand):
    summary = (
        "Shows how many tasks a queue has in each status, and why some did not finish. Each status"
        " is counted up to 10,000."
    )
    queue_help = "Only this queue (default: all that there are)."

    def add_options(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--top",
            type=at_least(0),
            default=10,
            metavar="N",
            help="How many reasons to show (10).",
        )
        parser.add_argument(
            "--day",
            nargs="?",
            const=TODAY,
            type=day_or_all,
            metavar="DAY",
            help=(
                "How attempts ended on a day in UTC, as 2026-11-22, and how long they took, by"
                " type; today where no day follows; 'all' for all time."
            ),
        )

    def act(self, options: CommandOptions) -> None:
        if options["day"] is not None:
            self.print_day(options)
            return
        found = figures(self.queue.using, options["queue"])
        for number, one in enumerate(found):
            if self.as_json:
                self.print_json(summary(one, options["top"]))
                continue
            if options["queue"] and one.is_empty:
                self.say(no_tasks(self.queue))
                continue
            if number:
                self.stdout.write("")
            self.print_figures(one, options["top"])
        if not found and not self.as_json:
            self.say("There are no queues yet: nothing was ever submitted.")

    def print_figures(self, found: Figures, top: int) -> None:
        title = f"Queue '{found.now.name}'"
        self.print_title(title)
        for name, count, note in counts(found):
            if count not in ("0", "-") or name in ALWAYS:
                self.stdout.write(f"  {name:<10}{count:>8}  {note}".rstrip())
        if found.dead and top:
            self.stdout.write("")
            self.print_table(dead_columns(), found.dead.most_common(top), GAP)

    def print_day(self, options: CommandOptions) -> None:
        using, day = self.queue.using, options["day"]
        named = options["queue"]
        used = Usage._default_manager.using(using).exclude(queue="")
        for queue in [named] if named else distinct(used, "queue"):
            if day == ALL_TIME:
                found = lifetime(queue, using=using)
            else:
                found = by_type(queue, None if day == TODAY else day, using=using)
            if self.as_json:
                for one in found:
                    self.print_json(one.facts())
                continue
            title = f"Queue '{queue}', {found[0].day or 'all time'}"
            self.print_title(title)
            self.print_table(day_columns(), found, GAP)


def day_or_all(text: str) -> date | str:
    """Return a day, or that all time is meant. Raise ArgumentTypeError for anything else."""
    if text in (TODAY, ALL_TIME):
        return text
    try:
        return date.fromisoformat(text)
    except ValueError:
        sentence = "'%s' is no day such as 2026-11-22, and not 'all'."
        raise ArgumentTypeError(sentence % text) from None


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


def counts(found: Figures) -> Iterator[tuple[str, str, str]]:
    for status, count in found.counts.items():
        note = ""
        if status == Status.WAITING and found.now.oldest is not None:
            note = f"the first has been due for {short_duration(found.now.oldest)}"
        more = found.has_more(status)
        yield status, or_more(min(count, COUNTED), more=more), note


def dead_columns() -> list[Column[tuple[tuple[str, str], int]]]:
    return [
        Column("did not finish", lambda dead: dead[0][0]),
        Column("because", lambda dead: dead[0][1] or "-", elastic=True),
        Column("tasks", lambda dead: f"{dead[1]:,}", right=True),
    ]


def summary(found: Figures, top: int) -> dict[str, object]:
    return {
        "queue": found.now.name,
        "counts": {status: min(count, COUNTED) for status, count in found.counts.items()},
        "more": [status for status in found.counts if found.has_more(status)],
        "oldest_due_for": found.now.oldest,
        "dead_letters": [
            {"status": status, "group": group, "count": count}
            for (status, group), count in found.dead.most_common(top)
        ],
    }


def figures(using: str, queue: str | None = None) -> list[Figures]:
    """Return the figures of one queue, or of each that has any."""
    tasks = Task.objects.using(using)
    letters = DeadLetter.objects.using(using).order_by("-task_id")
    if queue is not None:
        tasks, letters = tasks.filter(queue=queue), letters.filter(task__queue=queue)
    dead: dict[str, Counter[tuple[str, str]]] = defaultdict(Counter)
    for name, status, group in letters.values_list("task__queue", "status", "group")[: COUNTED + 1]:
        dead[name][status, group] += 1
    seen = overview(using=using, over=timedelta(), queue=queue)
    found = []
    for now in sorted(seen.queues, key=lambda one: one.name):
        finished = tasks.filter(queue=now.name, outcome=Outcome.FINISHED).order_by().values("id")
        ended = finished[: COUNTED + 1].count()
        one = Figures(now, ended, dead[now.name])
        if queue is not None or not one.is_empty:
            found.append(one)
    return found
