"""On what it was measured."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from benchmarks.peers import installed, kind_of

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
