"""Keeping to one process."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any


def exit_returning_fork(run: Callable[[], Any]) -> Any:
    """Run a handler, and end a process that it has forked and that comes back as well."""
    pid = os.getpid()
    try:
        return run()
    finally:
        if os.getpid() != pid:
            os._exit(1)
