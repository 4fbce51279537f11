"""When a processor is replaced, so that what its handlers leak does not add up."""

from __future__ import annotations

import logging
import os
import random
import resource
import sys
import time
from pathlib import Path

from django_perfectqueue.conf import Options

logger = logging.getLogger("django_perfectqueue.processor")

INTERVAL = 1.0
EARLIEST = 0.9
MIB = 1_048_576
STATM = Path("/proc/self/statm")


class Recycling:
    """
    Tells when a processor has grown too old or too large.

    Each has limits of its own, up to a tenth below those of the settings, so that those
    who started together don't leave together.
    """

    def __init__(self, options: Options) -> None:
        age, memory = options.MAX_AGE_PER_CHILD, options.MAX_MEMORY_PER_CHILD
        self.born = time.monotonic()
        self.age = None if age is None else age * random.uniform(EARLIEST, 1.0)  # noqa: S311
        self.memory = (
            None if memory is None else memory * MIB * random.uniform(EARLIEST, 1.0)  # noqa: S311
        )
        self.look_at = self.born + INTERVAL
        self.due = False

    def is_due(self) -> bool:
        """Tell whether the processor is to leave; its memory is read once a second."""
        if self.due or (self.age is None and self.memory is None):
            return self.due
        now = time.monotonic()
        self.due = self.is_too_old(now) or self.is_too_large(now)
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


def resident() -> int:
    """Return how many bytes of memory this process holds, or where that can't be read, has held."""
    try:
        return int(STATM.read_bytes().split()[1]) * resource.getpagesize()
    except (OSError, IndexError, ValueError):
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024
