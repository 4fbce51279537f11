"""Having a processor replaced, from within."""

from __future__ import annotations

import threading

wanted = threading.Event()


def replace_processor() -> None:
    """Have this process take no more tasks, and another take its place when its last has ended."""
    wanted.set()
