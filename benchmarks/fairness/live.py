"""
One scenario on real processors and a real database, in a process of its own.

What each user got is read from the rows of its tasks, as anyone could.
"""

from __future__ import annotations

import heapq
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from operator import attrgetter
from pathlib import Path
from typing import Any

from benchmarks.database import Target
from benchmarks.environment import Live, StuckError
from benchmarks.peers.perfectqueue import Load
from benchmarks.probe import Start

from . import audit
from .scenario import Arrival, Followers, arrivals, find

TICK = 0.005
AT_ONCE = 5_000
DAY = 86_400.0


class Sleepers(Load):
    """This package with tasks that sleep, for the users of a scenario."""

    dispatch = "benchmarks.workers.perfectqueue.SleepDispatch"

    def __init__(self, target: Target, job: Any, folder: Path) -> None:
        super().__init__(target, job, folder)
        limits = {name: getattr(job, name) for name in ("seconds", "tasks") if hasattr(job, name)}
        [self.scenario] = find([job.source], **limits)
        self.options = {
            "TASK_PREFETCH": self.scenario.prefetch,
            "HEADROOM": self.scenario.headroom,
            "RETENTION": {"*": None},
        }

    def prepare(self) -> None:
        super().prepare()
        from django_perfectqueue.models import FairShare, QueueShare

        if len(self.scenario.queues) > 1:
            for group in self.scenario.groups:
                QueueShare.objects.create(queue=group.queue, weight=group.weight)
            return
        for user, group in self.scenario.owners().items():
            if (group.weight, group.max_running) != (1.0, None):
                FairShare.objects.create(
                    user=user, weight=group.weight, max_running=group.max_running
                )

    def workers(self, processes: int) -> list[list[str]]:
        [command] = super().workers(processes)
        return [[*command, *(word for one in self.scenario.queues for word in ("--queue", one))]]


class Feeder:
    """
    Submits what comes, when it comes: by the clock, or when the task of another has ended.

    A task is known by its place in ``sent``.
    """

    def __init__(self, peer: Sleepers, coming: Sequence[Arrival]) -> None:
        self.peer = peer
        self.coming = [(one.at, number, one) for number, one in enumerate(coming)]
        self.followers = Followers(peer.scenario)
        self.followers.first()
        self.sent: list[Arrival] = []
        self.seen = 0

    def follow(self, starts: Sequence[Start], began: float) -> None:
        """Have the next users come when what has started will have ended."""
        for start in starts[self.seen :]:
            task = self.sent[start.task]
            end = start.at / 1e9 - began + task.seconds
            if arrival := self.followers.after(task.user, end):
                heapq.heappush(self.coming, (end, len(starts) + start.task, arrival))
        self.seen = len(starts)

    def submit_until(self, moment: float) -> None:
        """Submit all that is due by then, in transactions of a common size."""
        from django_perfectqueue.queue import Queue

        due = []
        while self.coming and self.coming[0][0] <= moment:
            due.append(heapq.heappop(self.coming)[-1])
        owners = self.peer.scenario.owners()
        tasks = defaultdict(list)
        schedules = []
        for index, one in enumerate(due, len(self.sent)):
            task = {
                "key": str(index),
                "type": "sleep",
                "user": one.user,
                "data": {
                    "i": index,
                    "seconds": one.seconds,
                    "releases": one.releases,
                    "step": one.step,
                },
            }
            if owners[one.user].scheduled:
                schedules.append((owners[one.user].queue, task))
            else:
                tasks[owners[one.user].queue].append(task)
        self.sent += due
        for queue, of_queue in tasks.items():
            for start in range(0, len(of_queue), AT_ONCE):
                Queue(queue).submit_many(of_queue[start : start + AT_ONCE])
        store_schedules(schedules)


