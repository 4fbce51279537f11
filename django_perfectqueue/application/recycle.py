"""Having a processor replaced, from within."""

from __future__ import annotations

import threading

wanted = threading.Event()


def replace_processor() -> None:
    """Replace this process by a new one once its running tasks have ended."""
    wanted.set()
