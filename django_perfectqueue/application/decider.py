"""What becomes of a task, apart from the code that runs it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from asgiref.sync import iscoroutinefunction, sync_to_async

from django_perfectqueue import store
from django_perfectqueue.conf import nearest, options
from django_perfectqueue.exceptions import UndefinedDecisionError
from django_perfectqueue.queue import AcquiredTask, Queue

if TYPE_CHECKING:
    from .handler import Application

RESERVED = {"adecide", "decide", "handler", "queue", "task"}


class Decider:
    """
    Makes a handler's decisions; each is a method, asked for by its name.

    Keep here what settles tasks and submits what follows, so that it can be told apart
    from the work, and tested without it.
    """

    def __init__(self, handler: Application) -> None:
        self.handler = handler

    @property
    def task(self) -> AcquiredTask:
        return self.handler.task

    @property
    def queue(self) -> Queue:
        return self.handler.queue

    def decide(self, decision: str, **given: Any) -> Any:
        """
        Call the method of this name.

        Raise UndefinedDecisionError when there is none.
        """
        return self._named(decision)(**given)

    async def adecide(self, decision: str, **given: Any) -> Any:
        """Do what decide() does, from a coroutine; a decision that is none runs in a thread."""
        method = self._named(decision)
        return await (method if iscoroutinefunction(method) else sync_to_async(method))(**given)

    def _named(self, decision: str) -> Callable[..., Any]:
        method = None if decision in RESERVED else getattr(self, decision, None)
        if decision.startswith("__") or not callable(method):
            raise UndefinedDecisionError(
                f"{type(self).__name__} has no decision '{decision}'.{self.like(decision)}"
            )
        found: Callable[..., Any] = method
        return found

    def unexpected_error_raised(self, error: BaseException) -> None:
        """Have the task tried again later, or fail it when its attempts are spent."""
        why = store.Failure.of(error)
        wait = wait_after_error(self.task, self.handler)
        if wait is None:
            self.task.fail(why=why)
        else:
            self.task.retry(wait, why=why)

    def like(self, decision: str) -> str:
        known = [name for name in dir(type(self)) if name[0] != "_" and name not in RESERVED]
        return nearest(decision, known)


def wait_after_error(
    task: AcquiredTask, handler: Application | type[Application] | None = None
) -> float | None:
    """Return the seconds until a task that raised is tried again; None when it has failed."""
    limits = options()
    most = limits.MAX_ATTEMPTS
    first = limits.RETRY_WAIT
    if handler is not None:
        most = handler.max_attempts or most
        first = first if handler.retry_wait is None else handler.retry_wait
    errors = task.lease.errors + 1
    if errors >= most:
        return None
    chance = random.random()  # noqa: S311
    return store.next_wait(errors, first=first, longest=limits.RETRY_WAIT_LIMIT, chance=chance)
