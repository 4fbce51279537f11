"""Keeps a backlog of tasks, and asks for some to be cancelled while they run."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Iterable
from typing import Any

from django.db import Error, connection

from django_perfectqueue.exceptions import AlreadyExistsError, TaskError
from django_perfectqueue.models import FairShare, Limit, Ticket
from django_perfectqueue.queue import Queue

from . import scenario
from .graph import Graph
from .terms import Terms

TICK = 0.05
BATCH = 25
BURST_AFTER = 15.0
"""Seconds from one burst to the next."""


class Feeder(threading.Thread):
    """
    ``stored`` are the keys whose submit has returned, ``maybe_committed`` those whose submit has
    raised: they may be there or not.
    """

    def __init__(self, terms: Terms) -> None:
        super().__init__(name="feeder", daemon=True)
        self.terms = terms
        self.coming = scenario.tasks(terms.seed, terms.alive_time)
        self.queue = Queue()
        self.graph = Graph(random.Random(terms.seed))
        self.stored: list[str] = []
        self.maybe_committed: list[str] = []
        self.asked: set[str] = set()
        self.bursts = itertools.count(1)
        self.burst_at = time.monotonic() + BURST_AFTER
        self.ended = threading.Event()
        self.trouble: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.ended.wait(TICK):
                self.turn()
        except BaseException as error:
            self.trouble = error
        finally:
            connection.close()

    def turn(self) -> None:
        try:
            if Ticket.objects.filter(task__queue=self.queue.name).count() < self.terms.backlog:
                self.submit(list(itertools.islice(self.coming, BATCH)))
                self.submit_graph()
                self.submit_burst()
            self.ask_for_cancels()
        except Error:
            connection.close()

    def submit(self, tasks: list[dict[str, Any]]) -> None:
        """Submit the first task by itself, and the others together."""
        first, rest = tasks[0], tasks[1:]
        self.try_to(lambda: self.queue.submit(**first), [first["key"]])
        self.try_to(lambda: self.queue.submit_many(rest), [task["key"] for task in rest])

    def submit_burst(self) -> None:
        if time.monotonic() < self.burst_at:
            return
        self.burst_at = time.monotonic() + BURST_AFTER
        tasks = scenario.burst(next(self.bursts))
        self.try_to(lambda: self.queue.submit_many(tasks), [task["key"] for task in tasks])

    def submit_graph(self) -> None:
        """Submit tasks that wait for earlier ones, and a batch of batches."""
        nodes = self.graph.some_nodes()
        keys = [task["key"] for task in nodes]
        self.try_to(lambda: self.queue.submit_many(nodes), keys)
        if keys[-1] in self.stored[-1:]:
            self.graph.are_stored(keys)
        before = len(self.graph.callbacks)
        try:
            self.stored += self.graph.submit_batch(self.queue)
        except Error:
            connection.close()
            some = self.graph.callbacks[before:]
            self.maybe_committed += {key for one in some for key in (one.key, *one.members)}

    def try_to(self, submit: Any, keys: Iterable[str]) -> None:
        try:
            submit()
        except Error:
            connection.close()
            self.maybe_committed += keys
        except AlreadyExistsError as error:
            raise RuntimeError(f"A submit was stored twice: {error}") from error
        else:
            self.stored += keys

    def ask_for_cancels(self) -> None:
        running = self.queue.list().in_status("running").filter(type="cancelled")
        for key in set(running.values_list("key", flat=True)) - self.asked:
            self.asked.add(key)
            try:
                self.queue[key].cancel_request()
            except TaskError:
                continue

    def stop(self) -> None:
        """Submit no more; raise what has gone wrong."""
        self.ended.set()
        self.join()
        if self.trouble is not None:
            raise self.trouble


def make_rules() -> None:
    """Make the shares and the limit that the tasks keep to."""
    for user, (weight, cap) in scenario.SHARES.items():
        FairShare.objects.create(user=user, weight=weight, max_running=cap)
    Limit.objects.create(scope="name", name=scenario.NARROW, max_running=scenario.WIDTH)
