"""What each customer got of the processors, read off the tasks themselves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from django_perfectqueue.models import FairShare, Status, Task
from django_perfectqueue.queue import Queue

from .models import Customer, Upload


class Run(NamedTuple):
    """When a task that has ended was submitted, begun and ended."""

    created_at: datetime
    started_at: datetime
    ended_at: datetime


def upload_of(task: Task) -> int:
    """Return the id of the upload that a handler, or a task of Django's, is about."""
    upload: int = task.data.get("kwargs", task.data)["upload"]
    return upload


@dataclass
class Standing:
    """One customer's uploads and how their tasks went. Times are in seconds."""

    customer: Customer
    weight: float
    tasks: list[Task] = field(default_factory=list)

    @property
    def files(self) -> int:
        return len({upload_of(task) for task in self.tasks})

    @property
    def charts(self) -> int:
        drawn = [task for task in self.tasks if task.type == "reports.tasks.draw_chart"]
        return sum(task.status == Status.FINISHED for task in drawn)

    @property
    def failed(self) -> list[Task]:
        return [task for task in self.tasks if task.status == Status.FAILED]

    @property
    def unfinished(self) -> int:
        return sum(task.ended_at is None for task in self.tasks)

    @property
    def ran(self) -> list[Run]:
        return [
            Run(task.created_at, task.started_at, task.ended_at)
            for task in self.tasks
            if task.started_at and task.ended_at
        ]

    @property
    def last_start(self) -> datetime:
        return max(run.started_at for run in self.ran)

    @property
    def mean_wait(self) -> float:
        waits = [(run.started_at - run.created_at).total_seconds() for run in self.ran]
        return sum(waits) / len(waits) if waits else 0.0

    def seconds(self, until: datetime | None = None) -> float:
        """Return the processor time it got, in all or until then."""
        return sum(seconds_of(run, until) for run in self.ran)


def seconds_of(run: Run, until: datetime | None) -> float:
    end = min(run.ended_at, until) if until else run.ended_at
    return max(0.0, (end - run.started_at).total_seconds())


def standings(uploads: Sequence[Upload], since: datetime) -> list[Standing]:
    """Return how each customer stands, by the tasks that had not ended by then."""
    found: dict[str, Standing] = {}
    weights = dict(FairShare.objects.filter(queue="").values_list("user", "weight"))
    for upload in uploads:
        customer = upload.customer
        found.setdefault(customer.slug, Standing(customer, weights.get(customer.slug, 1.0)))
    for task in tasks_of(uploads):
        if task.ended_at is None or task.ended_at >= since:
            found[task.user].tasks.append(task)
    return list(found.values())


def tasks_of(uploads: Iterable[Upload]) -> Iterable[Task]:
    """Return the tasks of these uploads, whatever became of them."""
    keys = [key for upload in uploads for key in (upload.summarise_key, upload.draw_key)]
    return Queue().list().filter(key__in=keys).select_related("dead_letter")


def end_of_contest(all_of_them: Iterable[Standing]) -> datetime | None:
    """Return when the first customer had nothing waiting any more; until then all compete."""
    return min((one.last_start for one in all_of_them if one.ran), default=None)
