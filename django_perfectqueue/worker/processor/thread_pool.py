"""Threads that run tasks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from django.db import connections

from ..attempt.context import prepare
from ..attempt.interrupt_thread import ThreadGuard
from ..attempt.runner import Runner, Running
from ..database.link import Link
from ..process.wakeup import Bell

if TYPE_CHECKING:
    from .concurrent import Crew

LAST_ERRAND = 10.0
IDLE = 60.0


class Hands:
    """
    As many threads as there were tasks at once so far, each with connections of its own.

    One that has had nothing to do for a minute closes its connections.
    """

    def __init__(self, crew: Crew, following: Callable[[], Running | None]) -> None:
        self.crew = crew
        self.following = following
        self.line: SimpleQueue[Running | None] = SimpleQueue()
        self.lock = threading.Lock()
        self.idle = 0
        self.threads: list[threading.Thread] = []
        self.bells: list[Bell] = []

    def send(self, running: Running) -> None:
        """
        Have a task run by a thread that has nothing to do, or by a new one.

        There are never more of them than places: who has just freed one is free as well,
        in a moment.
        """
        with self.lock:
            if self.idle > 0 or len(self.threads) == len(self.crew.going):
                self.idle -= 1
            else:
                self.start()
        self.line.put(running)

    def start(self) -> None:
        name = f"hand-{len(self.threads) + 1}"
        thread = threading.Thread(target=self.work, name=name, daemon=True)
        self.threads.append(thread)
        thread.start()

    def ring(self) -> None:
        """Wake those that wait for the database."""
        for bell in self.bells:
            bell.ring()

    def close(self) -> None:
        for _thread in self.threads:
            self.line.put(None)
        for thread in self.threads:
            thread.join(LAST_ERRAND)

    def work(self) -> None:
        try:
            runner = self.runner()
            while running := self.next(runner):
                self.run(runner, running)
            runner.coroutines.close()
            connections.close_all()
        except BaseException as error:
            self.crew.fail(error)

    def runner(self) -> Runner:
        prepare()
        plan, bell = self.crew.plan, Bell()
        self.bells.append(bell)
        link = Link(plan.using, bell, self.crew.patience, outage=plan.outage)
        self.crew.keeper.watch.add(link)
        return Runner(plan.dispatch, link=link, guard=ThreadGuard())

    def next(self, runner: Runner) -> Running | None:
        try:
            return self.line.get(timeout=IDLE)
        except Empty:
            runner.coroutines.sync_calls.disconnect()
            connections.close_all()
            return self.line.get()

    def run(self, runner: Runner, running: Running) -> None:
        """Run a task, and those that follow it."""
        following: Running | None = running
        while following is not None:
            self.crew.ended(following, runner.attend(following))
            following = self.following()
        with self.lock:
            self.idle += 1
