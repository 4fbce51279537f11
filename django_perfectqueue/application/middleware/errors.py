"""Middleware for the errors that handlers raise: report them, or try again after some."""

from __future__ import annotations

import logging
import random
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING

from asgiref.sync import sync_to_async
from django.core.mail import mail_admins

from django_perfectqueue import store
from django_perfectqueue.backoff import next_wait
from django_perfectqueue.conf import options
from django_perfectqueue.exceptions import CancelRequestedError, PreemptedError, ProcessStopError
from django_perfectqueue.lib.imports import path_of
from django_perfectqueue.lib.printable import printable
from django_perfectqueue.verdicts import Verdict

from ..error_policy import ruling

if TYPE_CHECKING:
    from ..handler import Application
    from .chain import APerform, Perform

Facts = dict[str, str | int]

NO_ERRORS = (CancelRequestedError, PreemptedError, ProcessStopError, Verdict)
"""What a handler may raise that is no error of it."""

logger = logging.getLogger("django_perfectqueue.errors")
runner_logger = logging.getLogger("django_perfectqueue.runner")


class OnErrors(ABC):
    """Calls ``handle()`` with each error of a handler, in a thread where that is a coroutine."""

    def around_perform(self, handler: Application, perform: Perform) -> object:
        try:
            return perform()
        except NO_ERRORS:
            raise
        except Exception as error:
            if not self.handle(handler, error):
                raise
            return None

    async def aaround_perform(self, handler: Application, perform: APerform) -> object:
        try:
            return await perform()
        except NO_ERRORS:
            raise
        except Exception as error:
            if not await sync_to_async(self.handle)(handler, error):
                raise
            return None

    @abstractmethod
    def handle(self, handler: Application, error: Exception) -> bool:
        """Return whether the error goes no further."""


class RetryOn(OnErrors):
    """
    Has a task tried again after these errors, and leaves all others to the decider.

    What is no error it lets through, even where it is for every Exception: a verdict, say,
    or that the task is to stop.

    ``attempts`` is how many may end in an error, whichever it is, and ``wait`` the seconds
    before the second one, doubling from there up to ``longest``, which is RETRY_WAIT_LIMIT
    unless it is given. What is left out is as the handler's ``max_attempts`` and
    ``retry_wait`` say. After the last attempt the error goes up.
    """

    def __init__(
        self,
        *errors: type[Exception],
        attempts: int | None = None,
        wait: float | None = None,
        longest: float | None = None,
    ) -> None:
        if not errors:
            raise TypeError("RetryOn needs an exception: RetryOn(ConnectionError).")
        self.errors = errors
        self.attempts = attempts
        self.first = wait
        self.longest = longest

    def handle(self, handler: Application, error: Exception) -> bool:
        if not isinstance(error, self.errors):
            return False
        wait = self.wait_of(handler, error)
        if wait is None:
            return False
        handler.task.retry(wait, why=store.Failure.of(error))
        facts = as_text(facts_of(handler))
        name = type(error).__qualname__
        runner_logger.warning(
            "A task is tried again after an error. %s seconds=%.1f error=%s", facts, wait, name
        )
        return True

    def wait_of(self, handler: Application, error: Exception) -> float | None:
        """Return the seconds until the next attempt; None where the error is to go up."""
        task = handler.task
        errors = task.lease.errors + 1
        if task.settled or (self.attempts is not None and errors >= self.attempts):
            return None
        what = ruling(task, handler, error)
        usual = what.wait if what.word == "retry" else None
        if self.attempts is None and usual is None:
            return None
        if self.first is None and usual is not None:
            return usual
        first = options().RETRY_WAIT if self.first is None else self.first
        longest = options().RETRY_WAIT_LIMIT if self.longest is None else self.longest
        chance = random.random()  # noqa: S311
        return next_wait(errors, first=first, longest=longest, chance=chance)


def log_error(error: BaseException, facts: Facts) -> None:
    """Log an error with its traceback, and with the task in ``record.task``."""
    logger.error(
        "A handler raised. %s", as_text(facts), exc_info=error, extra={"task": dict(facts)}
    )


def mail_error(error: BaseException, facts: Facts) -> None:
    """Mail an error to ADMINS, by Django's mail_admins()."""
    subject = f"Task {printable(str(facts['key']))}: {type(error).__qualname__}"
    mail_admins(subject, f"{as_text(facts, between=chr(10))}\n\n{facts['traceback']}")


class ReportErrors(OnErrors):
    """
    Calls a reporter with each error that a handler raises, and lets the error go on.

    The reporter gets the error and a dict of facts about the task: queue, key, type, user,
    attempt, handler and traceback; never its data, and what is sensitive in them is blacked
    out of the traceback. What it raises is logged, and does not mask the error.
    """

    def __init__(self, report: Callable[[Exception, Facts], object] = log_error) -> None:
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
    return {
        "queue": lease.queue,
        "key": lease.key,
        "type": lease.type,
        "user": lease.user,
        "attempt": lease.tries,
        "handler": path_of(type(handler)),
    }


def as_text(facts: Facts, *, between: str = " ") -> str:
    texts = {name: str(value) for name, value in facts.items() if name != "traceback"}
    return between.join(f"{name}={printable(value)}" for name, value in texts.items())
