"""
What a project may listen to: one signal for each step on a task's way.

Each is sent once the change is committed, by the process that has made it, with the
task's ``queue``, ``key``, ``type`` and ``user``. Where the sender holds the task, ``task``
is the AcquiredTask, ``sender`` the handler's class and ``error`` what has ended the
attempt; else these are None. A receiver that raises disturbs nobody, and a signal that
nobody listens to costs nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any, NamedTuple

from django.dispatch import Signal

from .lib.printable import printable

logger = logging.getLogger("django_perfectqueue.signals")

task_submitted = Signal()
task_put_back = Signal()
task_started = Signal()
task_finished = Signal()
task_retried = Signal()
task_snoozed = Signal()
task_released = Signal()
task_failed = Signal()
task_discarded = Signal()
task_cancelled = Signal()
task_expired = Signal()
task_lost = Signal()
task_preempted = Signal()


class TaskNames(NamedTuple):
    """Which task a signal is about."""

    queue: str
    key: str
    type: str
    user: str

    @classmethod
    def of(cls, named: Any) -> TaskNames:
        """Return the task of a lease, a submission or a row."""
        return cls(named.queue, named.key, named.type, named.user)


def is_heard(*signals: Signal) -> bool:
    """Return whether a signal has receivers for events without a handler as the sender."""
    return any(signal.receivers and signal.has_listeners(None) for signal in signals)


def send(
    signal: Signal,
    names: TaskNames,
    *,
    sender: object = None,
    task: object = None,
    error: BaseException | None = None,
) -> None:
    """Send a signal. What a receiver raises goes to the log, but for Ctrl-C."""
    try:
        signal.send_robust(sender=sender, task=task, error=error, **names._asdict())
    except KeyboardInterrupt:
        raise
    except BaseException:
        logger.exception("A receiver would have ended the process. key=%s", printable(names.key))


def send_all(signal: Signal, tasks: Iterable[TaskNames]) -> None:
    for names in tasks:
        send(signal, names)
