"""Replace processors, to limit memory leaks of handlers."""

from __future__ import annotations

import logging
import os
import random
import time

from django_perfectqueue.application.recycle import wanted
from django_perfectqueue.conf import Options
from django_perfectqueue.lib.processes import resident

logger = logging.getLogger("django_perfectqueue.processor")

INTERVAL = 1.0
EARLIEST = 0.9
MIB = 1_048_576


class Recycling:
    """
    Decides when a processor is replaced: for its age, its memory or at a handler's request.

    The limits are random, up to a tenth below the settings, so that processors that started
    together do not end together.
    """

    def __init__(self, options: Options) -> None:
        age, memory = options.RECYCLE.get("age"), options.RECYCLE.get("memory")
        self.born = time.monotonic()
        self.age = None if age is None else age * random.uniform(EARLIEST, 1.0)  # noqa: S311
        self.memory = (
            None if memory is None else memory * MIB * random.uniform(EARLIEST, 1.0)  # noqa: S311
        )
        self.look_at = self.born + INTERVAL
        self.due = False

    def is_due(self) -> bool:
        """Return whether the processor must be replaced; its memory is read once a second."""
        if self.due or (self.age is None and self.memory is None):
            return self.due or wanted.is_set()
        now = time.monotonic()
        self.due = wanted.is_set() or self.is_too_old(now) or self.is_too_large(now)
        return self.due

    def is_too_old(self, now: float) -> bool:
        if self.age is None or now - self.born < self.age:
            return False
        logger.info(
            "A processor is old; it is replaced. pid=%s seconds=%.0f", os.getpid(), self.age
        )
        return True

    def is_too_large(self, now: float) -> bool:
        if self.memory is None or now < self.look_at:
            return False
        self.look_at = now + INTERVAL
        size = resident()
        if size < self.memory:
            return False
        logger.warning(
            "A processor has grown large; it is replaced. pid=%s mib=%.0f seconds=%.0f",
            os.getpid(),
            size / MIB,
            now - self.born,
        )
        return True
