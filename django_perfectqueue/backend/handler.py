"""Runs a Django task, and tells Django's signals of it."""

from __future__ import annotations

import functools
import logging
import math
import sys
from typing import Any, ClassVar

from asgiref.sync import sync_to_async
from django.utils import timezone

from django_perfectqueue import signals, store
from django_perfectqueue.application import Application, Decider
from django_perfectqueue.application.decider import wait_after_error
from django_perfectqueue.application.handler import is_async
from django_perfectqueue.compat import TaskContext, normalize_json, task_backends
from django_perfectqueue.compat import signals as django_signals
from django_perfectqueue.conf import options
from django_perfectqueue.exceptions import CancelRequestedError
from django_perfectqueue.logs import Masked
from django_perfectqueue.queue import AcquiredTask

from .call import Call
from .definition import word
from .results import FAILED, SUCCESSFUL, change, error_raised, running

logger = logging.getLogger("django_perfectqueue.backend")

# Django's own receivers log the exception of a task that has failed.
for _name in ("django.tasks", "django_tasks"):
    logging.getLogger(_name).addFilter(Masked())


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
        vars(self)["max_attempts"] = self.attempts()

    def attempts(self) -> int:
        """Return what the call says, or else its definition, or else the backend."""
        given = self.call.words.get("max_attempts", word(self.definition, "max_attempts"))
        usual = options().MAX_ATTEMPTS if self.backoff else 1
        return int(given or self.backend.options.get("max_attempts") or usual)

    def before_perform(self) -> bool:
        result = running(self.task, self.call, self.definition)
        self.task.django_result = result
        django_signals.task_started.send_robust(sender=type(self.backend), task_result=result)
        return True

    def arguments(self) -> tuple[list[Any], dict[str, Any]]:
        result = self.task.django_result
        context: list[Any] = [TaskContext(task_result=result)] if result.task.takes_context else []
        return [*context, *result.args], result.kwargs

    def perform(self) -> Any:
        args, kwargs = self.arguments()
        return self.returned(self.task.django_result.task.call(*args, **kwargs))

    def returned(self, value: Any) -> Any:
        plain = normalize_json(value)
        change(self.task.django_result, _return_value=plain)
        return plain


class CoroutineTask(DjangoTask):
    """Runs a coroutine function, in the event loop of its processor."""

    async def before_perform(self) -> bool:  # type: ignore[override]
        return await sync_to_async(super().before_perform)()

    async def perform(self) -> Any:
        args, kwargs = self.arguments()
        return self.returned(await self.task.django_result.task.acall(*args, **kwargs))


@functools.cache
def handler_of(definition: Any) -> type[DjangoTask]:
    """Return the handler that runs this task."""
    function = definition.func
    names = {
        "definition": definition,
        "time_limit": time_limit_of(definition),
        "__module__": function.__module__,
        "__qualname__": function.__qualname__,
        "__doc__": function.__doc__,
    }
    kind = CoroutineTask if is_async(function) else DjangoTask
    made = type(function.__name__, (kind,), names)
    for signal, tell in ENDINGS.items():
        signal.connect(tell, sender=made)
    return made


def time_limit_of(definition: Any) -> float | None:
    """Return the seconds that an attempt may take by its definition, or else by its backend."""
    usual = task_backends[definition.backend].options.get("time_limit")
    limit: float | None = word(definition, "time_limit") or usual
    return limit


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
