"""Follow one task: each change of it, until it has ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass

from asgiref.sync import sync_to_async

from django_perfectqueue import store
from django_perfectqueue.models import Journal, Outcome, Task, TaskQuerySet

from .results import LATEST, SHARE, SOONEST, ResultWaiter, missing

COLUMNS: Sequence[str] = ("pk", "status", "tries", "ticket__watched")


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """
    A task at one moment.

    ``attempt`` counts the attempts, the running one among them; ``progress``, a part of 1 or
    None, and ``stage`` are what the present or last one has reported.
    """

    status: str
    attempt: int
    progress: float | None = None
    stage: str = ""

    @property
    def has_ended(self) -> bool:
        return self.status in Outcome.values


def changes_of(queue: str, key: str, *, using: str, timeout: float | None) -> Iterator[Snapshot]:
    """
    Yield what a task is, and again whenever that has changed, until it has ended.

    Raise what results_of() does.
    """
    watcher = Watcher(queue, key, using=using, timeout=timeout)
    try:
        while True:
            if (changed := watcher.change()) is not None:
                yield changed
                if changed.has_ended:
                    return
            watcher.check()
            watcher.wait()
    finally:
        watcher.close()


async def changes_of_async(
    queue: str, key: str, *, using: str, timeout: float | None
) -> AsyncIterator[Snapshot]:
    """Do the same; between two looks it holds no thread and no connection."""
    watcher = Watcher(queue, key, using=using, timeout=timeout)
    watcher.listener = None
    while True:
        if (changed := await sync_to_async(watcher.change)()) is not None:
            yield changed
            if changed.has_ended:
                return
        await sync_to_async(watcher.check)()
        await asyncio.sleep(watcher.pause())


class Watcher(ResultWaiter):
    """Waits for one task to change; only its end is ever notified, so it polls as well."""

    def __init__(self, queue: str, key: str, *, using: str, timeout: float | None) -> None:
        super().__init__(queue, [key], using=using, timeout=timeout)
        self.key = key
        self.last: Snapshot | None = None
        self.changed_at = self.since

    def change(self) -> Snapshot | None:
        """Return the task if it has changed since the last call."""
        found = store.database.with_retries(self.snapshot, using=self.using)
        if found == self.last:
            return None
        self.last, self.changed_at = found, time.monotonic()
        return found

    def snapshot(self) -> Snapshot:
        """Return the task; raise NotFoundError where there is none."""
        rows: TaskQuerySet = Task.objects.using(self.using).with_tries()
        rows = rows.filter(queue=self.queue, key=self.key)
        row = rows.values_list(*COLUMNS).first()
        if row is None:
            raise missing(self.queue, [self.key])
        task_id, status, attempt, watched = row
        self.waited_for, self.unfound = {task_id: self.key}, []
        self.are_watched = bool(watched)
        report = None
        if attempt and status != Outcome.FINISHED:
            journals = Journal.objects.using(self.using).filter(task_id=task_id).present()
            report = journals.values_list("progress", "stage").first()
        progress, stage = report or (None, "")
        return Snapshot(status=status, attempt=attempt, progress=progress, stage=stage)

    def pause(self) -> float:
        """Return the seconds until the next look: a tenth of the time since the last change."""
        now = time.monotonic()
        pause = min(LATEST, max(SOONEST, SHARE * (now - self.changed_at)))
        if self.timeout is None:
            return pause
        return max(0.0, min(pause, self.since + self.timeout - now))
