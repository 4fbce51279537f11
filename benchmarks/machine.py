"""On what it was measured, how much others disturb it, and waiting until they do not."""

from __future__ import annotations

import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from benchmarks.peers import installed, kind_of
from benchmarks.processes import busy
from tests.databases.lifetime import folder_for_sockets

MOMENT = 0.5
FEW_CORES = 0.2
TIMES_THE_BEST = 2.0
WRITES = 25
ALWAYS = ("django", "psycopg", "psycopg2-binary", "mysqlclient")


def described(
    peers: Iterable[str], servers: dict[str, str], *, module: str = "benchmarks"
) -> dict[str, Any]:
    """Return what a reader must know to compare."""
    packages = [*ALWAYS, *(name for peer in peers for name in kind_of(peer).packages)]
    return {
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": " ".join([f"python -m {module}", *sys.argv[1:]]),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0,
        "memory_gib": memory(),
        "servers": servers,
        "packages": {name: installed(name) for name in dict.fromkeys(packages) if installed(name)},
    }


def processor() -> str:
    with open("/proc/cpuinfo") if Path("/proc/cpuinfo").exists() else open(os.devnull) as file:
        for line in file:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def memory() -> float:
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)


class IdleMachine:
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
