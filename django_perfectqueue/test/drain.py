"""Run what is due, in the test's own thread and transaction."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from asgiref.sync import sync_to_async

from django_perfectqueue import store
from django_perfectqueue.application import Dispatch
from django_perfectqueue.application.dispatch import in_words
from django_perfectqueue.conf import options
from django_perfectqueue.exceptions import UnknownTypeError
from django_perfectqueue.lib.checks import nearest
from django_perfectqueue.models import Hold, Task, Ticket
from django_perfectqueue.payload.codecs import JSON
from django_perfectqueue.payload.inputs import Duration, checked_duration
from django_perfectqueue.queue import Queue, database
from django_perfectqueue.store.tasks.steer import steer_waiting
from django_perfectqueue.store.values import ClaimRequest, Now, new_holder
from django_perfectqueue.worker.discovery import workers_dispatch

from .inline_runner import HeldTask, InlineRunner, Run, raise_trouble
from .submitted import Kind, type_of

LIMIT = 1_000
SHOWN = 20


class Drained(list[Run]):
    """The attempts that drain() has made, in their order."""

    @property
    def words(self) -> list[str]:
        """What became of the task by each attempt."""
        return [run.word for run in self]

    @property
    def keys(self) -> list[str]:
        """The key of each attempt's task."""
        return [run.key for run in self]

    @property
    def results(self) -> list[JSON]:
        """What each attempt returned."""
        return [run.result for run in self]

    def __str__(self) -> str:
        return "\n".join(map(str, self)) or "Nothing was due."


def drain(
    queue: Queue | str | None = None,
    *,
    using: str | None = None,
    types: Kind | Iterable[Kind] | None = None,
    now: Now = None,
    ahead: Duration | None = None,
    until: Callable[[Run], bool] | None = None,
    limit: int = LIMIT,
    raise_errors: bool = True,
) -> Drained:
    """
    Run all that is due, here and now, and what that submits; return each attempt.

    Tasks run one after another as in a worker, by its own runner and in its order, but in
    this thread, on its connections and in its transaction. ``queue`` is one queue, None all
    that have tasks; ``types`` keeps to some types, the others wait.

    What is put off, a retry for one, is not due. ``ahead`` has time pass, from task to
    task: a timedelta, seconds or a span such as ``"2h"``. ``now`` is one moment that
    stands still. ``until`` is asked after each attempt, and ends it by saying True.

    What a handler raises is raised here, once it is stored what became of its task, and
    ``raise_errors=False`` only reports it. Raise UnknownTypeError for a type that has no
    handler, also among ``types``, and AssertionError when more is due after ``limit`` attempts.
    """
    if isinstance(queue, Queue):
        using, queue = using or queue.using, queue.name
    work = Drain(
        queue=queue,
        using=using or database(),
        types=None if types is None else types_of(types),
        moment=now,
        ahead=timedelta(seconds=checked_duration("ahead", ahead) or 0.0),
        until=until,
        limit=limit,
        raise_errors=raise_errors,
    )
    try:
        if ahead is None:
            work.exhaust()
        else:
            work.travel()
    except Until:
        pass
    finally:
        work.give_back()
    return work.report


adrain = sync_to_async(drain)


class Until(Exception):  # noqa: N818
    """Enough has been run."""


