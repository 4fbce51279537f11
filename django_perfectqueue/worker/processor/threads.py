"""A processor that runs each of its tasks in a thread of a pool."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue

from django.db import connections

from ..attempt.context import prepare
from ..attempt.interrupt_thread import ThreadInterrupter
from ..attempt.runner import Runner, Running
from ..database.link import Link
from ..plan import Plan
from ..process.wakeup import Wakeup
from ..report import Reporter
from .concurrent import ConcurrentProcessor
from .resources import ProcessorResources

JOIN_TIMEOUT = 10.0
IDLE = 60.0


class ThreadPool:
    """
    As many threads as tasks ran at once so far, each with its own connections.

    A thread that is idle for a minute closes its connections.
    """

    def __init__(
        self, processor: ConcurrentProcessor, following: Callable[[], Running | None]
    ) -> None:
        self.processor = processor
        self.following = following
        self.queue: SimpleQueue[Running | None] = SimpleQueue()
        self.lock = threading.Lock()
        self.idle = 0
        self.threads: list[threading.Thread] = []
        self.wakeups: list[Wakeup] = []
        self.interrupters: list[ThreadInterrupter] = []

    def send(self, running: Running) -> None:
        """
        Run a task in an idle thread or a new one.

        There are at most as many threads as places. A thread that has just freed a place
        becomes idle in a moment, so the queue does not wait.
        """
        with self.lock:
            if self.idle > 0 or len(self.threads) == len(self.processor.going):
                self.idle -= 1
            else:
                self.start()
        self.queue.put(running)

    def start(self) -> None:
        name = f"task-{len(self.threads) + 1}"
        thread = threading.Thread(target=self.work, name=name, daemon=True)
        self.threads.append(thread)
        thread.start()

    def wake(self) -> None:
        """Wake the threads that wait for the database."""
        for wakeup in self.wakeups:
            wakeup.wake()

    def remind(self) -> None:
        for interrupter in self.interrupters:
            interrupter.remind()

    def close(self) -> None:
        for _thread in self.threads:
            self.queue.put(None)
        for thread in self.threads:
            thread.join(JOIN_TIMEOUT)

    def work(self) -> None:
        try:
            runner = self.runner()
            while running := self.next(runner):
                self.run(runner, running)
            runner.event_loop.close()
            connections.close_all()
        except BaseException as error:
            self.processor.fail(error)

    def runner(self) -> Runner:
        prepare()
        plan, wakeup = self.processor.plan, Wakeup()
        self.wakeups.append(wakeup)
        link = Link(plan.using, wakeup, self.processor.patience, outage=plan.outage)
        self.processor.monitor.watchdog.add(link)
        interrupter = ThreadInterrupter()
        self.interrupters.append(interrupter)
        return Runner(plan.dispatch, link=link, interrupter=interrupter)

    def next(self, runner: Runner) -> Running | None:
        try:
            return self.queue.get(timeout=IDLE)
        except Empty:
            runner.event_loop.sync_calls.disconnect()
            connections.close_all()
            return self.queue.get()

    def run(self, runner: Runner, running: Running) -> None:
        """Run a task, then following tasks while there are any."""
        following: Running | None = running
        while following is not None:
            self.processor.ended(following, runner.attend(following))
            following = self.following()
        with self.lock:
            self.idle += 1


class ThreadProcessor(ConcurrentProcessor):
    """Runs tasks in a pool of threads; each thread takes its next task itself."""

    def __init__(self, plan: Plan, resources: ProcessorResources, reporter: Reporter) -> None:
        super().__init__(plan, resources, reporter)
        self.pool = ThreadPool(self, self.next_task)

    def hand_out(self) -> None:
        while running := self.next_task():
            self.pool.send(running)

    def stop(self, *, now: bool = False) -> None:
        super().stop(now=now)
        self.pool.wake()

    def remind(self) -> None:
        self.pool.remind()

    def dismiss(self) -> None:
        self.pool.close()
