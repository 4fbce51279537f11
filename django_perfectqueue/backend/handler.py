"""Runs a Django task, and tells Django's signals of it."""

from __future__ import annotations

import functools
import logging
import math
import sys
from typing import Any, ClassVar

from django.utils import timezone

from django_perfectqueue import signals, store
from django_perfectqueue.application import Application, Decider
from django_perfectqueue.application.decider import wait_after_error
from django_perfectqueue.compat import TaskContext, normalize_json, task_backends
from django_perfectqueue.compat import signals as django_signals
from django_perfectqueue.conf import options
from django_perfectqueue.exceptions import CancelRequestedError
from django_perfectqueue.queue import AcquiredTask

from .call import Call
from .definition import word
from .results import FAILED, SUCCESSFUL, change, error_raised, running

logger = logging.getLogger("django_perfectqueue.backend")


class Policy(Decider):
    """Has a task tried again as its ``max_attempts`` and ``backoff`` say."""

    handler: DjangoTask

    def unexpected_error_raised(self, error: BaseException) -> None:
        note_error(self.task, error)
        if (backoff := self.handler.backoff) is None:
            return super().unexpected_error_raised(error)
        why = store.Failure.of(error)
        wait = self.wait(backoff, error)
        return self.task.fail(why=why) if wait is None else self.task.retry(wait, why=why)

    def wait(self, backoff: Any, error: BaseException) -> float | None:
        """Return what the task's own function says, where its attempts are not spent."""
        usual = wait_after_error(self.task, self.handler)
        if usual is None:
            return None
        wait = backoff(error, self.task.django_result)
        if wait is None:
            return None
        if isinstance(wait, bool) or not isinstance(wait, int | float) or not math.isfinite(wait):
            raise TypeError(f"backoff must return a number of seconds or None, not {wait!r}.")
        return max(0.0, float(wait))


class DjangoTask(Application):
    """Runs the function of a Django task with the arguments of one call."""

    decider = Policy
    is_djangos = True
    definition: ClassVar[Any]

    def __init__(self, task: AcquiredTask) -> None:
        super().__init__(task)
        self.call = Call.of(task.data)
        self.backoff = word(self.definition, "backoff")
        self.backend = task_backends[self.call.words.get("backend", self.definition.backend)]
        self.take_on_limits()

    def take_on_limits(self) -> None:
        """Take what the call says, or else its definition, or else the backend."""
        defaults = self.backend.options
        for name in ("max_attempts", "time_limit"):
            given = self.call.words.get(name, word(self.definition, name))
            vars(self)[name] = given or defaults.get(name)
        if not self.max_attempts:
            vars(self)["max_attempts"] = options().MAX_ATTEMPTS if self.backoff else 1

    def perform(self) -> Any:
        result = running(self.task, self.call, self.definition)
        self.task.django_result = result
        django_signals.task_started.send_robust(sender=type(self.backend), task_result=result)
        args = list(result.args)
        if result.task.takes_context:
            args.insert(0, TaskContext(task_result=result))
        value = normalize_json(result.task.call(*args, **result.kwargs))
        change(result, _return_value=value)
        return value


@functools.cache
def handler_of(definition: Any) -> type[DjangoTask]:
    """Return the handler that runs this task."""
    function = definition.func
    names = {
        "definition": definition,
        "__module__": function.__module__,
        "__qualname__": function.__qualname__,
        "__doc__": function.__doc__,
    }
    made = type(function.__name__, (DjangoTask,), names)
    for signal, tell in ENDINGS.items():
        signal.connect(tell, sender=made)
    return made


def finished(sender: type[DjangoTask], task: AcquiredTask, **kwargs: Any) -> None:
    tell_end(sender, task, SUCCESSFUL)


def failed(sender: type[DjangoTask], task: AcquiredTask, **kwargs: Any) -> None:
    note_error(task, sys.exc_info()[1])
    tell_end(sender, task, FAILED)


def cancelled(sender: type[DjangoTask], task: AcquiredTask, **kwargs: Any) -> None:
    if task.django_result is not None:
        reason = CancelRequestedError(f"Task '{task.key}' was cancelled.")
        task.django_result.errors.append(error_raised(reason))
    tell_end(sender, task, FAILED)


def tell_end(kind: type[DjangoTask], task: AcquiredTask, status: Any) -> None:
    """Tell Django's signal that a task has ended, unless it never began."""
    if (result := task.django_result) is None:
        return
    change(result, status=status, finished_at=timezone.now())
    backend = type(task_backends[result.backend])
    django_signals.task_finished.send_robust(sender=backend, task_result=result)


def note_error(task: AcquiredTask, error: BaseException | None) -> None:
    """Add an error to the result, where this attempt has not left one yet."""
    result = task.django_result
    if result is not None and error is not None and len(result.errors) < len(result.worker_ids):
        result.errors.append(error_raised(error))


ENDINGS = {
    signals.task_finished: finished,
    signals.task_failed: failed,
    signals.task_cancelled: cancelled,
}
