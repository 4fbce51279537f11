"""One handler, run without a queue."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from django.utils import timezone

from django_perfectqueue import store
from django_perfectqueue.application import Application
from django_perfectqueue.conf import options
from django_perfectqueue.exceptions import CancelRequestedError
from django_perfectqueue.payload import codecs
from django_perfectqueue.payload.inputs import checked_priority, checked_user
from django_perfectqueue.payload.names import JSON
from django_perfectqueue.queue import AcquiredTask, Queue, checked_duration, encoded
from django_perfectqueue.queue.steps import Steps

from .held_task import HeldTask
from .inline_runner import InlineRunner, is_trouble, only, raise_error
from .report import Run
from .routes import workers_dispatch

Handler = type[Application] | Callable[[AcquiredTask], object]

numbers = itertools.count(1)


class RehearsedSteps(Steps):
    """Steps that are kept in their task."""

    task: RehearsedTask

    def names(self) -> set[str]:
        return set(self.task.steps)

    def read(self, name: str) -> str:
        return encoded(self.task.steps[name])

    def keep(self, name: str, text: str) -> None:
        self.task.steps[name] = codecs.decode(text)


class RehearsedTask(HeldTask):
    """
    An acquired task that no database knows: what settles it is noted here.

    ``settled`` is the word for what has become of it, ``returned`` its result, ``wait``
    for how long it was put off, and ``why`` the reason why it did not finish. Where
    ``cancel_requested`` is set, heartbeat() raises CancelRequestedError. ``steps`` are the
    results of its steps by name; a test may set those of earlier attempts.
    """

    cancel_requested: bool = False
    why: store.Failure | None = None

    def __init__(self, *values: Any, **terms: Any) -> None:
        super().__init__(*values, **terms)
        self.steps: dict[str, JSON] = {}

    def _opened_steps(self) -> Steps:
        self._steps = self._steps or RehearsedSteps(self)
        return super()._opened_steps()

    def write(self, completion: store.Completion) -> bool:
        self._refuse_if_settled()
        self._settle("finished")
        return True

    def write_notes(self) -> None:
        """Leave the report in ``notes``."""

    def heartbeat(self, *, now: datetime | None = None) -> None:
        if self.cancel_requested:
            raise CancelRequestedError(f"Task '{self.key}' is to be cancelled.")

    def update_data(self, changes: Mapping[str, object], *, now: datetime | None = None) -> None:
        self._refuse_if_settled()
        merged = {**self.data, **changes}
        self.lease = self.lease._replace(payload=encoded(merged))
        self._data = merged

    def finish(self, result: object = None, *, now: datetime | None = None) -> None:
        def note() -> None:
            self.completion(result)
            self._settle("finished")
            self.returned = result

        self._once("finished", note)

    def _end(self, ending: store.Ending, *, now: datetime | None = None) -> None:
        """Note what would be written; what is put off is cancelled where that is asked for."""
        self._refuse_if_settled()
        put_off = ending.outcome is None
        self._settle("cancelled" if put_off and self.cancel_requested else ending.word)
        self.wait, self.why = ending.wait if put_off else None, ending.why


def make_acquired(
    type: str = "example",  # noqa: A002
    data: object = None,
    *,
    key: str | None = None,
    user: str | None = None,
    queue: Queue | str | None = None,
    priority: int = 0,
    attempt: int = 1,
    time_limit: float | None = None,
    cancel_requested: bool = False,
) -> RehearsedTask:
    """
    Return a task as a handler is given it, of which no database knows.

    ``attempt`` is which attempt it is: those before have ended in an error. With
    ``cancel_requested`` someone has asked for it to stop.
    """
    queue = queue if isinstance(queue, Queue) else Queue(queue)
    now, number = timezone.now(), next(numbers)
    lease = store.Lease(
        using=queue.using,
        task_id=number,
        attempt=attempt,
        holder=store.new_holder(),
        token=0,
        lane=0,
        charge=0.0,
        errors=attempt - 1,
        crashes=0,
        queue=queue.name,
        key=key or f"{type}-{number}",
        type=type,
        user=checked_user(user),
        payload=encoded(data),
        priority=checked_priority(priority),
        created_at=now,
        run_at=now,
        time_limit=checked_duration("time_limit", time_limit),
    )
    task = RehearsedTask(lease, alive_time=options().ALIVE_TIME, worker="rehearsal")
    task.cancel_requested = cancel_requested
    return task


def run_handler(
    handler: Handler | str,
    data: object = None,
    *,
    task: RehearsedTask | None = None,
    raise_errors: bool = True,
    **given: Any,
) -> Run:
    """
    Run a handler as a worker would, with its decider and its policy; return its attempt.

    ``handler`` is a class, a function, or the type of tasks for which one is routed. It gets
    a task that no database knows: ``task``, or what make_acquired() makes of ``data`` and
    what else is given. No database is asked unless the handler does. What it raises is
    raised here, unless its decider has dealt with it or ``raise_errors`` is False.
    """
    if isinstance(handler, str):
        given.setdefault("type", handler)
    task = task or make_acquired(data=data, **given)
    if isinstance(handler, str):
        dispatch = workers_dispatch(task.lease.using)
        handler = dispatch.handler_for(handler)
    run = InlineRunner(only(task.type, handler)).attempt(task)
    if raise_errors and is_trouble(run):
        raise_error(run)
    return run
