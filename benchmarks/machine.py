"""On what it was measured."""

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
from tests.databases.lifetime import folder_for_sockets

ALWAYS = ("django", "psycopg", "psycopg2-binary", "mysqlclient")


def described(peers: Iterable[str], servers: dict[str, str]) -> dict[str, Any]:
    """Return what a reader must know to compare."""
    packages = [*ALWAYS, *(name for peer in peers for name in kind_of(peer).packages)]
    return {
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": " ".join(["python -m benchmarks", *sys.argv[1:]]),
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


def sync_time(times: int = 25) -> float:
    """Return the median of what it takes to write 8 KiB and have the disk keep them, in µs."""
    block, spent = b"x" * 8192, []
    with tempfile.TemporaryFile(buffering=0, dir=folder_for_sockets()) as file:
        for _ in range(times):
            began = time.perf_counter()
            os.pwrite(file.fileno(), block, 0)
            os.fsync(file.fileno())
            spent.append(time.perf_counter() - began)
    return statistics.median(spent) * 1e6
