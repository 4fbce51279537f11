"""
Scenarios without a database and without waiting: processors on a clock that is counted.

They take batches as ``worker/processor/prefetch.py`` does, write completions as its buffer and the
monitor do, and are woken one by the other. What costs no processor time costs no time.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from django_perfectqueue.store.values import Costs
from django_perfectqueue.worker.attempt.surroundings import AGAIN, SUDDEN
from django_perfectqueue.worker.buffers import LATE
from django_perfectqueue.worker.processor.pacing import Prefetch
from django_perfectqueue.worker.processor.processor import TICK
from django_perfectqueue.worker.shared.status import TRIES, Crowd, ProcessorStatus, account_of

from .audit import Run
from .lines import Held, Lines, Task
from .scenario import Arrival, Followers, Scenario, arrivals

RING = 0.003
TYPE = "sleep"
ALIVE_TIME = 300.0
SHORT = 1.0


@dataclass(slots=True, eq=False)
class Processor:
    prefetch: Prefetch
    batch: deque[Held] = field(default_factory=deque)
    running: Held | None = None
    taken_at: float = 0.0
    done: list[tuple[Held, float, float]] = field(default_factory=list)
    """What has run and is not written: what it was, how long it took, and when it ended."""
    idle: bool = True
    slot: ProcessorStatus = field(default_factory=ProcessorStatus.shared)

    def is_late(self, now: float) -> bool:
        return bool(self.done) and now >= self.done[0][2] + LATE

    def ended(self) -> list[tuple[Held, float]]:
        """Return what is to be written, once."""
        ended = [(held, seconds) for held, seconds, _at in self.done]
        self.done.clear()
        return ended


class Simulation:
    """
    So many processors and what comes to them.

    ``jumps`` are changes of the database's clock: when, and by how many seconds. One that
    goes on by more than a lease has all leases lapse. After each event ``watch`` is called,
    and ``follow`` returns what comes when a task ends. So many processors are ``kept`` for short
    tasks; with a ``step`` tasks make way for others after each so many seconds.
    """

    def __init__(
        self,
        lines: Lines,
        coming: Sequence[tuple[float, Task]],
        *,
        processors: int,
        prefetch: int | None = None,
        jumps: Sequence[tuple[float, float]] = (),
        watch: Callable[[], None] = lambda: None,
        follow: Callable[[Task, float], Task | None] = lambda task, now: None,
        kept: int = 0,
        step: float = math.inf,
    ) -> None:
        self.lines = lines
        self.watch = watch
        self.follow = follow
        self.step = step
        self.processors = [Processor(Prefetch(prefetch)) for _ in range(processors)]
        self.crowd = Crowd([processor.slot for processor in self.processors], processors)
        self.kept = self.processors[processors - kept :]
        self.tries_from = 0.0
        self.number = itertools.count()
        self.events: list[tuple[float, int, Callable[[float], None]]] = []
        self.began: list[tuple[Task, float, float]] = []
        self.rung: set[int] = set()
        self.coming = deque(coming)
        if self.coming:
            self.at(self.coming[0][0], self.come)
        for moment, by in jumps:
            if by >= ALIVE_TIME:
                self.at(moment, self.lapse)

    def at(self, moment: float, act: Callable[[float], None]) -> None:
        heapq.heappush(self.events, (moment, next(self.number), act))

    def run(self, *, seconds: float = float("inf"), tasks: int | None = None) -> float:
        """Return when nothing was left to do, or so many seconds or tasks were reached."""
        now = 0.0
        while self.events and (tasks is None or len(self.began) < tasks):
            if self.events[0][0] > seconds:
                return seconds
            now, _number, act = heapq.heappop(self.events)
            act(now)
            self.watch()
        return now

    def come(self, now: float) -> None:
        """Let all come that are due, and ring for them once."""
        while self.coming and self.coming[0][0] <= now:
            self.lines.submit(self.coming.popleft()[1])
        if self.coming:
            self.at(self.coming[0][0], self.come)
        self.wake_one(now)

    def wake_one(self, now: float) -> None:
        for number, processor in enumerate(self.processors):
            if processor.idle and number not in self.rung:
                self.rung.add(number)
                self.at(now + RING, lambda now, number=number: self.answer(number, now))
                return

    def answer(self, number: int, now: float) -> None:
        self.rung.discard(number)
        if self.processors[number].idle:
            self.go_on(self.processors[number], now)

    def go_on(self, processor: Processor, now: float) -> None:
        """Begin the next task of the batch, or of another batch."""
        if processor.batch and now >= processor.prefetch.over_at(processor.taken_at):
            self.release_rest(processor, now)
        processor.idle = False
        held = None
        while held is None:
            if not processor.batch and not self.fetch(processor, now):
                processor.idle = True
                return
            held = self.next_of(processor, now)
        if processor.done and (processor.prefetch.may_be_long(TYPE) or processor.is_late(now)):
            self.post(processor)
        processor.running = held
        account, charge = account_of(held), 0.0 if held.is_new else held.charge
        processor.slot.begin(1, since=now, whose=(account, charge))
        due = now + max(2 * held.charge, SUDDEN) + TICK
        self.at(due, lambda later: self.charge(processor, held, now, later))
        self.run_on(processor, held, now)
        if processor.done and held.task.seconds > LATE:
            self.at(processor.done[0][2] + LATE, lambda now: self.keep(processor, held))
        over_at = processor.prefetch.over_at(processor.taken_at)
        if over_at < now + held.task.seconds:
            self.at(over_at, lambda now: self.give_back(processor, held, now))

    def run_on(self, processor: Processor, held: Held, now: float) -> None:
        """Run a task until its end, or until it may make way."""
        span = min(held.task.seconds - held.task.ran, self.step)
        held.task.ran += span
        held.ran += span
        self.began.append((held.task, now, now + span))
        self.at(now + span, lambda now: self.end(processor, held, now))

    def next_of(self, processor: Processor, now: float) -> Held | None:
        """Take what may begin out of the batch; where nothing may, give it back."""
        crowd, batch = self.crowd, processor.batch
        crowd.look(now)
        free = filter(crowd.has_room, batch)
        held = next(free, None if crowd.holds_back(batch[0]) else batch[0])
        if held is None:
            self.release_rest(processor, now)
        else:
            batch.remove(held)
        return held

    def charge(self, processor: Processor, held: Held, began: float, now: float) -> None:
        """Charge a task that takes longer than it was charged for, again and again."""
        if processor.running is held:
            self.lines.charge(held, now - began)
            due = began + AGAIN * (now - began) + TICK
            self.at(due, lambda now: self.charge(processor, held, began, now))

    def fetch(self, processor: Processor, now: float) -> bool:
        limit = processor.prefetch.limit()
        processor.taken_at = now
        number = next(n for n, one in enumerate(self.processors) if one is processor)
        self.crowd.look(now)
        taken = self.lines.acquire(
            limit,
            processor.ended(),
            holder=number,
            processors=self.crowd.processors,
            overrun=self.crowd.overrun,
            costs=self.costs(now) if processor in self.kept else None,
        )
        processor.batch.extend(taken)
        if len(taken) >= limit or any(self.lines.is_capped(held) for held in taken):
            self.wake_one(now)
        return bool(processor.batch)

    def costs(self, now: float) -> Costs:
        """Return between which costs the tasks are that a kept processor takes."""
        busy = all(one.running or one in self.kept for one in self.processors)
        return -SHORT if busy and now >= self.tries_from else 0.0, SHORT

    def end(self, processor: Processor, held: Held, now: float) -> None:
        """End a task, or a step of it, after which it goes on unless others come first."""
        is_over = held.task.ran >= held.task.seconds
        if not is_over and not self.lines.comes_first(held):
            self.run_on(processor, held, now)
            return
        if processor in self.kept and held.is_new and held.ran >= SHORT:
            self.tries_from = now + TRIES * held.ran
        processor.running = None
        processor.slot.end()
        processor.prefetch.ran(TYPE, held.ran)
        if not is_over:
            self.lines.make_way(held)
        elif held.task.releases and not held.lost:
            self.lines.give_up(held)
        else:
            processor.done.append((held, held.ran, now))
            if next_one := self.follow(held.task, now):
                self.lines.submit(next_one)
                self.wake_one(now)
        self.go_on(processor, now)

    def keep(self, processor: Processor, held: Held) -> None:
        """While a handler takes long, write what has run before it."""
        if processor.running is held:
            self.post(processor)

    def give_back(self, processor: Processor, held: Held, now: float) -> None:
        """Let others run what waits behind a task that takes long."""
        if processor.running is held and processor.batch:
            self.release_rest(processor, now)

    def release_rest(self, processor: Processor, now: float) -> None:
        self.lines.release(processor.batch)
        processor.batch.clear()
        self.wake_one(now)

    def post(self, processor: Processor) -> None:
        self.lines.finish(processor.ended())

    def lapse(self, now: float) -> None:
        held = []
        for processor in self.processors:
            held += [one for one, _seconds, _at in processor.done]
            held += [processor.running] if processor.running else []
            held += processor.batch
        self.lines.lapse([one for one in held if not one.lost])
        self.wake_one(now)


def simulated(
    scenario: Scenario, processors: int, *, kept: int = 0, step: float = math.inf
) -> tuple[list[Run], float]:
    """Return what became of each task of a scenario, and when that ended."""
    owners = scenario.owners()
    numbers = {user: number for number, user in enumerate(owners)}
    users, followers, tasks = list(owners), Followers(scenario), []

    def task_of(one: Arrival) -> Task:
        tasks.append(Task(numbers[one.user], one.at, one.seconds, one.releases))
        return tasks[-1]

    def follow(task: Task, now: float) -> Task | None:
        one = followers.after(users[task.lane], now)
        return one and task_of(one)

    coming = [(one.at, task_of(one)) for one in arrivals(scenario, processors)]
    followers.first()
    lines = Lines([(group.weight, group.max_running) for group in owners.values()])
    simulation = Simulation(
        lines,
        coming,
        processors=processors,
        prefetch=scenario.prefetch,
        follow=follow,
        kept=min(kept or scenario.headroom, processors - 1),
        step=step,
    )
    seconds = simulation.run(seconds=scenario.seconds, tasks=scenario.tasks)
    return records(users, tasks, simulation), seconds


def records(users: Sequence[str], tasks: Sequence[Task], simulation: Simulation) -> list[Run]:
    found, begun = [], set()
    for task, started, ended in simulation.began:
        # What has made way waits no more than any other that is next.
        due = started if id(task) in begun and not task.releases else task.due
        begun.add(id(task))
        found.append(Run(users[task.lane], due, started, ended, ended - started))
    return found + [
        Run(users[task.lane], task.due, None, None, left)
        for task in tasks
        if (left := task.seconds * (1 + task.releases) - task.ran) > 0 or task.releases
    ]
