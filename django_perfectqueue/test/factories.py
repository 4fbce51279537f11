"""One short way to a task in each status."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from django_perfectqueue import store
from django_perfectqueue.conf import options
from django_perfectqueue.exceptions import NotSupportedError
from django_perfectqueue.inspection.why_waiting import Case, Code
from django_perfectqueue.lib.checks import choice
from django_perfectqueue.models import Status
from django_perfectqueue.payload.codecs import JSON
from django_perfectqueue.queue import AcquiredTask, Queue, TaskHandle
from django_perfectqueue.store.values import Now

LATER = 3600.0
AGO = timedelta(seconds=7200)
MANY = 100
NO_WORKERS = (Code.NO_WORKER, Code.DRAINED, Code.UNKNOWN_TYPE)

numbers = itertools.count(1)


def make_task(
    type: str = "example",  # noqa: A002
    data: object = None,
    *,
    status: str = "waiting",
    key: str | None = None,
    queue: Queue | str | None = None,
    using: str | None = None,
    result: object = None,
    error: str = "builtins.ValueError",
    message: str = "as the test wants it",
    **options: object,
) -> TaskHandle:
    """
    Store a task and bring it to a status, as its submitter and a worker would.

    ``result`` is what a finished one has returned; ``error`` and ``message`` say why a
    failed or retrying one has not. One that is scheduled or retrying is put off for an
    hour. Other options are those of submit().

    Raise ValueError for an unknown status, NotSupportedError where the task can't
    be acquired: its queue or its user is paused, or has as many running as may.
    """
    queue = queue if isinstance(queue, Queue) else Queue(queue, using=using)
    choice(*WAYS).require("status", status, ValueError)
    key = key or f"{type}-{next(numbers)}"
    why = store.Failure(error=error, message=message)
    making = Making(queue, key, {"type": type, "data": data, **options}, result, why)
    made: TaskHandle = getattr(making, status)()
    return made


@dataclass
class Making:
    """A task that is on its way to its status."""

    queue: Queue
    key: str
    given: dict[str, object]
    result: object
    why: store.Failure

    def submit(self, **more: JSON) -> TaskHandle:
        return self.queue.submit(self.key, **{**self.given, **more})

    waiting = submit

    def scheduled(self) -> TaskHandle:
        return self.submit(run_at=self.given.get("run_at", LATER))

    def running(self) -> TaskHandle:
        return self.take().queue[self.key]

    def stalled(self) -> TaskHandle:
        before = store.records.clock(using=self.queue.using) - AGO
        self.take(now=before)
        return self.queue[self.key]

    def retrying(self) -> TaskHandle:
        return self.settled(lambda task: task.retry(LATER, why=self.why))

    def finished(self) -> TaskHandle:
        return self.settled(lambda task: task.finish(self.result))

    def failed(self) -> TaskHandle:
        return self.settled(lambda task: task.fail(why=self.why))

    def cancelled(self) -> TaskHandle:
        task = self.submit()
        task.cancel_request()
        return task

    def expired(self) -> TaskHandle:
        before = store.records.clock(using=self.queue.using) - AGO
        task = self.submit(now=before, expires_at=1.0)
        self.acquire(None)
        return task

    def settled(self, settle: Callable[[AcquiredTask], None]) -> TaskHandle:
        settle(self.take())
        return self.queue[self.key]

    def take(self, now: Now = None) -> AcquiredTask:
        """Submit it, and take it out of the line, whatever is before it."""
        self.submit(now=now)
        found = self.acquire(now)
        if found is None:
            # What holds it back, other than that no worker is there.
            row, using = self.queue[self.key].metadata(), self.queue.using
            reasons = Case(row, row.ticket, using, store.records.clock(using=using)).reasons()
            why = next(reason.sentence for reason in reasons if reason.code not in NO_WORKERS)
            raise NotSupportedError(f"Task '{self.key}' can't be acquired. {why}")
        return found

    def acquire(self, now: Now) -> AcquiredTask | None:
        """Take what is due until it is this; what was taken before goes back untried."""
        others: list[AcquiredTask] = []
        try:
            while taken := self.queue.acquire(MANY, alive_time=options().ALIVE_TIME, now=now):
                others += (task for task in taken if task.key != self.key)
                if found := [task for task in taken if task.key == self.key]:
                    return found[0]
            return None
        finally:
            for task in others:
                task.moment = now
                task._end(store.Ending.release())


WAYS = [status for status in Status.values if hasattr(Making, status)]
