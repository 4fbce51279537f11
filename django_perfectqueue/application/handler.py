"""What runs a task."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from django_perfectqueue.exceptions import GracefulProcessStopError
from django_perfectqueue.queue import AcquiredTask, Queue

from .decider import Decider

Function = Callable[[AcquiredTask], Any]


class Application:
    """
    A handler: one instance runs one attempt of a task.

    What ``perform()`` returns is the task's result, and returning finishes it, unless
    the handler has settled it by itself. An exception asks the decider, which by default
    has the task tried again until ``max_attempts`` are spent.
    """

    decider: ClassVar[type[Decider]] = Decider
    auto_finish: ClassVar[bool] = True
    """False: returning leaves the task held; settle it, or it comes back when its lease lapses."""
    max_attempts: ClassVar[int | None] = None
    """How many attempts may end in an error; None is MAX_ATTEMPTS."""
    retry_wait: ClassVar[float | None] = None
    """Seconds before the second attempt, doubling from there; None is RETRY_WAIT."""

    is_djangos: ClassVar[bool] = False
    """Whether it runs a task that was defined by Django's own ``@task``."""

    interrupter: Callable[[BaseException], None] | None = None

    def __init__(self, task: AcquiredTask) -> None:
        self.task = task

    @property
    def queue(self) -> Queue:
        """The queue that the task came from, for submitting what follows."""
        return self.task.queue

    def run(self) -> Any:
        """Perform the task, with what comes before and after; return its result."""
        if not self.before_perform():
            return None
        try:
            return self.perform()
        finally:
            self.after_perform()

    def before_perform(self) -> Any:
        """Return something falsy to finish the task without performing it."""
        return True

    def perform(self) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no perform().")

    def after_perform(self) -> None:
        """Called after perform(), also when that raised."""

    def decide(self, decision: str, **options: Any) -> Any:
        """Ask the decider; raise UndefinedDecisionError when it knows no such decision."""
        return self.decider(self).decide(decision, **options)

    def kill(self, reason: BaseException) -> None:
        """
        Give the attempt up. Called from another thread, while run() is going on.

        The reason is a PreemptedError, a CancelRequestedError or a ProcessStopError. By
        default it is raised in the middle of run(), as Ctrl-C would be, and at most once
        an attempt; but on a graceful stop the handler may end in its own time. Override
        this to stop in another way, or to set a flag that perform() looks at.
        """
        if not isinstance(reason, GracefulProcessStopError):
            self.interrupt(reason)

    def interrupt(self, reason: BaseException) -> None:
        """
        Raise the reason in the thread that is in run(); do nothing when none is.

        It breaks off sleeping and waiting, but not a call into C that looks at no
        signals, such as a long query: it is raised once that returns.
        """
        if self.interrupter is not None:
            self.interrupter(reason)

    @classmethod
    def before_fork(cls) -> None:
        """Called in the supervisor before it forks a processor."""

    @classmethod
    def after_fork(cls) -> None:
        """Called in a new processor before it takes a task."""

    @classmethod
    def after_child_end(cls) -> None:
        """Called in a processor that is about to end of its own accord."""


class FunctionApplication(Application):
    """Runs a plain function, which is given the task."""

    function: ClassVar[Function]

    def perform(self) -> Any:
        return type(self).function(self.task)


def from_function(function: Function, **attributes: Any) -> type[Application]:
    """Return a handler that calls a function."""
    names = {
        "function": staticmethod(function),
        "__module__": getattr(function, "__module__", __name__),
        "__qualname__": getattr(function, "__qualname__", repr(function)),
        "__doc__": function.__doc__,
    }
    name = getattr(function, "__name__", "function")
    return type(name, (FunctionApplication,), {**names, **attributes})
