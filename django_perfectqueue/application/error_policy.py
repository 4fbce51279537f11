"""What becomes of a task whose handler raised an error, and who decides it."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from asgiref.sync import iscoroutinefunction, sync_to_async

from django_perfectqueue import store
from django_perfectqueue.backoff import (
    Backoff,
    Exponential,
    Fixed,
    backoff_at,
    error_rules,
    restored,
)
from django_perfectqueue.conf import options
from django_perfectqueue.exceptions import UndefinedDecisionError
from django_perfectqueue.lib.checks import nearest
from django_perfectqueue.lib.durations import LONGEST, is_number
from django_perfectqueue.lib.imports import path_of
from django_perfectqueue.lib.printable import printable
from django_perfectqueue.queue import AcquiredTask, Queue
from django_perfectqueue.verdicts import Discard, Retry, Snooze, Verdict, wait_of

if TYPE_CHECKING:
    from .base import Application

    Handler: TypeAlias = "Application | type[Application] | None"
    """One that was made for the task, or its class where that can't be done, or none."""

logger = logging.getLogger("django_perfectqueue.runner")

FINAL = {error_rules.DISCARD_ON: "discard", error_rules.FAIL_ON: "fail"}


@dataclass(frozen=True, slots=True)
class Ruling:
    """
    What is to become of a task.

    ``word`` is the verb: retry, snooze, discard or fail. ``wait`` is in seconds.
    """

    word: str
    wait: float = 0.0
    reason: str = ""

    def settle(self, task: AcquiredTask, why: store.Failure) -> None:
        if self.word == "retry":
            task.retry(self.wait, why=why)
        elif self.word == "snooze":
            task.snooze(self.wait)
        elif self.word == "discard":
            task.discard(self.reason, why=why)
        else:
            task.fail(why=why)


def ruling(task: AcquiredTask, handler: Handler, error: BaseException) -> Ruling:
    """
    Return what becomes of a task whose handler raised this error.

    What it asks for itself goes first, then the handler's rule for its class, then the
    backoff, until the attempts are spent: of the submit, or else of the handler.
    """
    if isinstance(error, Snooze):
        return Ruling("snooze", Snooze(error.after).after)
    if isinstance(error, Discard):
        return Ruling("discard", reason=error.reason)
    rule, waits = error_rules.rule_for(error_rules.rules_of(handler), cause(error))
    if rule in FINAL and not isinstance(error, Retry):
        return Ruling(FINAL[rule])
    asked = isinstance(error, Retry) or rule == error_rules.RETRY_ON
    if task.lease.errors + 1 >= most_attempts(task, handler, asked=asked):
        return Ruling("fail")
    if isinstance(error, Retry) and error.after is not None:
        return Ruling("retry", wait_of(error, error.after))
    wait = wait_by(waits, task, handler, error)
    return Ruling("fail") if wait is None else Ruling("retry", wait)


def cause(error: BaseException) -> BaseException:
    """Return the error to report: the cause of a verdict, if it has one."""
    if isinstance(error, Verdict) and error.__cause__ is not None:
        return error.__cause__
    return error


def failure(error: BaseException) -> store.Failure:
    """Return what is stored of an error; a plain form where the full one fails."""
    source = cause(error)
    try:
        whole = store.Failure.of(error)
        if source is error:
            return whole
        inner = store.Failure.of(source)
        message = str(error) or inner.message
        return store.Failure(error=inner.error, message=message, traceback=whole.traceback)
    except Exception:
        return plain_failure(error)


def plain_failure(error: BaseException) -> store.Failure:
    return store.Failure(error=path_of(type(cause(error))))


def most_attempts(task: AcquiredTask, handler: Handler, *, asked: bool) -> int:
    """Return how many attempts may end in an error, by the submit, or else by the handler."""
    if task.lease.context is not None and (given := task._known_context.get("max_attempts")):
        return int(given)
    most = getattr(handler, "max_attempts", None)
    if asked:
        most = getattr(handler, "attempts_when_asked", None) or most
    return int(most or options().MAX_ATTEMPTS)


def wait_by(
    waits: object, task: AcquiredTask, handler: Handler, error: BaseException
) -> float | None:
    """
    Return the seconds until the next try, or None for no retry.

    Asked are the submit, the rule of the error's class, the handler and the settings, of which
    the first that has something to say is heard. One that raises or returns nonsense is not.
    """
    try:
        if task.lease.context is not None and (kept := task._known_context.get("backoff")):
            return asked_of(restored(*kept), task, handler, error)
        usual_backoff: object = options().BACKOFF
        if isinstance(usual_backoff, str):
            usual_backoff = backoff_at(usual_backoff)
        for backoff in (waits, own_backoff(handler), usual_backoff):
            if backoff is not None:
                return asked_of(backoff, task, handler, error)
    except BaseException:
        logger.exception(
            "A backoff failed; the default wait applies. type=%s key=%s",
            printable(task.type),
            printable(task.key),
        )
    return usual(handler).wait(task.lease.errors + 1)


def own_backoff(handler: Handler) -> object:
    backoff = getattr(handler, "backoff", None)
    if isinstance(handler, type) and not isinstance(backoff, Backoff):
        # What has no instance can't be asked.
        backoff = None
    if backoff is None and getattr(handler, "retry_wait", None) is not None:
        return usual(handler)
    return backoff


def usual(handler: Handler) -> Backoff:
    first, longest = getattr(handler, "retry_wait", None), options().RETRY_WAIT_LIMIT
    return Exponential(options().RETRY_WAIT if first is None else first, longest)


def asked_of(
    backoff: Any, task: AcquiredTask, handler: Handler, error: BaseException
) -> float | None:
    """
    Return the seconds that a backoff gives.

    Raise TypeError for an invalid wait.
    """
    source = cause(error)
    if isinstance(backoff, int | float | str | timedelta):
        backoff = Fixed(backoff)
    if isinstance(backoff, Backoff):
        wait: object = backoff.wait(task.lease.errors + 1)
    elif inspect.ismethod(backoff) and backoff.__self__ is handler:
        wait = backoff(source)
    else:
        has_none = handler is None or isinstance(handler, type)
        wait = backoff(
            source, task if has_none else cast("Application", handler).for_backoff(source)
        )
    if wait is None:
        return None
    seconds = wait.total_seconds() if isinstance(wait, timedelta) else wait
    if not is_number(seconds) or not seconds <= LONGEST:
        raise TypeError(f"backoff must return a number of seconds or None, not {wait!r}.")
    return max(0.0, float(seconds))


# What becomes of a task, apart from the code that runs it.


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
        """The task about which it decides."""
        return self.handler.task

    @property
    def queue(self) -> Queue:
        """The queue that the task came from."""
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
        ruling(self.task, self.handler, error).settle(self.task, failure(error))
