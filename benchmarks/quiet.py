"""How much others disturb the machine, and waiting until they do not."""

from __future__ import annotations

import os
import statistics
import tempfile
import time

from benchmarks.tree import busy
from tests.databases.lifetime import folder_for_sockets

MOMENT = 0.5
FEW_CORES = 0.2
TIMES_THE_BEST = 2.0
WRITES = 25


class Quiet:
    """Knows the best that the disk has done so far."""

    def __init__(self) -> None:
        self.best = sync_time()

    def wait(self, limit: float) -> None:
        """Return in a moment in which hardly anyone works or writes, or after so many seconds."""
        deadline = time.monotonic() + limit
        while time.monotonic() < deadline:
            before = busy()
            time.sleep(MOMENT)
            cores = (busy() - before) / MOMENT
            if self.sync_time() < self.best * TIMES_THE_BEST and cores < FEW_CORES:
                return

    def sync_time(self) -> float:
        found = sync_time()
        self.best = min(self.best, found)
        return found


def sync_time() -> float:
    """Return the median of what it takes to write 8 KiB and have the disk keep them, in µs."""
    block, spent = b"x" * 8192, []
    with tempfile.TemporaryFile(buffering=0, dir=folder_for_sockets()) as file:
        for _ in range(WRITES):
            began = time.perf_counter()
            os.pwrite(file.fileno(), block, 0)
            os.fsync(file.fileno())
            spent.append(time.perf_counter() - began)
    return statistics.median(spent) * 1e6
