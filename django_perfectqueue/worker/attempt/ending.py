"""The result of one attempt, and its signals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from django.dispatch import Signal

from django_perfectqueue import signals, store
from django_perfectqueue.application import Application
from django_perfectqueue.queue import AcquiredTask
from django_perfectqueue.signals import TaskNames

SIGNALS: dict[str, Signal] = {
    "finished": signals.task_finished,
    "retried": signals.task_retried,
    "snoozed": signals.task_snoozed,
    "released": signals.task_released,
    "failed": signals.task_failed,
    "discarded": signals.task_discarded,
    "cancelled": signals.task_cancelled,
    "preempted": signals.task_preempted,
}


@dataclass(slots=True)
class AttemptEnd:
    """
    The result of one attempt.

    ``word`` is the outcome: finished, retried, snoozed, failed, discarded,
    cancelled, released, preempted, left to its lease, or crashed with its processor. With
    a ``completion`` it is not written yet.
    """

    word: str
    task: AcquiredTask
    handler: type[Application] | None
    seconds: float
    completion: store.Completion | None = None
    error: BaseException | None = None
    stop: bool = False


def announced(endings: Sequence[AttemptEnd]) -> set[tuple[str, object]]:
    """Return the outcomes, each with its handler, whose signals have receivers."""
    return {
        (word, handler)
        for word, handler in {(ending.word, ending.handler) for ending in endings}
        if word in SIGNALS and SIGNALS[word].receivers and SIGNALS[word].has_listeners(handler)
    }


def announce(
    word: str,
    task: AcquiredTask,
    handler: type[Application] | None,
    error: BaseException | None = None,
) -> None:
    """Send the signal of an outcome, if it has receivers."""
    signal = SIGNALS.get(word)
    if signal is not None and signal.receivers:
        with store.shared_operations():
            signals.send(signal, TaskNames.of(task.lease), sender=handler, task=task, error=error)


async def announce_start_async(task: AcquiredTask, handler: type[Application]) -> None:
    """Send the signal from an event loop; synchronous receivers run in its other thread."""
    if signals.task_started.receivers:
        await signals.asend(
            signals.task_started, TaskNames.of(task.lease), sender=handler, task=task
        )


def announce_start(task: AcquiredTask, handler: Application | None) -> None:
    """Send the signal of a start, if there is a handler and the signal has receivers."""
    if handler is not None and signals.task_started.receivers:
        names = TaskNames.of(task.lease)
        signals.send(signals.task_started, names, sender=type(handler), task=task)
