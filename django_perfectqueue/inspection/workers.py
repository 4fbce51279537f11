"""Which processor runs which task, and since when: the register, with the tasks' names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import OuterRef, Subquery
from django.utils.translation import gettext as _

from django_perfectqueue.models import Journal, Task, Ticket, Worker
from django_perfectqueue.models.worker import ProcessorState

WORKERS = 1_000
AT_ONCE = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """
    A task in the hands of a processor; its names are empty where it is gone by now.

    ``progress``, a part of 1, and ``stage`` are what its handler reported.
    """

    task_id: int
    since: datetime
    queue: str = ""
    key: str = ""
    type: str = ""
    user: str = ""
    progress: float | None = None
    stage: str | None = None

    def facts(self) -> dict[str, object]:
        """Return it for programs."""
        named = {name: getattr(self, name) or None for name in ("queue", "key", "type", "user")}
        reported = {"progress": self.progress, "stage": self.stage or None}
        return {"id": self.task_id, **named, "since": self.since.isoformat(), **reported}

    @property
    def how_far(self) -> str:
        """Return the progress that its handler reported, in short."""
        part = "" if self.progress is None else f"{self.progress:.0%}"
        return ", ".join(filter(None, [part, self.stage]))


# A processor as it was when its worker was seen, and what it ran.
Processor = tuple[ProcessorState, list[Assignment]]


def processors_of(workers: Sequence[Worker], *, using: str) -> dict[int, list[Processor]]:
    """Return the processors of each worker, by its id, with what they run, the longest first."""
    states = {worker.id: worker.states for worker in workers}
    ids = {task["id"] for some in states.values() for state in some for task in state["tasks"]}
    named = names_of(ids, using=using)
    return {
        worker.id: [(state, assignments(worker, state, named)) for state in states[worker.id]]
        for worker in workers
    }


def assignments(worker: Worker, state: ProcessorState, named: dict[int, Any]) -> list[Assignment]:
    found = [
        Assignment(
            task_id=task["id"],
            since=worker.seen_at - timedelta(seconds=task["seconds"]),
            **named.get(task["id"], {}),
        )
        for task in state["tasks"]
    ]
    return sorted(found, key=lambda one: one.since)


def names_of(ids: Iterable[int], *, using: str) -> dict[int, object]:
    """Return queue, key, type, user and progress of these tasks, without reading their data."""
    known = sorted(ids)
    journals = Journal.objects.filter(task_id=OuterRef("pk"), number=OuterRef("ticket__attempt"))
    tasks = Task.objects.using(using).order_by()
    tasks = tasks.annotate(progress=Subquery(journals.values("progress")))
    tasks = tasks.annotate(stage=Subquery(journals.values("stage")))
    return {
        row.pop("id"): row
        for start in range(0, len(known), AT_ONCE)
        for row in tasks.filter(id__in=known[start : start + AT_ONCE]).values(
            "id", "queue", "key", "type", "user", "progress", "stage"
        )
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """
    Which processor has a task: the pid is that processor's.

    ``since`` is when its handler began, and None until the worker has reported it.
    """

    host: str
    processor: int
    pid: int
    since: datetime | None = None

    def __str__(self) -> str:
        words = {"worker": f"{self.host}:{self.pid}", "number": self.processor}
        return _("%(worker)s, processor %(number)d") % words

    def facts(self) -> dict[str, object]:
        """Return it for programs."""
        return {**asdict(self), "since": self.since.isoformat() if self.since else None}


def location_of(task: Any, *, using: str) -> Location | None:
    """
    Return which processor has a task, by its ticket's holder and the register at its ``clock``.

    None where nobody has it, or where the register does not know that holder, or not yet.
    """
    ticket: Ticket | None = getattr(task, "ticket", None)
    if ticket is None or ticket.holder is None:
        return None
    holder = f'"holder":{ticket.holder},'
    seen = Worker.objects.using(using).seen(task.clock)
    for worker in seen.filter(states_text__contains=holder).order_by("-seen_at")[:WORKERS]:
        for state in worker.states:
            if state["holder"] == ticket.holder:
                runs = assignments(worker, state, {})
                since = next((one.since for one in runs if one.task_id == task.pk), None)
                return Location(
                    host=worker.host, processor=state["number"], pid=state["pid"], since=since
                )
    return None
