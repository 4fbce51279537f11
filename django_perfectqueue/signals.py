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
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from django.dispatch import Signal

from .lib.printable import printable

logger = logging.getLogger("django_perfectqueue.signals")

#: A task is stored, and the caller's transaction has committed; one signal for each task.
task_submitted = Signal()
#: Someone retried a failed, cancelled or expired task, or one that waited for its time.
task_put_back = Signal()
#: By the processor: the handler is about to run.
task_started = Signal()
#: By the processor: the end is stored, which may be with the next acquire. By the process that
#: force-finishes: ``task`` is None, and the processor that had it sends ``task_preempted``.
task_finished = Signal()
#: By the processor or reaper: the attempt ended in an error, and the task will be tried again.
task_retried = Signal()
#: By the processor: the handler put the task off.
task_snoozed = Signal()
#: By the processor: the task was given back, since its processor stops, for example.
task_released = Signal()
#: By the processor or reaper: the task was given up. After too many crashes, without ``task``,
#: by the process that takes it back.
task_failed = Signal()
#: By the processor or reaper: the handler, or a rule, discarded the task; its status is cancelled.
task_discarded = Signal()
#: By the processor or reaper: a running task was cancelled on request. Without ``task``: a
#: waiting one was.
task_cancelled = Signal()
#: By the processor that meets it, without ``task``: its ``expires_at`` passed before it could
#: start.
task_expired = Signal()
#: By the process that takes it back, without ``task``: its process died, or its lease ran out. The
#: task runs again, unless ``task_failed`` or ``task_cancelled`` follows.
task_lost = Signal()
#: By the processor that lost it: the handler has ended, but the task was no longer its own; nothing
#: was written.
task_preempted = Signal()


# By the words for what becomes of an attempt: the signals of those that have one.
ENDINGS: Mapping[str, Signal] = {
    "finished": task_finished,
    "retried": task_retried,
    "snoozed": task_snoozed,
    "failed": task_failed,
    "discarded": task_discarded,
    "cancelled": task_cancelled,
    "released": task_released,
    "preempted": task_preempted,
}


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
        logger.exception(
            "A receiver raised an exit; the process continues. key=%s", printable(names.key)
        )


def send_all(signal: Signal, tasks: Iterable[TaskNames]) -> None:
    for names in tasks:
        send(signal, names)
