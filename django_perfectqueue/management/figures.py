"""What is in the queues: the figures of the overview, and what has ended."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta

from django_perfectqueue.fairness.wording import paused_terms
from django_perfectqueue.health.queues import Overview, QueueFigures, overview
from django_perfectqueue.lib.durations import short_duration
from django_perfectqueue.models import DEAD, LIVE, DeadLetter, Limit, Outcome, Status, Task
from django_perfectqueue.store.records.counts import COUNTED

from .base import QueueCommand
from .facts import PAUSED, Facts, picked
from .terminal import Column, or_more


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


def counts(found: Figures) -> Iterator[tuple[str, str, str]]:
    for status, count in found.counts.items():
        note = ""
        if status == Status.WAITING and found.now.oldest is not None:
            note = f"the first has been due for {short_duration(found.now.oldest)}"
        more = found.has_more(status)
        yield status, or_more(min(count, COUNTED), more=more), note


def pauses(queues: Iterable[QueueFigures], *, using: str) -> dict[str, Limit]:
    """Return the limits that pause queues, by their names."""
    paused = [queue.name for queue in queues if queue.paused]
    rows = Limit.objects.using(using).filter(scope="queue", name__in=paused, paused=True)
    return {row.name: row for row in rows} if paused else {}


def queue_lines(command: QueueCommand, found: Overview) -> list[str]:
    """Return the lines of the table of all queues; for programs print them, and return none."""
    paused = pauses(found.queues, using=command.queue.using)
    if not command.as_json:
        return [*command.table(queue_columns(paused), found.queues)]
    for queue in found.queues:
        known = {"drained_in": queue.drained_in, "is_well": queue.is_well}
        facts = {**asdict(queue), **pause_facts(queue, paused), **known}
        command.print_json({"at": found.now.isoformat(), **facts})
    return []


def pause_facts(queue: QueueFigures, paused: Mapping[str, Limit]) -> Facts:
    return picked(paused.get(queue.name, Limit()), *PAUSED)


def marks(queue: QueueFigures, paused: Mapping[str, Limit]) -> str:
    """Return what is wrong with a queue, or that it is paused."""
    found = [f"no handler for {type_}" for type_ in queue.unknown_types]
    found += ["no worker"] if queue.is_unserved else []
    found += ["late"] if queue.is_late else []
    found += [paused_terms(paused[queue.name])] if queue.name in paused else []
    return ", ".join(found)


def queue_columns(paused: Mapping[str, Limit]) -> list[Column[QueueFigures]]:
    def number(title: str, name: str) -> Column[QueueFigures]:
        return Column(title, lambda one: f"{getattr(one, name):,}", right=True)

    def moving(title: str, *, spare: bool = False) -> Column[QueueFigures]:
        def cell(one: QueueFigures) -> str:
            return or_more(getattr(one, title), more=one.is_bounded)

        return Column(title, cell, right=True, spare=spare)

    def span(title: str, name: str) -> Column[QueueFigures]:
        def cell(one: QueueFigures) -> str:
            seconds = getattr(one, name)
            return short_duration(seconds) if seconds else "-"

        return Column(title, cell, right=True)

    return [
        Column("queue", lambda one: one.name, elastic=True),
        Column("waiting", waiting, right=True),
        span("oldest", "oldest"),
        moving("running"),
        moving("retrying", spare=True),
        moving("scheduled", spare=True),
        moving("blocked"),
        number("failed/h", "failed_last_hour"),
        Column("finished/min", lambda one: f"{one.finished_a_minute:,.1f}", right=True),
        Column("growth/min", growth, right=True),
        span("drained in", "drained_in"),
        number("workers", "workers"),
        Column("", lambda one: marks(one, paused), elastic=True),
    ]


def growth(queue: QueueFigures) -> str:
    found = queue.growth_a_minute
    return "-" if found is None else f"{found:+,.0f}"


def waiting(queue: QueueFigures) -> str:
    return or_more(min(queue.waiting, COUNTED), more=queue.waiting > COUNTED)


DEAD_COLUMNS: list[Column[tuple[tuple[str, str], int]]] = [
    Column("did not finish", lambda dead: dead[0][0]),
    Column("because", lambda dead: dead[0][1] or "-", elastic=True),
    Column("tasks", lambda dead: f"{dead[1]:,}", right=True),
]


def summary(found: Figures, top: int | None) -> dict[str, object]:
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
