"""How many tasks a queue has in each status, and why some did not finish."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from datetime import timedelta

from django_perfectqueue.metrics.overview import QueueFigures, overview
from django_perfectqueue.models import DEAD, LIVE, DeadLetter, Outcome, Status, Task
from django_perfectqueue.store.records.counts import COUNTED


@dataclass
class Figures:
    """
    What is in one queue: ``now`` is its row of the overview.

    ``blocked``, ``finished`` and ``dead``, which is by status and group, are counted up to
    COUNTED: one more says that there are more.
    """

    now: QueueFigures
    blocked: int
    finished: int
    dead: Counter[tuple[str, str]]

    @property
    def counts(self) -> dict[str, int]:
        """How many tasks have each status."""
        found = {word.value: getattr(self.now, word, self.blocked) for word in LIVE}
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
        moving = status in LIVE and status not in (Status.WAITING, Status.BLOCKED)
        return self.now.is_bounded if moving else self.counts[status] > COUNTED


def figures(using: str, queue: str | None = None) -> list[Figures]:
    """Return the figures of one queue, or of each that has any."""
    tasks = Task.objects.using(using)
    letters = DeadLetter.objects.using(using).order_by("-task_id")
    if queue is not None:
        tasks, letters = tasks.filter(queue=queue), letters.filter(task__queue=queue)
    blocked = tasks.in_status(Status.BLOCKED).order_by().values_list("queue", flat=True)
    blocked_by_queue = Counter(blocked[: COUNTED + 1])
    dead: dict[str, Counter[tuple[str, str]]] = defaultdict(Counter)
    for name, status, group in letters.values_list("task__queue", "status", "group")[: COUNTED + 1]:
        dead[name][status, group] += 1
    seen = overview(using=using, over=timedelta(), queue=queue)
    found = []
    for now in sorted(seen.queues, key=lambda one: one.name):
        finished = tasks.filter(queue=now.name, outcome=Outcome.FINISHED).order_by().values("id")
        ended = finished[: COUNTED + 1].count()
        one = Figures(now, blocked_by_queue[now.name], ended, dead[now.name])
        if queue is not None or not one.is_empty:
            found.append(one)
    return found
