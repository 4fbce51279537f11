"""How one attempt ended, and telling those who listen."""

from __future__ import annotations

from dataclasses import dataclass

from django.dispatch import Signal

from django_perfectqueue import signals, store
from django_perfectqueue.application import Application
from django_perfectqueue.queue import AcquiredTask

SIGNALS: dict[str, Signal] = {
    "finished": signals.task_finished,
    "retried": signals.task_retried,
    "released": signals.task_released,
    "failed": signals.task_failed,
    "cancelled": signals.task_cancelled,
}


@dataclass(slots=True)
class Ending:
    """
    One attempt that is over.

    ``word`` is what became of the task: finished, retried, failed, cancelled, released,
    preempted, or left to its lease. With a ``completion`` it has yet to be written.
    """

    word: str
    task: AcquiredTask
    handler: type[Application] | None
    seconds: float
    completion: store.Completion | None = None
    error: BaseException | None = None
    stop: bool = False


def announce(word: str, task: AcquiredTask, handler: type[Application] | None) -> None:
    """Send the signal for what has become of a task, if anyone listens."""
    signal = SIGNALS.get(word)
    if signal is not None and signal.receivers:
        with store.calls_of_others():
            signal.send_robust(sender=handler, queue=task.lease.queue, task=task)


async def announce_start_async(task: AcquiredTask, handler: type[Application]) -> None:
    """Send the signal from an event loop: receivers that are functions run in its other thread."""
    if signals.task_started.receivers:
        terms = {"queue": task.lease.queue, "task": task}
        await signals.task_started.asend_robust(sender=handler, **terms)


def announce_start(task: AcquiredTask, handler: type[Application]) -> None:
    if signals.task_started.receivers:
        signals.task_started.send_robust(sender=handler, queue=task.lease.queue, task=task)
