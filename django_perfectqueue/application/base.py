"""What runs a task, and how long an attempt may take."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from types import CoroutineType
from typing import Any, ClassVar, NamedTuple, cast

from asgiref.sync import async_to_sync, sync_to_async

from django_perfectqueue.backoff.error_rules import Rule, RuleWithWaits
from django_perfectqueue.conf import Options
from django_perfectqueue.exceptions import ConfigError, GracefulProcessStopError
from django_perfectqueue.lib.imports import derived
from django_perfectqueue.payload.inputs import SIGNALS
from django_perfectqueue.queue import AcquiredTask, Queue

from .error_policy import Decider
from .middleware import arounds, is_async

Function = Callable[[AcquiredTask], object]


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
    backoff: ClassVar[Any] = None
    """
    Of an error makes the seconds until the next try, or None to give up: a Backoff such as
    Exponential, or a method that gets the error; None leaves it to ``retry_wait``.
    """
    retry_on: ClassVar[RuleWithWaits] = ()
    """Errors after which it is tried again: classes, or a dict from classes to their waits."""
    discard_on: ClassVar[Rule] = ()
    """Errors after which it is discarded."""
    fail_on: ClassVar[Rule] = ()
    """Errors after which it fails, whatever attempts are left. The nearest class wins."""
    time_limit: ClassVar[float | None] = None
    """Seconds that an attempt may run; None is TIME_LIMIT, ``float("inf")`` any time."""
    kill_wait: ClassVar[float | None] = None
    """
    Seconds to end in after it is interrupted, before it is ended by force; None is
    TASK_KILL_WAIT, ``float("inf")`` never by force.
    """

    limits: ClassVar[Iterable[str] | Mapping[str, object]] = ()
    """
    The names of the limits that its tasks keep to, as templates: ``stripe:{data[account]}``,
    ``{user}``. A mapping says what each is, such as ``{"mail": "100/min"}``: workers store it.
    """

    middleware: ClassVar[Sequence[object]] = ()
    """
    What stands around its run(), the outermost first, within that of MIDDLEWARE and of its
    base classes: functions, objects, classes or dotted paths of either.
    """
    atomic: ClassVar[bool] = False
    """
    Whether its writes to the database of the tasks and the end of its task are one
    transaction; not for coroutines.
    """

    signals: ClassVar[Mapping[str, Any]] = {}
    """
    The signals for which its page in the admin has buttons: each name with a label, which may be
    lazily translated, or with the labels of several answers. What a button sends has ``by``, who
    pressed it, and ``answer``, where there are several.
    """

    is_async: ClassVar[bool] = False
    """Whether perform() is a coroutine function, and so runs in an event loop; seen by itself."""

    is_djangos: ClassVar[bool] = False
    """Whether it runs a task that was defined by Django's own ``@task``."""

    attempts_when_asked: ClassVar[int | None] = None
    """As ``max_attempts``, where a rule or the error itself asks for another try."""

    interrupter: Callable[[BaseException], None] | None = None

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        if "is_async" not in vars(cls):
            cls.is_async = is_async(cls.perform)
        SIGNALS.require(f"{cls.__qualname__}.signals", cls.signals, ConfigError)
        if cls.atomic and cls.is_async:
            raise ConfigError(
                f"{cls.__qualname__} is a coroutine and can't be atomic: Django has no transactions"
                " there. Write it as a function."
            )

    def __init__(self, task: AcquiredTask) -> None:
        self.task = task

    @property
    def queue(self) -> Queue:
        """The queue that the task came from, for submitting what follows."""
        return self.task.queue

    def run(self) -> object:
        """Perform the task, with all that stands around it; return its result."""
        if self.is_async:
            return awaited(self.arun())
        return arounds[type(self)](self)

    async def arun(self) -> object:
        """Do what run() does, where perform() is a coroutine function."""
        return await arounds[type(self)](self)

    @classmethod
    def _bare_method(cls) -> str:
        """Return the name of the method that performs a task, without middleware."""
        if cls.is_async:
            return "_aperform"
        hooks = (cls.before_perform, cls.after_perform)
        return "perform" if hooks == UNCHANGED else "_perform"

    def _perform(self) -> object:
        """Perform the task, with what comes before and after."""
        ready = self.before_perform()
        if isinstance(ready, CoroutineType):
            ready = awaited(ready)
        if not ready:
            return None
        try:
            return self.perform()
        finally:
            after = self.after_perform()
            if isinstance(after, CoroutineType):
                awaited(after)

    async def _aperform(self) -> object:
        if not await called(self.before_perform):
            return None
        try:
            return await self.perform()
        finally:
            await called(self.after_perform)

    def before_perform(self) -> object:
        """Return something falsy to finish the task without performing it."""
        return True

    def perform(self) -> Any:
        """Do the work, and return the result; override this. It may be a coroutine function."""
        raise NotImplementedError(f"{type(self).__name__} has no perform().")

    def after_perform(self) -> object:
        """Called after perform(), also when that raised."""

    def decide(self, decision: str, **options: object) -> Any:
        """Ask the decider; raise UndefinedDecisionError when it knows no such decision."""
        return self.decider(self).decide(decision, **options)

    async def adecide(self, decision: str, **options: object) -> Any:
        """Do what decide() does, from a coroutine; the decision may be one or not."""
        return await self.decider(self).adecide(decision, **options)

    def for_backoff(self, error: BaseException) -> object:
        """Return what a backoff that is a function is given beside the error."""
        return self.task

    def kill(self, reason: BaseException) -> object:
        """
        Give the attempt up. Called from another thread, while run() is going on.

        The reason is a TimeLimitError, a CancelRequestedError, a PreemptedError or a
        ProcessStopError. By default it is raised in the middle of run(), as Ctrl-C would be:
        once an attempt, and again only where a library has caught it. On a graceful stop the
        handler may end in its own time. Override this to stop in another way, or to set a flag
        that perform() looks at.
        For the first three, a handler that goes on for ``kill_wait`` seconds is ended by
        force, with its process.
        Where perform() is a coroutine function, this may be one too.
        """
        if not isinstance(reason, GracefulProcessStopError):
            self.interrupt(reason)
        return None

    def interrupt(self, reason: BaseException) -> None:
        """
        Raise the reason in the thread that is in run(); do nothing when none is.

        It breaks off sleeping and waiting, but not a call into C that looks at no
        signals, such as a long query: it is raised once that returns. In another thread
        than the main one it breaks off no call into C at all, sleeping neither. A
        coroutine is cancelled instead, where it awaits something; the reason is the
        argument of its CancelledError.
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


def from_function(function: Function, **attributes: object) -> type[Application]:
    """Return a handler that calls a function with the task."""

    def perform(handler: Application) -> object:
        return function(handler.task)

    async def aperform(handler: Application) -> object:
        return await cast("Awaitable[object]", function(handler.task))

    # By ``function`` @scheduled finds the type of a handler.
    made = {"perform": aperform if is_async(function) else perform, **attributes}
    return derived(Application, function, function=staticmethod(function), **made)


def awaited(coroutine: object) -> object:
    """Return what a coroutine returns; called where no event loop runs."""
    return async_to_sync(result_of)(coroutine)


async def result_of(coroutine: Any) -> object:
    return await coroutine


async def called(method: Callable[[], Any]) -> object:
    """Call a method of a handler from its coroutine; one that is no coroutine in a thread."""
    if getattr(method, "__func__", None) in UNCHANGED:
        return method()
    return await (method() if is_async(method) else sync_to_async(method)())


UNCHANGED = (Application.before_perform, Application.after_perform)


# How long an attempt may take, and how long it may take to end.


NEVER = math.inf


class TimeLimits(NamedTuple):
    """
    Seconds: after ``time_limit`` a handler is interrupted, and ``kill_wait`` after that,
    for this or another reason, it is ended by force.
    """

    time_limit: float = NEVER
    kill_wait: float = NEVER


def time_limits(
    handler: type[Application] | None, given: float | None, options: Options
) -> TimeLimits:
    """
    Return what holds for an attempt: what the submitter has given, or else the handler, or
    else the settings.
    """
    limit, wait = given, None
    if handler is not None:
        limit, wait = handler.time_limit if given is None else given, handler.kill_wait
    limit = options.TIME_LIMIT if limit is None else limit
    wait = options.TASK_KILL_WAIT if wait is None else wait
    return TimeLimits(NEVER if limit is None else limit, NEVER if wait is None else wait)