def store_schedules(tasks: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
    """Store schedules that are due at once, and again after a day, and wake the workers."""
    if not tasks:
        return
    from django_perfectqueue import store
    from django_perfectqueue.models import Schedule
    from django_perfectqueue.store.notify.ring import notify_workers

    now = store.records.clock(using="default")
    rows = [
        Schedule(
            name=task["key"],
            queue=queue,
            type=task["type"],
            user=task["user"],
            payload=json.dumps(task["data"]),
            every=DAY,
            next_at=now,
            due_at=now,
        )
        for queue, task in tasks
    ]
    Schedule.objects.bulk_create(rows, batch_size=AT_ONCE)
    notify_workers(using="default")


class Run(Live):
    """A scenario until it ends; the job has its name or file, and its limits where they differ."""

    load_kind = Sleepers

    def measured(self) -> dict[str, Any]:
        scenario, environment = self.load.scenario, self.environment
        processors = self.job.processors
        coming = arrivals(scenario, processors)
        environment.prepare(processors)
        feeder = Feeder(self.load, coming)
        feeder.submit_until(0.0)
        environment.analyze()
        began = time.monotonic()
        with environment.workers(processors) as workers:
            if feeder.sent:
                environment.wait_for_first(workers)
                began = environment.probe.read()[0].at / 1e9
            self.feed(feeder, began)
            seconds = time.monotonic() - began
            self.end(workers)
        sent, rows, starts = feeder.sent, runs_of(feeder.sent), environment.probe.read()
        stretch = stretch_of(sent, rows.values())
        again = released(sent, starts, rows, began=began, stretch=stretch)
        again += in_steps(sent, starts, rows, began=began)
        runs = sorted([*rows.values(), *again], key=attrgetter("due"))
        return audit.audited(scenario, runs, processors=processors, seconds=seconds)

    def feed(self, feeder: Feeder, began: float) -> None:
        scenario, probe = self.load.scenario, self.environment.probe
        while (now := time.monotonic() - began) < scenario.seconds:
            feeder.follow(probe.read(), began)
            feeder.submit_until(now)
            if scenario.tasks is not None and probe.count() >= scenario.tasks:
                return
            time.sleep(TICK)


def runs_of(sent: Sequence[Arrival]) -> dict[int, audit.Run]:
    """Return each task's run by its row, in seconds since the first start."""
    from django_perfectqueue.models import Task

    rows = list(Task.objects.values_list("key", "user", "run_at", "started_at", "ended_at"))
    began = min((row[3] for row in rows if row[3]), default=None)
    if began is None:
        raise StuckError("No task has run.")

    def since(moment: datetime | None) -> float | None:
        return None if moment is None else (moment - began).total_seconds()

    found = {}
    for key, user, due, started, ended in rows:
        # That of a schedule's task has its tick, too.
        number = int(key.partition("@")[0])
        begin, end = since(started), since(ended)
        took = sent[number].demand if begin is None or end is None else end - begin
        found[number] = audit.Run(user, since(due) or 0.0, begin, end, took)
    return found


def stretch_of(coming: Sequence[Arrival], runs: Iterable[audit.Run]) -> float:
    """Return by how much tasks took longer than they were to, by those that have finished."""
    expected = [one.seconds for one in coming]
    took = [run.seconds for run in runs if run.ended is not None]
    return statistics.fmean(took) / statistics.fmean(expected) if took else 1.0


def released(
    coming: Sequence[Arrival],
    starts: Sequence[Start],
    rows: Mapping[int, audit.Run],
    *,
    began: float,
    stretch: float,
) -> list[audit.Run]:
    """
    Return the runs that ended in a release; the row of a task has only a later one, if any.

    No row has their length: it is stretched as much as that of the finished tasks.
    """
    found = []
    in_row = {number for number, run in rows.items() if run.started is not None}
    for start in reversed(starts):
        one = coming[start.task]
        if start.task in in_row:
            in_row.discard(start.task)
        elif one.releases:
            at = start.at / 1e9 - began
            took = one.seconds * stretch
            found.append(audit.Run(one.user, at, at, at + took, took))
    return found


def in_steps(
    coming: Sequence[Arrival], starts: Sequence[Start], rows: dict[int, audit.Run], *, began: float
) -> list[audit.Run]:
    """Return the runs of all steps, in place of their tasks' rows; what is left has not begun."""
    found, left = [], {n: one.seconds for n, one in enumerate(coming) if one.step}
    for start in starts:
        one = coming[start.task]
        if one.step:
            at = start.at / 1e9 - began
            due = one.at if left[start.task] == one.seconds else at
            found.append(audit.Run(one.user, due, at, at + one.step, one.step))
            left[start.task] -= one.step
    for number, seconds in left.items():
        del rows[number]
        if seconds > 0.0:
            found.append(audit.Run(coming[number].user, coming[number].at, None, None, seconds))
    return found
