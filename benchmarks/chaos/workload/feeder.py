"""Keeps a backlog of tasks, and asks for some to be cancelled while they run."""

from __future__ import annotations

import abc
import itertools
import random
import threading
import time
from typing import Any

from django.db import Error, connection

from django_perfectqueue.exceptions import TaskError
from django_perfectqueue.models import Ticket
from django_perfectqueue.queue import Queue

from .. import scenario
from ..calls import noted
from ..terms import Terms
from .webs import Spinner, Web

TICK = 0.05
BATCH, WEBS = 25, 3
BURST_AFTER = 15.0
"""Seconds from one burst to the next."""


class Turning(threading.Thread, abc.ABC):
    """Takes one turn after another, until it is stopped."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.ended = threading.Event()
        self.trouble: BaseException | None = None

    def pause(self) -> float:
        """Return how many seconds pass until the next turn."""
        return TICK

    @abc.abstractmethod
    def turn(self) -> None:
        """Do what there is to do now."""

    def run(self) -> None:
        try:
            while not self.ended.wait(self.pause()):
                self.turn()
        except BaseException as error:
            self.trouble = error
        finally:
            connection.close()

    def stop(self) -> None:
        """Take no more turns; raise what has gone wrong."""
        self.ended.set()
        self.join()
        if self.trouble is not None:
            raise self.trouble


class Feeder(Turning):
    def __init__(self, terms: Terms) -> None:
        super().__init__("feeder")
        self.terms = terms
        self.coming = scenario.tasks(terms.seed, terms.alive_time)
        self.queue = Queue()
        self.spinner = Spinner(random.Random(terms.seed), self.queue)
        self.webs: list[Web] = []
        self.asked: set[str] = set()
        self.bursts = itertools.count(1)
        self.burst_at = time.monotonic() + BURST_AFTER

    def turn(self) -> None:
        try:
            if Ticket.objects.filter(task__queue=self.queue.name).count() < self.terms.backlog:
                self.submit(list(itertools.islice(self.coming, BATCH)))
                self.submit_webs()
                self.submit_burst()
            self.ask_for_cancels()
        except Error:
            connection.close()

    def submit(self, tasks: list[dict[str, Any]]) -> None:
        """Submit the first task by itself, and the others together."""
        first, rest = tasks[0], tasks[1:]
        with noted("submit", keys=[first["key"]]):
            self.queue.submit(**first)
        self.submit_many(rest)

    def submit_many(self, tasks: list[dict[str, Any]]) -> None:
        with noted("submit", keys=[task["key"] for task in tasks]):
            self.queue.submit_many(tasks)

    def submit_burst(self) -> None:
        if time.monotonic() >= self.burst_at:
            self.burst_at = time.monotonic() + BURST_AFTER
            self.submit_many(scenario.burst(next(self.bursts)))

    def submit_webs(self) -> None:
        """Submit some webs that nobody changes."""
        for _web in range(WEBS):
            self.webs.append(Web(f"still-{len(self.webs)}", still=True))
            self.spinner.spin(self.webs[-1])

    def ask_for_cancels(self) -> None:
        running = self.queue.list().in_status("running").filter(type="cancelled")
        for key in set(running.values_list("key", flat=True)) - self.asked:
            self.asked.add(key)
            try:
                self.queue[key].cancel_request()
            except TaskError:
                continue