@dataclass(kw_only=True)
class Drain:
    """Takes one task after another, and runs it; ``moment`` None is the server's time."""

    queue: str | None
    using: str
    types: set[str] | None
    moment: datetime | None
    ahead: timedelta
    until: Callable[[Run], bool] | None
    limit: int
    raise_errors: bool
    others: list[HeldTask] = field(default_factory=list)
    report: Drained = field(default_factory=Drained)

    def __post_init__(self) -> None:
        self.holder = new_holder()
        self.worker = f"drain:{os.getpid()}"
        # What is held until the end must not come back by the clock meanwhile.
        self.alive_time = options().ALIVE_TIME + self.ahead.total_seconds()
        self.runner = InlineRunner(workers_dispatch(self.using))
        for type_ in self.types or ():
            if not self.runner.dispatch.knows(type_):
                raise unknown(self.runner.dispatch, type_, f"tasks of type '{type_}'")

    def travel(self) -> None:
        """Run what is due, then what is due next, until so much time has passed."""
        self.moment = self.moment or store.records.clock(using=self.using)
        end = self.moment + self.ahead
        self.exhaust()
        while (self.moment < end) and (moment := self.next_timer(self.moment, end)):
            self.moment = moment
            self.exhaust()
        self.moment = end
        self.exhaust()

    def exhaust(self) -> None:
        """Run all that is due at this moment."""
        while task := self.take():
            if self.types is not None and task.type not in self.types:
                self.others.append(task)
            else:
                self.run(task)

    def take(self) -> HeldTask | None:
        steer_waiting(using=self.using)
        store.records.follow(using=self.using, now=self.moment)
        live = Task.objects.using(self.using).live().order_by()
        queues = (
            [self.queue] if self.queue else sorted(live.values_list("queue", flat=True).distinct())
        )
        if not queues:
            return None
        request = ClaimRequest(
            queues=queues,
            limit=1,
            alive_time=self.alive_time,
            holder=self.holder,
            using=self.using,
            now=self.moment,
        )
        for lease in store.acquire(request):
            task = HeldTask(lease, alive_time=self.alive_time, worker=self.worker)
            task.moment = self.moment
            return task
        return None

    def run(self, task: HeldTask) -> None:
        if not self.runner.dispatch.knows(task.type):
            self.others.append(task)
            raise unknown(self.runner.dispatch, task.type, about(task))
        if len(self.report) >= self.limit:
            self.others.append(task)
            raise AssertionError(
                f"More is due after {self.limit} attempts, {about(task)} next. Does a task"
                " submit or release itself again and again? Give until= or a larger limit=."
            )
        run = self.runner.attempt(task)
        self.report.append(run)
        if self.raise_errors:
            raise_trouble(run)
        if self.until is not None and self.until(run):
            raise Until

    def give_back(self) -> None:
        """Release tasks that were taken and are not to run: this counts no attempt."""
        for task in self.others:
            task._end(store.Ending.release())

    def next_timer(self, after: datetime, end: datetime) -> datetime | None:
        """Return when the clock has something to do next, if that is not after the end."""
        tickets = Ticket.objects.using(self.using).filter(timer_at__gt=after, timer_at__lte=end)
        if self.queue:
            tickets = tickets.filter(task__queue=self.queue)
        own = [task.lease.task_id for task in self.others]
        timers = tickets.exclude(pk__in=own).order_by("timer_at").values_list("timer_at", flat=True)
        holds = Hold.objects.using(self.using).filter(opens_at__gt=after, opens_at__lte=end)
        if self.queue:
            holds = holds.filter(queue=self.queue)
        opens = holds.order_by("opens_at").values_list("opens_at", flat=True)
        return min(filter(None, (timers.first(), opens.first())), default=None)


def about(task: HeldTask) -> str:
    return f"task '{task.key}' of type '{task.type}' in queue '{task.lease.queue}'"


# Which handlers a worker of this project would have.


def types_of(kinds: Kind | Iterable[Kind]) -> set[str]:
    several: Any = [kinds] if isinstance(kinds, str) or hasattr(kinds, "module_path") else kinds
    return {type_of(kind) for kind in several}


def unknown(dispatch: type[Dispatch], type_: str, task: str) -> UnknownTypeError:
    """Return an error that lists the known types."""
    routes = sorted(map(in_words, dispatch.load()))
    more = f" and {len(routes) - SHOWN} more" if len(routes) > SHOWN else ""
    known = f"Known are: {', '.join(routes[:SHOWN])}{more}." if routes else "There are no handlers."
    return UnknownTypeError(
        f"There is no handler for {task}; in a worker it would wait."
        f"{nearest(type_, routes)} {known}"
    )
