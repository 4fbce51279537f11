"""
Database-backed background tasks for Django, shared fairly between users.

Here is the task that runs, for code that was not given it.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, ParamSpec

from asgiref.sync import sync_to_async

from .lib import early_signals
from .lib.running import running
from .lib.version import __version__
from .payload.codecs import JSON
from .payload.journal import part_of

if TYPE_CHECKING:
    from .queue import AcquiredTask

early_signals.leave_to_system()

__all__ = [
    "__version__",
    "asleep",
    "asleep_until",
    "aversion",
    "await_for",
    "current_task",
    "log",
    "progress",
    "sleep",
    "sleep_until",
    "step",
    "version",
    "wait_for",
    "yield_",
]

P = ParamSpec("P")


def current_task() -> AcquiredTask | None:
    """Return the task whose handler runs in this thread or coroutine, or None."""
    task: AcquiredTask | None = running.get()
    return task


def progress(
    part: float | None = None, stage: str | None = None, *, of: float | None = None
) -> None:
    """
    Report the progress of the task that runs here; do nothing where none runs.

    Raise ValueError as ``AcquiredTask.progress()`` does.
    """
    task = running.get()
    if task is None:
        part_of(part, of)
    else:
        task.progress(part, stage, of=of)


def log(text: object) -> None:
    """Add a line to the log of the task that runs here; do nothing where none runs."""
    task = running.get()
    if task is not None:
        task.log(text)


def step(name: str, function: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs) -> JSON:
    """
    Run a named step of the task that runs here, as ``AcquiredTask.step()`` does; where none
    runs, only call the function.
    """
    task = running.get()
    return function(*args, **kwargs) if task is None else task.step(name, function, *args, **kwargs)


def version(name: str) -> bool:
    """
    Return on which side of a change of code the task that runs here is, as
    ``AcquiredTask.version()`` does; where none runs, True.
    """
    task = running.get()
    return True if task is None else task.version(name)


def yield_() -> None:
    """Let others go first, as ``AcquiredTask.yield_()`` does; do nothing where no task runs."""
    task = running.get()
    if task is not None:
        task.yield_()


def sleep(name: str, duration: timedelta | float | str) -> None:
    """
    Have the task that runs here wait for so long, as ``AcquiredTask.sleep()`` does; do nothing
    where none runs.
    """
    task = running.get()
    if task is not None:
        task.sleep(name, duration)


def sleep_until(name: str, when: datetime) -> None:
    """Do the same until a time, as ``AcquiredTask.sleep_until()`` does."""
    task = running.get()
    if task is not None:
        task.sleep_until(name, when)


def wait_for(name: str, timeout: timedelta | float | str | None = None) -> JSON:
    """
    Have the task that runs here wait for a signal, as ``AcquiredTask.wait_for()`` does; where none
    runs raise NotSupportedError.
    """
    task = running.get()
    if task is None:
        from .exceptions import NotSupportedError

        raise NotSupportedError(f"No task runs here that could wait for a signal '{name}'.")
    result: JSON = task.wait_for(name, timeout)
    return result


aversion = sync_to_async(version)
asleep = sync_to_async(sleep)
asleep_until = sync_to_async(sleep_until)
await_for = sync_to_async(wait_for)
