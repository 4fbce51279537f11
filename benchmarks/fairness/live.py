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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from operator import attrgetter
from pathlib import Path
from typing import Any

from benchmarks.database import this_target
from benchmarks.environment import Environment, StuckError, Workers
from benchmarks.peers.perfectqueue import Load
from benchmarks.probe import Start
from benchmarks.scale import Scale

from .audit import Run, audited
from .scenario import Arrival, Followers, Scenario, arrivals, find

TICK = 0.005
ENDING = 60.0
AT_ONCE = 5_000
DAY = 86_400.0


@dataclass(frozen=True)
class Job:
    """``source`` is a scenario's name or file; None leaves the limits as they are there."""

    source: str
    database: str
    processors: int
    seconds: float | None = None
    tasks: int | None = None

    def scenario(self) -> Scenario:
        (found,) = limited(find([self.source]), seconds=self.seconds, tasks=self.tasks)
        return found


def limited(
    scenarios: Iterable[Scenario], *, seconds: float | None, tasks: int | None
) -> Iterator[Scenario]:
    """Yield scenarios with limits of one's own in place of those that they bring."""
    given = {"seconds": seconds, "tasks": tasks}
    changes = {name: value for name, value in given.items() if value is not None}
    for scenario in scenarios:
        yield replace(scenario, **changes)


class Sleepers(Load):
    """This package with tasks that sleep, for the users of a scenario."""

    dispatch = "benchmarks.workers.perfectqueue.SleepDispatch"

    def __init__(self, target: Any, scenario: Scenario) -> None:
        super().__init__(target)
        self.scenario = scenario
        self.options = {
            "TASK_PREFETCH": scenario.prefetch,
            "HEADROOM": scenario.headroom,
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


def measured(environment: Environment, peer: Sleepers, processors: int) -> dict[str, Any]:
    """Run a scenario until it ends; return its figures."""
    scenario = peer.scenario
    coming = arrivals(scenario, processors)
    environment.prepare(processors)
    feeder = Feeder(peer, coming)
    feeder.submit_until(0.0)
    environment.analyze()
    began = time.monotonic()
    with environment.workers(processors) as workers:
        if feeder.sent:
            environment.wait_for_first(workers)
            began = environment.probe.read()[0].at / 1e9
        feed(environment, feeder, began)
        stopped = time.monotonic()
        stop(environment, workers)
    seconds = stopped - began
    sent, rows, starts = feeder.sent, runs_of(feeder.sent), environment.probe.read()
    stretch = stretch_of(sent, rows.values())
    again = released(sent, starts, rows, began=began, stretch=stretch)
    again += in_steps(sent, starts, rows, began=began)
    runs = sorted([*rows.values(), *again], key=attrgetter("due"))
    return audited(scenario, runs, processors=processors, seconds=seconds)


def feed(environment: Environment, feeder: Feeder, began: float) -> None:
    scenario = feeder.peer.scenario
    while (now := time.monotonic() - began) < scenario.seconds:
        feeder.follow(environment.probe.read(), began)
        feeder.submit_until(now)
        if scenario.tasks is not None and environment.probe.count() >= scenario.tasks:
            return
        time.sleep(TICK)


def stop(environment: Environment, workers: Workers) -> None:
    """Have the workers write what has run, and leave."""
    for process in workers.processes:
        process.terminate()
    environment.wait_for(workers.have_ended, ENDING, "The end of the workers")


def runs_of(sent: Sequence[Arrival]) -> dict[int, Run]:
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
        found[number] = Run(user, since(due) or 0.0, begin, end, took)
    return found


def stretch_of(coming: Sequence[Arrival], runs: Iterable[Run]) -> float:
    """Return by how much tasks took longer than they were to, by those that have finished."""
    expected = [one.seconds for one in coming]
    took = [run.seconds for run in runs if run.ended is not None]
    return statistics.fmean(took) / statistics.fmean(expected) if took else 1.0


def released(
    coming: Sequence[Arrival],
    starts: Sequence[Start],
    rows: Mapping[int, Run],
    *,
    began: float,
    stretch: float,
) -> list[Run]:
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
            found.append(Run(one.user, at, at, at + took, took))
    return found


def in_steps(
    coming: Sequence[Arrival], starts: Sequence[Start], rows: dict[int, Run], *, began: float
) -> list[Run]:
    """Return the runs of all steps, in place of their tasks' rows; what is left has not begun."""
    found, left = [], {n: one.seconds for n, one in enumerate(coming) if one.step}
    for start in starts:
        one = coming[start.task]
        if one.step:
            at = start.at / 1e9 - began
            due = one.at if left[start.task] == one.seconds else at
            found.append(Run(one.user, due, at, at + one.step, one.step))
            left[start.task] -= one.step
    for number, seconds in left.items():
        del rows[number]
        if seconds > 0.0:
            found.append(Run(coming[number].user, coming[number].at, None, None, seconds))
    return found


def measure(job: dict[str, Any], folder: Path) -> dict[str, Any]:
    of, target = Job(**job), this_target()
    peer = Sleepers(target, of.scenario())
    environment = Environment(peer, target, folder, Scale())
    return measured(environment, peer, of.processors)
