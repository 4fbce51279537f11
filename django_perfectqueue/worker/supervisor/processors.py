"""The processors of a supervisor: places, and the processes that use them in turn."""

from __future__ import annotations

import logging
import os
import signal
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from django_perfectqueue import store
from django_perfectqueue.lib.processes import (
    halt,
    kill_orphans,
    mark,
    resume,
    terminate_descendants,
)

from ..helpers.reaper import Leftovers
from ..plan import Plan
from ..process.child import Child, Restarts
from ..process.wakeup import Wakeup, drain
from ..processor.feeder import DONE, RECYCLED
from ..processor.processor import Processor
from ..processor.resources import ProcessorResources
from ..report import Reporter
from ..shared.queue_order import QueueAccounts
from ..shared.slot import ProcessorStatus, TaskStatus
from ..shared.wakeups import Wakeups
from .forks import Forks

logger = logging.getLogger("django_perfectqueue.supervisor")

ENOUGH_AFTER = 5.0


@dataclass(slots=True, eq=False)
class Tenure:
    """
    One processor at its place, from its fork to its end.

    ``heartbeat_r`` is the read end of the pipe of its heartbeats. ``seen_at`` is when it last
    sent one. ``silence`` is for how many seconds there were none, if it was killed for that.
    ``overdue_since`` is when a task should have ended. ``forced`` means that the processor was
    killed for that.
    """

    child: Child
    holder: int
    status: ProcessorStatus
    heartbeat_r: int
    seen_at: float
    silence: float = 0.0
    overdue_since: float | None = None
    forced: bool = False

    def listen(self, now: float, *, limit: float, frozen: bool) -> None:
        """Kill it after ``limit`` seconds without a heartbeat."""
        if drain(self.heartbeat_r) or frozen:
            self.seen_at = now
        silence = now - self.seen_at
        if silence > limit and not self.child.killed:
            logger.error(
                "A processor is silent; it is killed. pid=%s seconds=%.0f", self.child.pid, silence
            )
            self.silence = silence
            self.child.kill()

    def enforce(self, now: float, *, interval: float) -> None:
        """
        Kill the processor for tasks that exceed their time limit.

        First the descendants of the processor get a SIGTERM, so that a handler that waits for
        one returns. After ``interval`` seconds the processor and its descendants are killed.
        """
        overdue = self.status.overdue(now)
        if self.child.killed or not overdue:
            self.overdue_since = None
        elif self.overdue_since is None:
            self.overdue_since = now
            self.ask(overdue)
        elif now - self.overdue_since >= interval:
            self.force(now)

    def ask(self, overdue: list[TaskStatus]) -> None:
        logger.error(
            "A handler exceeds its time limit; its processor will be killed. pid=%s task_ids=%s",
            self.child.pid,
            [task.task_id for task in overdue],
        )
        if len(overdue) == len(self.status.tasks):
            terminate_descendants(self.child.pid)

    def force(self, now: float) -> None:
        """Kill the processor, unless the task has just ended."""
        # Stopped for the check, so that no task ends between the check and the kill.
        halt(self.child.pid)
        if self.status.overdue(now):
            self.forced = True
            self.child.kill()
        else:
            resume(self.child.pid)

    def leftovers(self, now: float, code: int) -> Leftovers:
        """Return its leftovers; if it was not killed on purpose, its tasks have crashed."""
        seconds = {task.task_id: now - task.since for task in self.status.tasks}
        overdue = self.status.overdue(now) if self.forced else []
        self.status.count("killed", len(overdue))
        on_purpose = self.forced or (self.child.killed and not self.silence)
        message = how_it_ended(code, self.silence)
        if not on_purpose:
            logger.error(
                "A processor died. pid=%s task_ids=%s: %s", self.child.pid, list(seconds), message
            )
            self.status.count("crashed", len(seconds))
        return Leftovers(
            holder=self.holder,
            worker=f"{socket.gethostname()}:{self.child.pid}",
            crashed=() if on_purpose else tuple(seconds),
            why=store.Failure(error="crashed", message=message),
            overdue={task.task_id: seconds[task.task_id] for task in overdue},
            seconds=seconds,
        )


@dataclass(slots=True, eq=False)
class ProcessorPlace:
    """The shared memory and the restarts of the processors that use a place in turn."""

    number: int
    status: ProcessorStatus
    accounts: QueueAccounts
    restarts: Restarts
    wakeup: Wakeup = field(default_factory=Wakeup)
    tenure: Tenure | None = None
    vacant: bool = False

    def is_due(self, now: float) -> bool:
        """Return whether a processor is to be forked now."""
        return self.tenure is None and not self.vacant and now >= self.restarts.next_at


