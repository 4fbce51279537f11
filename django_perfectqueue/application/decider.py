"""What becomes of a task, apart from the code that runs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from asgiref.sync import iscoroutinefunction, sync_to_async

from django_perfectqueue.exceptions import UndefinedDecisionError
from django_perfectqueue.lib.checks import nearest
from django_perfectqueue.queue import AcquiredTask, Queue

from .error_policy import follow

if TYPE_CHECKING:
    from .handler import Application

RESERVED = {"adecide", "decide", "handler", "queue", "task"}


class Decider:
    """
    Makes a handler's decisions; each is a method, asked for by its name.

    Keep here what settles tasks and submits what follows, so that it can be tested
    without the work.
    """

    def __init__(self, handler: Application) -> None:
        self.handler = handler

    @property
    def task(self) -> AcquiredTask:
        return self.handler.task

    @property
    def queue(self) -> Queue:
        return self.handler.queue

    def decide(self, decision: str, **given: object) -> Any:
        """
        Call the method of this name.

        Raise UndefinedDecisionError when it does not exist.
        """
        return self._named(decision)(**given)

    async def adecide(self, decision: str, **given: object) -> Any:
        """Do what decide() does, from a coroutine; a decision that is none runs in a thread."""
        method = self._named(decision)
        return await (method if iscoroutinefunction(method) else sync_to_async(method))(**given)

    def _named(self, decision: str) -> Callable[..., object]:
        method = None if decision in RESERVED else getattr(self, decision, None)
        if decision.startswith("__") or not callable(method):
            known = [name for name in dir(type(self)) if name[0] != "_" and name not in RESERVED]
            near = nearest(decision, known)
            raise UndefinedDecisionError(
                f"{type(self).__name__} has no decision '{decision}'.{near}"
            )
        found: Callable[..., object] = method
        return found

    def unexpected_error_raised(self, error: BaseException) -> None:
        """
        Do what the handler's rules say: have the task tried again later, discard it, or fail
        it, as when its attempts are spent.
        """
        follow(self.task, self.handler, error)
