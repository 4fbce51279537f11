"""Beside the clients of a run: a feeder keeps a backlog, and operators change graphs at random."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from django.db import Error, connection

from django_perfectqueue.bulk import Operation, Selection, submit_bulk
from django_perfectqueue.exceptions import TaskError
from django_perfectqueue.models import State, Ticket
from django_perfectqueue.queue import Batch, Queue

from .. import scenario
from ..calls import ask, noted, seen
from ..process import Acting
from ..scenario import BULK, POND, WEBS
from ..terms import Terms
from .webs import Spinner, Web

TICK = 0.05
BATCH, STILL = 25, 3
"""How many tasks and webs that nobody changes the feeder submits at once."""
BURST_AFTER = 15.0
"""Seconds from one burst to the next."""

OPERATORS = 2
OPEN = 150
"""No web is added while so many of their tasks wait or run."""
OPERATIONS = 8
"""No bulk work is asked for while so many operations are under way: they edit the same tasks."""
RECENT = 6
LATER = 3_600.0
CANCELS = 0.4
"""How often a bulk operation is cancelled on its way."""
AT_ONCE = 200
POOL = [f"{POND}-{number}" for number in range(300)]
RATES = (20.0, 200.0, 10_000.0)


class Working(threading.Thread):
    """Does some work, which asks again and again whether it is over."""

    def __init__(self, work: Callable[[Callable[[], bool]], None]) -> None:
        super().__init__(daemon=True)
        self.work = work
        self.ended = threading.Event()
        self.trouble: BaseException | None = None

    def run(self) -> None:
        try:
            self.work(self.ended.is_set)
        except BaseException as error:
            self.trouble = error
        finally:
            connection.close()

    def stop(self) -> None:
        """End the work; raise what has gone wrong."""
        self.ended.set()
        self.join()
        if self.trouble is not None:
            raise self.trouble


class Feeder:
    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self.coming = scenario.tasks(terms.seed, terms.alive_time)
        self.queue = Queue()
        self.spinner = Spinner(random.Random(terms.seed), self.queue)
        self.webs: list[Web] = []
        self.asked: set[str] = set()
        self.bursts = itertools.count(1)
        self.burst_at = time.monotonic() + BURST_AFTER

    def feed(self, is_over: Callable[[], bool]) -> None:
        while not is_over():
            time.sleep(TICK)
            self.top_up()

    def top_up(self) -> None:
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
        for _web in range(STILL):
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


@dataclass(frozen=True)
class Notes:
    """The webs that may be there, and numbers for the names of others."""

    webs: list[Web]
    numbers: itertools.count[int]


class Operator(Acting):
    PAUSE = 0.05

    def __init__(self, terms: Terms, name: str, notes: Notes) -> None:
        super().__init__(terms, name)
        self.notes = notes
        self.queue = Queue(WEBS)
        self.spinner = Spinner(self.drawn, self.queue)

    def verbs(self) -> dict[Callable[[], None], int]:
        return {
            self.spin: 4,
            self.link: 8,
            self.close_circle: 4,
            self.unlink: 2,
            self.cancel_graph: 2,
            self.cancel_batch: 1,
            self.retry_batch: 4,
            self.operate_web: 4,
            self.edit_pond: 1,
        }

    # Webs: a graph of tasks in nested batches

    def spin(self) -> None:
        """Submit a web, all in one transaction."""
        if self.count() > OPEN:
            return
        web = Web(f"web-{next(self.notes.numbers)}")

        self.spinner.spin(web)
        if web.members:
            self.notes.webs.append(web)

    def count(self, **which: Any) -> int:
        return seen(Ticket.objects.filter(task__queue=WEBS, **which).count, OPEN + 1)

    def some_web(self) -> Web | None:
        recent = self.notes.webs[-RECENT:]
        return self.drawn.choice(recent) if recent else None

    def some_tasks(self, count: int, *, blocked: int = 0) -> list[str]:
        """Draw tasks of a web, the first of which were just blocked; or none."""
        web = self.some_web()
        if web is None:
            return []
        held = Ticket.objects.filter(task__user=web.name, state=State.BLOCKED)
        look = partial(list, held.values_list("task__key", flat=True))
        keys: list[str] = seen(look, []) if blocked else []
        first = self.drawn.sample(keys, min(len(keys), blocked))
        rest = self.drawn.sample(web.members[web.name], 1) if count > blocked else []
        return [*first, *rest] if len(first) == blocked else []

    # What is asked for

    def link(self) -> None:
        if keys := self.some_tasks(2, blocked=1):
            self.wait_for(*keys)

    def wait_for(self, child: str, parent: str) -> None:
        # Put back, it would wait for ever for a callback that is never needed.
        modes = ("run",) if parent.endswith("!failed") else ("run", "cancel")
        mode, task = self.drawn.choice(modes), self.queue[child]
        ask("link", lambda: task.wait_for([parent], if_failed=mode), key=child, other=parent)

    def close_circle(self) -> None:
        """Have two tasks wait for each other, at the same moment."""
        if not (keys := self.some_tasks(2, blocked=2)):
            return
        first, second = keys

        def other_way() -> None:
            try:
                self.wait_for(second, first)
            finally:
                connection.close()

        with ThreadPoolExecutor(1) as pool:
            other = pool.submit(other_way)
            self.wait_for(first, second)
            other.result()

    def unlink(self) -> None:
        for key in self.some_tasks(1, blocked=1):
            ask("unlink", self.queue[key].wait_no_longer_for, key=key)

    def cancel_graph(self) -> None:
        for key in self.some_tasks(1):
            act = partial(self.queue[key].cancel_request, together=True)
            ask("cancel together", act, key=key)

    def some_batch(self) -> str | None:
        web = self.some_web()
        return web and self.drawn.choice([*web.members])

    def ask_batch(self, verb: str, act: Callable[[Batch], Any]) -> None:
        if name := self.some_batch():
            ask(verb, lambda: act(self.queue.batch_named(name)), key=name)

    def cancel_batch(self) -> None:
        self.ask_batch("cancel batch", Batch.cancel_request)

    def retry_batch(self) -> None:
        self.ask_batch("retry batch", Batch.retry)

    # Bulk work

    def operate_web(self) -> None:
        """Retry, edit or cancel all tasks of a web, by a task of the queue."""
        web, verb = self.some_web(), self.drawn.choice(("retry", "edit", "cancel"))
        if web is not None and self.count(task__type=BULK) < OPERATIONS:
            self.bulk(verb, Selection(queue=WEBS, user=web.name), web.name)

    def edit_pond(self) -> None:
        if self.count(task__type=BULK) < OPERATIONS:
            self.bulk("edit", Selection(queue=POND), POND)

    def bulk(self, verb: Any, selection: Selection, whom: str, *, often: float = CANCELS) -> bool:
        mark = f"edit-{next(self.notes.numbers)}"
        operation = Operation(
            verb=verb,
            selection=selection,
            rate=self.drawn.choice(RATES),
            patch=None if verb == "cancel" else {"edits": {mark: 1}},
            by=mark,
        )

        def submit() -> dict[str, str]:
            return {"value": submit_bulk(operation, queue=WEBS, using="default").key}

        found = ask(f"bulk {verb}", submit, key=mark, other=whom)
        if found.is_done and self.drawn.random() < often:
            time.sleep(self.drawn.uniform(0.0, 1.0))
            key = found.reported["value"]
            ask("cancel bulk", self.queue[key].cancel_request, key=mark, other=key)
        return found.is_done
