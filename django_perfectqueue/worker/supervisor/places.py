"""The places of a supervisor: in each, one process after another is forked, watched, replaced."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING

from django_perfectqueue import store
from django_perfectqueue.lib import processes
from django_perfectqueue.store.tasks.close import Loss
from django_perfectqueue.store.values import new_holder

from ..helpers.reaper import Leftovers
from ..plan import worker_name
from ..process.child import Child, next_fork
from ..process.signals import Wakeup, drain
from ..processor.feeder import DONE, RECYCLED
from ..processor.leases import ProcessorResources
from ..processor.processor import Processor
from ..shared.queue_order import QueueAccounts
from ..shared.status import ProcessorStatus

if TYPE_CHECKING:
    from .supervisor import Supervisor

logger = logging.getLogger("django_perfectqueue.supervisor")

HELPER_STOP_LIMIT = 20.0

# What a child does: it gets the write end of its heartbeats, and returns its exit code.
Body = Callable[[int], int]


class Place:
    """
    The processes of one role, of which one after another is forked.

    ``next_at`` is when the next one may be forked, by the monotonic clock: the pause grows
    while they die young. A ``lasting`` place is kept filled
    until the last processor has ended; a ``vacant`` one is never filled again. ``stop_limit``
    is how many seconds after a stop its process is killed, or None.
    """

    def __init__(
        self, supervisor: Supervisor, name: str, body: Body, *, lasting: bool = False
    ) -> None:
        self.supervisor = supervisor
        self.name = name
        self.body = body
        self.lasting = lasting
        self.vacant = False
        self.stop_limit: float | None = HELPER_STOP_LIMIT
        self.deaths = 0
        self.next_at = 0.0
        self.child: Child | None = None

    @property
    def is_empty(self) -> bool:
        """Whether a process is missing, now or until its restart."""
        return self.child is None and not self.vacant

    def title(self, now: float) -> str:
        """Return the line above its stack dump."""
        return f"{self.name.capitalize()}, pid {self.child.pid if self.child else 0}:"

    def fill(self, now: float) -> None:
        """Fork its process if that is missing and its restart is due."""
        if not self.is_empty or now < self.next_at:
            return
        try:
            self.child = self.start()
        except OSError as error:
            logger.error("The %s can't be started. %s", self.name, error)
            self.next_at = now + max(1.0, self.supervisor.options.CHILD_FORK_FREQUENCY_LIMIT)

    def start(self) -> Child:
        return self.supervisor.fork(self.name, self.body)

    def reap(self, now: float) -> None:
        """Act on the end of its process."""
        child = self.child
        if child is None or (code := child.reap()) is None:
            return
        self.child = None
        expected = self.ended(child, code, now)
        os.close(child.heartbeat_r)
        limit = self.supervisor.options.CHILD_FORK_FREQUENCY_LIMIT
        early = now - child.born < limit
        self.deaths = 0 if expected else self.deaths + 1 if early else 1
        self.next_at = next_fork(child.born, deaths=self.deaths, limit=limit)

    def ended(self, child: Child, code: int, now: float) -> bool:
        """Report the end of a process; return whether it was expected."""
        if code and not child.killed:
            logger.error("The %s died. code=%s", self.name, code)
        return False

    def watch(self, now: float, *, frozen: bool) -> None:
        """Kill its process if that is silent; repeat a stop signal."""
        if (child := self.child) is None:
            return
        options, silence = self.supervisor.options, child.silence
        child.listen(now, limit=options.CHILD_HEARTBEAT_LIMIT, frozen=frozen)
        if child.silence > silence:
            logger.error(
                "The %s is silent; it is killed. pid=%s seconds=%.0f",
                self.name,
                child.pid,
                child.silence,
            )
        child.press(now, interval=options.CHILD_KILL_INTERVAL, limit=self.stop_limit)

    def stop(self, *, now: bool = False) -> None:
        if self.child is not None:
            self.child.kill() if now else self.child.stop()

    def due(self) -> list[float]:
        """Return the times of its next actions, by the monotonic clock."""
        return [self.next_at] if self.is_empty else []


class ProcessorPlace(Place):
    """
    A place of processors, with what they share in memory.

    ``overdue_since`` is when a task of the present one should have ended. ``forced`` means
    that the processor was killed for that.
    """

    def __init__(self, supervisor: Supervisor, number: int) -> None:
        super().__init__(supervisor, f"processor {number}", self.process)
        self.number = number
        self.stop_limit = supervisor.options.CHILD_GRACEFUL_KILL_LIMIT
        concurrency = supervisor.options.places
        self.status = ProcessorStatus.shared(concurrency)
        self.status.kept = number > supervisor.options.PROCESSORS - supervisor.options.kept
        self.accounts = QueueAccounts(supervisor.plan.queues, concurrency)
        self.wakeup = Wakeup()
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
            self.supervisor.plan.dispatch.before_fork()
        except Exception:
            logger.exception("A handler's before_fork() raised.")
        self.overdue_since, self.forced = None, False
        drain(self.wakeup.read_fd)
        self.status.sign_on(new_holder())
        child = super().start()
        self.status.pid = child.pid
        self.supervisor.reporter.say(f"Processor {self.number} started, pid {child.pid}.")
        return child

    def process(self, heartbeat_w: int) -> int:
        """Be the processor, in its process."""
        processes.mark(self.status.holder)
        resources = ProcessorResources(
            status=self.status,
            accounts=self.accounts,
            wakeup=self.wakeup,
            heartbeat_w=heartbeat_w,
            parent_alive=self.supervisor.parent_alive,
            wakeups=self.supervisor.wakeups,
        )
        return Processor(self.supervisor.plan, resources, self.supervisor.reporter).run()

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
                processes.terminate_descendants(child.pid)
        elif now - self.overdue_since >= self.supervisor.options.CHILD_KILL_INTERVAL:
            # Stopped for the check, so that no task ends between the check and the kill.
            processes.halt(child.pid)
            if self.status.overdue(now):
                self.forced = True
                child.kill()
            else:
                processes.send(child.pid, signal.SIGCONT)

    def ended(self, child: Child, code: int, now: float) -> bool:
        """Clear the place; have the tasks given back that the processor has left behind."""
        status, supervisor = self.status, self.supervisor
        status.pid = 0
        left = code in (DONE, RECYCLED) and status.signed_off
        if not left:
            processes.kill_orphans(supervisor.pids(), holder=status.holder, pipe=child.heartbeat_r)
            supervisor.give_back(self.leftovers(child, code, now), now)
        status.clear()
        status.seeking = False
        if status.rung:
            supervisor.wakeups.wake_one()
        self.vacant = (
            supervisor.plan.burst and left and code == DONE and child.stopping_since is None
        )
        if self.vacant or supervisor.stopping:
            supervisor.reporter.say(f"Processor {self.number} has ended.")
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
            holder=self.status.holder,
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
            found.append(self.overdue_since + self.supervisor.options.CHILD_KILL_INTERVAL)
        return found


def how_it_ended(code: int, silence: float = 0.0) -> str:
    if silence:
        return f"Its processor was silent for {silence:.0f} s, and was killed."
    return f"Its processor {processes.how_it_ended(code)}."
