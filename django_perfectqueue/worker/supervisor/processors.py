"""The processors of a supervisor: places, and the processes that use them in turn."""

from __future__ import annotations

import logging
import signal
import socket
from collections.abc import Callable

from django_perfectqueue import store
from django_perfectqueue.lib.processes import (
    halt,
    kill_orphans,
    mark,
    resume,
    terminate_descendants,
)

from ..helpers.reaper import Leftovers
from ..process.child import Child
from ..process.wakeup import Wakeup, drain
from ..processor.feeder import DONE, RECYCLED
from ..processor.processor import Processor
from ..processor.resources import ProcessorResources
from ..report import Reporter
from ..shared.queue_order import QueueAccounts
from ..shared.slot import ProcessorStatus
from ..shared.wakeups import Wakeups
from .forks import Children, Place

logger = logging.getLogger("django_perfectqueue.supervisor")

ENOUGH_AFTER = 5.0


class ProcessorPlace(Place):
    """
    A place of processors, with what they share in memory.

    ``overdue_since`` is when a task of the present one should have ended. ``forced`` means
    that the processor was killed for that.
    """

    def __init__(self, processors: Processors, number: int) -> None:
        super().__init__(processors.children, f"processor {number}", self.process)
        self.processors = processors
        self.number = number
        self.stop_limit = self.children.options.CHILD_GRACEFUL_KILL_LIMIT
        concurrency = self.children.options.places
        self.status = ProcessorStatus.shared(concurrency)
        self.accounts = QueueAccounts(self.children.plan.queues, concurrency)
        self.wakeup = Wakeup()
        self.holder = 0
        self.overdue_since: float | None = None
        self.forced = False

    def title(self, now: float) -> str:
        pid = self.status.pid
        tasks = ", ".join(
            f"{task.task_id} for {now - task.since:.1f} s" for task in self.status.tasks
        )
        what = f"task {tasks}" if tasks else "nothing"
        return f"Processor {self.number}, pid {pid}, runs {what}:"

    def start(self) -> Child:
        try:
            self.children.plan.dispatch.before_fork()
        except Exception:
            logger.exception("A handler's before_fork() raised.")
        self.holder = store.new_holder()
        self.overdue_since, self.forced = None, False
        drain(self.wakeup.read_fd)
        self.status.sign_on(self.holder)
        child = super().start()
        self.status.pid = child.pid
        self.processors.reporter.say(f"Processor {self.number} started, pid {child.pid}.")
        return child

    def process(self, heartbeat_w: int) -> int:
        """Be the processor, in its process."""
        mark(self.holder)
        resources = ProcessorResources(
            holder=self.holder,
            status=self.status,
            accounts=self.accounts,
            wakeup=self.wakeup,
            heartbeat_w=heartbeat_w,
            parent_alive=self.processors.parent_alive,
            wakeups=self.processors.wakeups,
        )
        return Processor(self.children.plan, resources, self.processors.reporter).run()

    def watch(self, now: float, *, frozen: bool) -> None:
        super().watch(now, frozen=frozen)
        if self.child is not None:
            self.enforce(self.child, now)

    def enforce(self, child: Child, now: float) -> None:
        """
        Kill the processor for tasks that exceed their time limit.

        First the descendants of the processor get a SIGTERM, so that a handler that waits for
        one returns. After CHILD_KILL_INTERVAL the processor and its descendants are killed.
        """
        overdue = self.status.overdue(now)
        if child.killed or not overdue:
            self.overdue_since = None
        elif self.overdue_since is None:
            self.overdue_since = now
            logger.error(
                "A handler exceeds its time limit; its processor will be killed."
                " pid=%s task_ids=%s",
                child.pid,
                [task.task_id for task in overdue],
            )
            if len(overdue) == len(self.status.tasks):
                terminate_descendants(child.pid)
        elif now - self.overdue_since >= self.children.options.CHILD_KILL_INTERVAL:
            # Stopped for the check, so that no task ends between the check and the kill.
            halt(child.pid)
            if self.status.overdue(now):
                self.forced = True
                child.kill()
            else:
                resume(child.pid)

    def ended(self, child: Child, code: int, now: float) -> bool:
        """Clear the place; have the tasks given back that the processor has left behind."""
        status, processors = self.status, self.processors
        status.pid = 0
        left = code in (DONE, RECYCLED) and status.signed_off
        if not left:
            kill_orphans(self.children.pids(), holder=self.holder, pipe=child.heartbeat_r)
            processors.give_back(self.leftovers(child, code, now))
        status.clear()
        status.seeking = False
        if status.rung:
            processors.wakeups.wake_one()
        burst = self.children.plan.burst
        self.vacant = burst and left and code == DONE and child.stopping_since is None
        if self.vacant or processors.stopping:
            processors.reporter.say(f"Processor {self.number} has ended.")
        return left or child.killed

    def leftovers(self, child: Child, code: int, now: float) -> Leftovers:
        """Return its leftovers; if it was not killed on purpose, its tasks have crashed."""
        seconds = {task.task_id: now - task.since for task in self.status.tasks}
        overdue = self.status.overdue(now) if self.forced else []
        self.status.count("killed", len(overdue))
        on_purpose = self.forced or (child.killed and not child.silence)
        message = how_it_ended(code, child.silence)
        if not on_purpose:
            logger.error(
                "A processor died. pid=%s task_ids=%s: %s", child.pid, list(seconds), message
            )
            self.status.count("crashed", len(seconds))
        return Leftovers(
            holder=self.holder,
            worker=f"{socket.gethostname()}:{child.pid}",
            crashed=() if on_purpose else tuple(seconds),
            why=store.Failure(error="crashed", message=message),
            overdue={task.task_id: seconds[task.task_id] for task in overdue},
            seconds=seconds,
        )

    def due(self) -> list[float]:
        found = [*super().due(), *(task.kill_at for task in self.status.tasks)]
        if self.overdue_since is not None:
            found.append(self.overdue_since + self.children.options.CHILD_KILL_INTERVAL)
        return found


class Processors:
    """The places of PROCESSORS processors."""

    def __init__(
        self,
        children: Children,
        reporter: Reporter,
        give_back: Callable[[Leftovers], None],
        *,
        parent_alive: int,
    ) -> None:
        self.children = children
        self.reporter = reporter
        self.give_back = give_back
        self.parent_alive = parent_alive
        self.stopping = False
        count = children.options.PROCESSORS
        self.places = [ProcessorPlace(self, number) for number in range(1, count + 1)]
        self.statuses = [place.status for place in self.places]
        self.wakeups = Wakeups([(place.status, place.wakeup) for place in self.places])
        self.serving_since: float | None = None

    def alive(self) -> int:
        """Return how many processors there are."""
        return sum(place.child is not None for place in self.places)

    def are_serving(self, now: float) -> bool:
        """Return whether all have acquired, or for five seconds at least one."""
        serving = sum(status.serves for status in self.statuses)
        if serving and self.serving_since is None:
            self.serving_since = now
        if not serving or self.serving_since is None:
            return False
        return now - self.serving_since >= ENOUGH_AFTER or serving == len(self.places)

    def stop(self, *, now: bool = False) -> None:
        for place in self.places:
            place.stop(now=now)

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
