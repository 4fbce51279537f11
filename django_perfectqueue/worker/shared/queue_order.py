"""In which order a processor tries its queues: the setting QUEUE_ORDER."""

from __future__ import annotations

import ctypes
import random
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import cycle, repeat

from ..process.output import shared, with_fields

MEMORY = 0.9


def orders(order: str, queues: Sequence[str]) -> Iterator[Sequence[str]]:
    """
    Yield the queues for each acquire: as they were given, beginning one further each time,
    or at random. These are the reservers of qless.
    """
    if order == "round_robin":
        return cycle([(*queues[n:], *queues[:n]) for n in range(len(queues))])
    if order == "shuffled":
        return (random.sample(queues, len(queues)) for _turn in repeat(None))
    return repeat(queues)


@with_fields
class QueueAccount(ctypes.Structure):
    """
    Of one queue: ``time`` is the seconds given to it by its weight, ``start`` that time when
    it was served last, ``backlogged`` whether it then had more tasks than were taken.
    """

    time: float
    start: float
    backlogged: bool


@with_fields
class Begun(ctypes.Structure):
    """A task that runs: the number of its queue from 1, or 0, and when it began."""

    queue: int
    since: float


class QueueAccounts:
    """
    How much of its time a processor has given to each queue, divided by the queue's weight.

    That is start-time fair queueing (Goyal, Vin and Cheng, 1996) between queues: the one
    with the least time is tried first, and the others fill up what it leaves of a batch.
    A queue without a backlog saves no credit: when it has tasks again, it begins where the
    service began that is the least advanced of those that compete.

    It lies in memory that outlives the processor: the next one on the same place goes on
    with it, and what had begun when a processor died is charged until then. All times are
    of the monotonic clock, in seconds. Several threads may call it.
    """

    def __init__(self, queues: Sequence[str], places: int = 1) -> None:
        self.queues = tuple(queues)
        self.numbers = {queue: number for number, queue in enumerate(self.queues)}
        self.weights: Mapping[str, float] = {}
        self.costs = [0.0] * len(self.queues)
        self.lock = threading.Lock()
        self.accounts = shared(QueueAccount * len(self.queues))
        self.begun = shared(Begun * places)

    def sign_on(self, now: float) -> None:
        """Charge what the processor before this one had begun and did not end."""
        for task in self.begun:
            if task.queue:
                self.charge(task.queue - 1, now - task.since)
                task.queue = 0

    def begin(self, queue: str, now: float, place: int = 0) -> None:
        """Note that a task begins; its queue is written last, as that makes the rest count."""
        self.begun[place].since = now
        self.begun[place].queue = self.numbers[queue] + 1

    def end(self, queue: str, seconds: float, place: int = 0) -> None:
        """Charge a task for the time that it took."""
        number = self.numbers[queue]
        with self.lock:
            self.begun[place].queue = 0
            self.charge(number, seconds)
            cost = self.costs[number] or seconds
            self.costs[number] = cost * MEMORY + seconds * (1 - MEMORY)

    def charge(self, number: int, seconds: float) -> None:
        self.accounts[number].time += max(0.0, seconds) / self.weight(number)

    def weight(self, number: int) -> float:
        return self.weights.get(self.queues[number], 1.0)

    def order(self, now: float, held: Iterable[str] = ()) -> list[str]:
        """
        Return the queues, the one that is served next first.

        What runs counts as long as it has run, or as it is expected to where that is more.
        ``held`` are the queues of tasks that have yet to begin, which count as expected.
        """
        with self.lock:
            keys = [account.time for account in self.accounts]
            running = list(self.running())
        for number, began in running:
            keys[number] += max(now - began, self.costs[number]) / self.weight(number)
        for queue in held:
            number = self.numbers[queue]
            keys[number] += self.costs[number] / self.weight(number)
        return sorted(self.queues, key=lambda queue: keys[self.numbers[queue]])

    def running(self) -> Iterator[tuple[int, float]]:
        """Yield of each task that runs the number of its queue, and when it began."""
        for task in self.begun:
            if number := task.queue:
                yield number - 1, task.since

    def took(self, order: Sequence[str], taken: Iterable[str], limit: int, now: float) -> None:
        """
        Note of which queues tasks were taken, when so many were wanted in this order.

        A queue that gave less than what was still wanted of it has no backlog.
        """
        given = dict.fromkeys(order, 0)
        for queue in taken:
            given[queue] += 1
        with self.lock:
            self.catch_up({self.numbers[queue] for queue in order if given[queue]}, now)
        missing = limit
        for queue in order:
            if missing <= 0:
                break
            missing -= given[queue]
            self.accounts[self.numbers[queue]].backlogged = missing <= 0

    def catch_up(self, served: set[int], now: float) -> None:
        """
        Raise those that come back to where those that have a backlog began to be served last.

        Where none has, what was given before competes with nothing: they are all alike.
        """
        given = [account.time for account in self.accounts]
        for number, began in self.running():
            given[number] += (now - began) / self.weight(number)
        starts = [account.start for account in self.accounts if account.backlogged]
        floor = min(starts, default=max(given))
        for number in served:
            account = self.accounts[number]
            missing = 0.0 if account.backlogged else max(0.0, floor - given[number])
            account.time += missing
            account.start = given[number] + missing
