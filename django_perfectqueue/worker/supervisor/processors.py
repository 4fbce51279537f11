"""The places of processors, and the processes that use them in turn."""

from __future__ import annotations

import logging
import signal

from django_perfectqueue import store
from django_perfectqueue.lib.processes import (
    halt,
    kill_orphans,
    mark,
    resume,
    terminate_descendants,
)
from django_perfectqueue.store.tasks.close import Loss
from django_perfectqueue.store.values import new_holder

from ..helpers.reaper import Leftovers
from ..plan import worker_name
from ..process.child import Child
from ..process.signals import Wakeup, drain
from ..processor.feeder import DONE, RECYCLED
from ..processor.leases import ProcessorResources
from ..processor.processor import Processor
from ..shared.queue_order import QueueAccounts
from ..shared.status import ProcessorStatus
from .forks import Children, Place

logger = logging.getLogger("django_perfectqueue.supervisor")


class ProcessorPlace(Place):
    """
    A place of processors, with what they share in memory.

    ``overdue_since`` is when a task of the present one should have ended. ``forced`` means
    that the processor was killed for that.
    """

    def __init__(self, children: Children, number: int) -> None:
        super().__init__(children, f"processor {number}", self.process)
        self.number = number
        self.stop_limit = children.options.CHILD_GRACEFUL_KILL_LIMIT
        concurrency = children.options.places
        self.status = ProcessorStatus.shared(concurrency)
        self.accounts = QueueAccounts(children.plan.queues, concurrency)
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
        self.holder = new_holder()
        self.overdue_since, self.forced = None, False
        drain(self.wakeup.read_fd)
        self.status.sign_on(self.holder)
        child = super().start()
        self.status.pid = child.pid
        self.children.reporter.say(f"Processor {self.number} started, pid {child.pid}.")
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
            parent_alive=self.children.parent_alive,
            wakeups=self.children.wakeups,
        )
        return Processor(self.children.plan, resources, self.children.reporter).run()

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
        status, children = self.status, self.children
        status.pid = 0
        left = code in (DONE, RECYCLED) and status.signed_off
        if not left:
            kill_orphans(children.pids(), holder=self.holder, pipe=child.heartbeat_r)
            children.give_back(self.leftovers(child, code, now), now)
        status.clear()
        status.seeking = False
        if status.rung:
            children.wakeups.wake_one()
        self.vacant = children.plan.burst and left and code == DONE and child.stopping_since is None
        if self.vacant or children.stopping:
            children.reporter.say(f"Processor {self.number} has ended.")
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
            loss=Loss(
                why=store.Failure(error="crashed", message=message),
                worker=worker_name(child.pid),
                crashed=() if on_purpose else tuple(seconds),
                seconds=seconds,
            ),
            overdue={task.task_id: seconds[task.task_id] for task in overdue},
        )

    def due(self) -> list[float]:
        found = [*super().due(), *(task.kill_at for task in self.status.tasks)]
        if self.overdue_since is not None:
            found.append(self.overdue_since + self.children.options.CHILD_KILL_INTERVAL)
        return found


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
