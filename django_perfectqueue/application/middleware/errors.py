"""Middleware for the errors that handlers raise: report them, or try again after some."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING

from asgiref.sync import sync_to_async

from django_perfectqueue.backoff import Backoff, Wait
from django_perfectqueue.exceptions import CancelRequestedError, PreemptedError, ProcessStopError
from django_perfectqueue.lib.imports import path_of
from django_perfectqueue.lib.printable import printable
from django_perfectqueue.verdicts import Verdict

from ..error_policy import failure, most_attempts, wait_by

if TYPE_CHECKING:
    from ..handler import Application
    from .chain import APerform, Perform

Facts = dict[str, str | int]

NO_ERRORS = (CancelRequestedError, PreemptedError, ProcessStopError, Verdict)
"""What a handler may raise that is no error of it."""

logger = logging.getLogger("django_perfectqueue.errors")
runner_logger = logging.getLogger("django_perfectqueue.runner")


class OnErrors:
    """Calls ``handle()`` with each error of a handler, in a thread where that is a coroutine."""

    def around_perform(self, handler: Application, perform: Perform) -> object:
        try:
            return perform()
        except Exception as error:
            if isinstance(error, NO_ERRORS) or not self.handle(handler, error):
                raise
            return None

    async def aaround_perform(self, handler: Application, perform: APerform) -> object:
        try:
            return await perform()
        except Exception as error:
            if isinstance(error, NO_ERRORS) or not await sync_to_async(self.handle)(handler, error):
                raise
            return None

    def handle(self, handler: Application, error: Exception) -> bool:
        """Return whether the error goes no further."""
        raise NotImplementedError


class RetryOn(OnErrors):
    """
    Has a task tried again after these errors, and leaves all others to the decider.

    What is no error it lets through, even where it is for every Exception: a verdict, say,
    or that the task is to stop.

    ``attempts`` is how many may end in an error, whichever it is; None is what the handler
    says. ``wait`` is a wait or a backoff, as in ``retry_on``; None is the handler's. After the
    last attempt the error goes up.
    """

    def __init__(
        self,
        *errors: type[Exception],
        attempts: int | None = None,
        wait: Backoff | Wait | None = None,
    ) -> None:
        if not errors:
            raise TypeError("RetryOn needs an exception: RetryOn(ConnectionError).")
        self.errors = errors
        self.attempts = attempts
        self.backoff = wait

    def handle(self, handler: Application, error: Exception) -> bool:
        task = handler.task
        most = self.attempts or most_attempts(handler, asked=True)
        if not isinstance(error, self.errors) or task.settled or task.lease.errors + 1 >= most:
            return False
        wait = wait_by(self.backoff, task, handler, error)
        if wait is None:
            return False
        task.retry(wait, why=failure(error))
        text, name = as_text(facts_of(handler)), type(error).__qualname__
        runner_logger.warning(
            "A task is tried again after an error. %s seconds=%.1f error=%s", text, wait, name
        )
        return True


class ReportErrors(OnErrors):
    """
    Calls a reporter with each error that a handler raises, and lets the error go on.

    The reporter gets the error and a dict of facts about the task: queue, key, type, user,
    attempt, handler and traceback; never its data, and what is sensitive in them is blacked
    out of the traceback. What it raises is logged, and does not mask the error.
    """

    def __init__(self, report: Callable[[Exception, Facts], object]) -> None:
        self.report = report

    def handle(self, handler: Application, error: Exception) -> bool:
        text = handler.task.redacted("".join(traceback.format_exception(error)))
        facts = {**facts_of(handler), "traceback": text}
        try:
            self.report(error, facts)
        except Exception:
            logger.exception("A reporter of errors raised. %s", as_text(facts))
        return False


def facts_of(handler: Application) -> Facts:
    lease = handler.task.lease
    names = {name: getattr(lease, name) for name in ("queue", "key", "type", "user")}
    return {**names, "attempt": lease.tries, "handler": path_of(type(handler))}


def as_text(facts: Facts) -> str:
    return " ".join(
        f"{name}={printable(str(value))}" for name, value in facts.items() if name != "traceback"
    )
