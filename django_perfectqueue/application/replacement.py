"""Having a processor replaced, from within."""

from __future__ import annotations

import resource
import sys
import threading
from pathlib import Path

STATM = Path("/proc/self/statm")

wanted = threading.Event()


def replace_processor() -> None:
    """Have this process take no more tasks, and another take its place when its last has ended."""
    wanted.set()


def resident() -> int:
    """Return how many bytes of memory this process holds, or where that can't be read, has held."""
    try:
        return int(STATM.read_bytes().split()[1]) * resource.getpagesize()
    except (OSError, IndexError, ValueError):
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024
