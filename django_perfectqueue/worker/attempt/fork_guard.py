"""Guard against forks in handlers."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

R = TypeVar("R")


def exit_returning_fork(run: Callable[[], R]) -> R:
    """Run a handler; exit a child that it forked and that returns, too."""
    pid = os.getpid()
    try:
        return run()
    finally:
        if os.getpid() != pid:
            os._exit(1)
