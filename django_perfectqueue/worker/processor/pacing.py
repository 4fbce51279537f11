"""How many tasks to take in advance, and when to replace a processor."""

from __future__ import annotations

import logging
import os
import random
import time
from collections.abc import Sequence
from math import inf

from django_perfectqueue import store
from django_perfectqueue.conf import Options
from django_perfectqueue.lib.processes import resident

SPAN = 0.25
LONG = 0.05
MOST = 1_000
# Of the data of all tasks that are taken at once.
MOST_CHARACTERS = 4_000_000
GROWTH = 4
TOO_FAR = 1.5
MEMORY = 0.9
MOST_TYPES = 1_000


class Prefetch:
    """
    Computes how many tasks run in about a quarter of a second, by a moving average.

    A larger batch would hold tasks that other processors could run. It begins with one and
    at most quadruples. ``places`` is how many tasks run at once. ``fixed`` is TASK_PREFETCH.
    """

    def __init__(self, fixed: int | None = None, *, places: int = 1) -> None:
        self.fixed = fixed
        self.places = places
        self.mean = 0.0
        self.pace = 0.0
        self.tasks = 0
        self.means: dict[str, float] = {}
        self.characters = 0.0
        self.last = 0

    def took(self, leases: Sequence[store.Lease]) -> None:
        """Note how large the data of tasks is that were taken together."""
        if leases:
            self.characters = sum([len(lease.payload) for lease in leases]) / len(leases)

    def paced(self, seconds: float) -> None:
        """
        Note how long the tasks since the last call have kept a serial processor, with all
        around them: where processors share a core, longer than their handlers.
        """
        if self.tasks:
            pace = seconds / self.tasks
            self.pace = (self.pace + pace) / 2 if self.pace else pace
            self.tasks = 0

    def ran(self, type_: str, seconds: float) -> None:
        self.tasks += 1
        before = self.means.get(type_, seconds)
        if len(self.means) >= MOST_TYPES:
            self.means.clear()
        self.means[type_] = before * MEMORY + seconds * (1 - MEMORY)
        self.mean = self.mean * MEMORY + seconds * (1 - MEMORY) if self.mean else seconds

    def limit(self) -> int:
        """Return how many tasks to hold, running ones included, and let it grow."""
        self.last = self.next()
        return self.last

    def next(self) -> int:
        """Return the value of limit() without the growth."""
        if self.fixed is not None:
            return self.fixed + self.places
        span = SPAN * self.places
        mean = max(self.mean, self.pace)
        fitting = int(span / mean) if mean > span / MOST else MOST
        if not self.mean:
            fitting = self.places if self.places > 1 else MOST
        if self.characters * MOST > MOST_CHARACTERS:
            fitting = min(fitting, int(MOST_CHARACTERS / self.characters))
        most = max(self.places, min(MOST, fitting))
        return max(1, min(most, self.last * GROWTH or 1))

    def over_at(self, began: float) -> float:
        """
        Return when a batch that began at ``began`` has run far longer than planned, or inf.

        Then tasks are suddenly longer than before. The rest of the batch is released, so that
        free processors take it, in the order of that moment.
        """
        return began + SPAN * TOO_FAR if self.fixed is None else inf

    def may_be_long(self, type_: str) -> bool:
        """Return whether a task of this type may delay the completions before it."""
        return self.means.get(type_, LONG) >= LONG


# Replace processors, to limit memory leaks of handlers.


processor_logger = logging.getLogger("django_perfectqueue.processor")

INTERVAL = 1.0
EARLIEST = 0.9
MIB = 1_048_576


class Recycling:
    """
    Decides when a processor is replaced: for its age or its memory.

    The limits are random, up to a tenth below the settings, so that processors that started
    together do not end together.
    """

    def __init__(self, options: Options) -> None:
        given = options.RECYCLE
        self.born = time.monotonic()
        self.age = given.get("age", inf) * random.uniform(EARLIEST, 1.0)  # noqa: S311
        self.memory = given.get("memory", inf) * MIB * random.uniform(EARLIEST, 1.0)  # noqa: S311
        self.look_at = self.born + INTERVAL
        self.due = False

    def is_due(self) -> bool:
        """Return whether the processor must be replaced; its memory is read once a second."""
        if self.due or self.age == self.memory == inf:
            return self.due
        now = time.monotonic()
        self.due = self.is_too_old(now) or self.is_too_large(now)
        return self.due

    def is_too_old(self, now: float) -> bool:
        if now - self.born < self.age:
            return False
        processor_logger.info(
            "A processor is old; it is replaced. pid=%s seconds=%.0f", os.getpid(), self.age
        )
        return True

    def is_too_large(self, now: float) -> bool:
        if self.memory == inf or now < self.look_at:
            return False
        self.look_at = now + INTERVAL
        size = resident()
        if size < self.memory:
            return False
        processor_logger.warning(
            "A processor has grown large; it is replaced. pid=%s mib=%.0f seconds=%.0f",
            os.getpid(),
            size / MIB,
            now - self.born,
        )
        return True
