"""
One scenario on real processors and a real database, in a process of its own.

What each user got is read from what its handlers noted when they began and ended.
"""

from __future__ import annotations

import heapq
import json
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
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
LEAST = 1e-6


class Sleepers(Load):
    """This package with tasks that sleep, for the users of a scenario."""

    dispatch = "benchmarks.workers.perfectqueue.SleepDispatch"

    def __init__(self, target: Target, job: Any, folder: Path) -> None:
        super().__init__(target, job, folder)
        [self.scenario] = find([job.source])
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
        self.seen = self.begun = 0

    def follow(self, notes: Sequence[Start], began: float) -> None:
        """Have the next users come when what has started will have ended."""
        for start in (note for note in notes[self.seen :] if note.task >= 0):
            self.begun += 1
            task = self.sent[start.task]
            end = start.at / 1e9 - began + task.seconds
            if arrival := self.followers.after(task.user, end):
                heapq.heappush(self.coming, (end, len(notes) + start.task, arrival))
        self.seen = len(notes)

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
    """A scenario until it ends; the job has its name or file."""

    load_kind = Sleepers

    @classmethod
    def run(cls, job: dict[str, Any], folder: Path) -> dict[str, Any]:
        """Run it on the server that the environment names."""
        return cls(job, folder).measured()

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
        notes = environment.probe.read()
        if not notes:
            raise StuckError("No task has run.")
        runs = sorted(runs_of(feeder.sent, notes, began), key=attrgetter("due"))
        return audit.audited(scenario, runs, processors=processors, seconds=seconds)

    def feed(self, feeder: Feeder, began: float) -> None:
        scenario, probe = self.load.scenario, self.environment.probe
        while (now := time.monotonic() - began) < scenario.seconds:
            feeder.follow(probe.read(), began)
            feeder.submit_until(now)
            if scenario.tasks is not None and feeder.begun >= scenario.tasks:
                return
            time.sleep(TICK)


def runs_of(sent: Sequence[Arrival], notes: Sequence[Start], began: float) -> list[audit.Run]:
    """Return the runs of what was sent, in seconds since the first start, and what is left."""
    from django_perfectqueue.models import Task

    rows = list(Task.objects.values_list("key", "run_at", "started_at"))
    first = min(row[2] for row in rows if row[2])
    # That of a schedule's task has its tick, too; it is there once the schedule has come.
    dues = {int(key.partition("@")[0]): (at - first).total_seconds() for key, at, _start in rows}
    found, since = [], {}
    left = {number: sent[number].demand for number in dues}
    for note in notes:
        at = note.at / 1e9 - began
        if note.task >= 0:
            since[note.task] = at
            continue
        number = ~note.task
        one, start = sent[number], since.pop(number)
        # What has made way or was released waits no more than any other that is next.
        due = min(dues[number], start) if left[number] == one.demand else start
        found.append(audit.Run(one.user, due, start, at, at - start))
        left[number] -= one.step or one.seconds
    return found + [
        audit.Run(sent[number].user, dues[number], since.get(number), None, seconds)
        for number, seconds in left.items()
        if seconds > LEAST
    ]