class Processors:
    """Keeps PROCESSORS processors running: forks, watches and replaces them."""

    def __init__(
        self,
        plan: Plan,
        reporter: Reporter,
        forks: Forks,
        give_back: Callable[[Leftovers], None],
        *,
        parent_alive: int,
    ) -> None:
        self.plan = plan
        self.options = plan.options
        self.reporter = reporter
        self.forks = forks
        self.give_back = give_back
        self.parent_alive = parent_alive
        self.places = [self.new_place(number) for number in range(1, self.options.PROCESSORS + 1)]
        self.wakeups = Wakeups([(place.status, place.wakeup) for place in self.places])
        self.serving_since: float | None = None
        forks.closers.append(self.let_go)

    def new_place(self, number: int) -> ProcessorPlace:
        concurrency = self.options.places
        return ProcessorPlace(
            number,
            ProcessorStatus.shared(concurrency),
            QueueAccounts(self.plan.queues, concurrency),
            Restarts(self.options.CHILD_FORK_FREQUENCY_LIMIT),
        )

    @property
    def statuses(self) -> list[ProcessorStatus]:
        return [place.status for place in self.places]

    @property
    def tenures(self) -> list[Tenure]:
        return [place.tenure for place in self.places if place.tenure is not None]

    @property
    def children(self) -> list[Child]:
        return [tenure.child for tenure in self.tenures]

    def are_all_vacant(self) -> bool:
        """Return whether a burst is over."""
        return all(place.vacant for place in self.places)

    def are_serving(self, now: float) -> bool:
        """Return whether all have acquired, or for five seconds at least one."""
        serving = sum(status.serves for status in self.statuses)
        if serving and self.serving_since is None:
            self.serving_since = now
        if not serving or self.serving_since is None:
            return False
        return now - self.serving_since >= ENOUGH_AFTER or serving == len(self.places)

    def stop(self, *, now: bool = False) -> None:
        for child in self.children:
            child.kill() if now else child.stop()

    def titles(self, now: float) -> Iterator[tuple[int, str]]:
        """Yield pid and title of each processor."""
        for place in self.places:
            if place.tenure is not None:
                pid = place.tenure.child.pid
                tasks = ", ".join(
                    f"{task.task_id} for {now - task.since:.1f} s" for task in place.status.tasks
                )
                what = f"task {tasks}" if tasks else "nothing"
                yield pid, f"Processor {place.number}, pid {pid}, runs {what}:"

    def reap(self, now: float, *, stopping: bool) -> None:
        """Clear the places of processors that have ended."""
        for place in self.places:
            tenure = place.tenure
            if tenure is not None and (code := self.forks.reap(tenure.child)) is not None:
                self.clear(place, tenure, code, now)
                if place.vacant or stopping:
                    self.reporter.say(f"Processor {place.number} has ended.")

    def clear(self, place: ProcessorPlace, tenure: Tenure, code: int, now: float) -> None:
        child, status = tenure.child, tenure.status
        place.tenure = None
        status.pid = 0
        left = code in (DONE, RECYCLED) and status.signed_off
        if not left:
            kill_orphans(self.forks.pids(), holder=tenure.holder, pipe=tenure.heartbeat_r)
        os.close(tenure.heartbeat_r)
        if not left:
            self.give_back(tenure.leftovers(now, code))
        status.clear()
        status.seeking = False
        if status.rung:
            self.wakeups.wake_one()
        place.restarts.note_end(child, now, expected=left or child.killed)
        place.vacant = self.plan.burst and left and code == DONE and child.stopping_since is None

    def watch(self, now: float, *, frozen: bool) -> None:
        """Kill silent and overdue processors; repeat stop signals."""
        interval = self.options.CHILD_KILL_INTERVAL
        for tenure in self.tenures:
            tenure.listen(now, limit=self.options.CHILD_HEARTBEAT_LIMIT, frozen=frozen)
            tenure.enforce(now, interval=interval)
            limit = self.options.CHILD_GRACEFUL_KILL_LIMIT
            tenure.child.press(now, interval=interval, limit=limit)

    def fill(self, now: float) -> None:
        """Fork missing processors; retry later where fork() fails."""
        for place in self.places:
            if place.is_due(now):
                try:
                    self.start(place, now)
                except OSError as error:
                    logger.error("A processor can't be started. %s", error)
                    place.restarts.postpone(now)

    def start(self, place: ProcessorPlace, now: float) -> None:
        try:
            self.plan.dispatch.before_fork()
        except Exception:
            logger.exception("A handler's before_fork() raised.")
        heartbeat_r, heartbeat_w = os.pipe()
        os.set_blocking(heartbeat_r, False)
        os.set_blocking(heartbeat_w, False)
        resources = ProcessorResources(
            holder=store.new_holder(),
            status=place.status,
            accounts=place.accounts,
            wakeup=place.wakeup,
            heartbeat_w=heartbeat_w,
            parent_alive=self.parent_alive,
            wakeups=self.wakeups,
        )
        drain(place.wakeup.read_fd)
        place.status.sign_on(resources.holder)

        def process() -> int:
            mark(resources.holder)
            return Processor(self.plan, resources, self.reporter).run()

        try:
            child = self.forks.fork(f"processor {place.number}", process)
        except OSError:
            os.close(heartbeat_r)
            raise
        finally:
            os.close(heartbeat_w)
        place.tenure = Tenure(child, resources.holder, place.status, heartbeat_r, now)
        place.status.pid = child.pid
        self.reporter.say(f"Processor {place.number} started, pid {child.pid}.")

    def let_go(self) -> None:
        """Close the heartbeat pipes in a child."""
        for tenure in self.tenures:
            os.close(tenure.heartbeat_r)

    def due(self) -> Iterator[float]:
        """Yield the times of the next actions, by the monotonic clock."""
        for place in self.places:
            if place.tenure is None and not place.vacant:
                yield place.restarts.next_at
            yield from (task.kill_at for task in place.status.tasks)
        for tenure in self.tenures:
            if tenure.overdue_since is not None:
                yield tenure.overdue_since + self.options.CHILD_KILL_INTERVAL

    def totals(self) -> dict[str, int]:
        totals = [status.totals() for status in self.statuses]
        return {word: sum(one[word] for one in totals) for word in totals[0]} if totals else {}


def how_it_ended(code: int, silence: float = 0.0) -> str:
    if silence:
        return f"Its processor stood still for {silence:.0f} s, and was killed."
    if code >= 0:
        return f"Its processor ended with exit code {code}."
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"Its processor was ended by {name}."
