"""Trying again after certain errors, by a rule of their own."""

from __future__ import annotations

import logging
import random
from typing import TYPE_CHECKING

from django_perfectqueue import store
from django_perfectqueue.backoff import next_wait
from django_perfectqueue.conf import options
from django_perfectqueue.lib.printable import printable

from ..error_policy import ruling
from .not_errors import NO_ERRORS

if TYPE_CHECKING:
    from ..handler import Application
    from .chain import APerform, Perform

logger = logging.getLogger("django_perfectqueue.runner")


class RetryOn:
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

    def around_perform(self, handler: Application, perform: Perform) -> object:
        try:
            return perform()
        except NO_ERRORS:
            raise
        except self.errors as error:
            if (wait := self.wait_of(handler, error)) is None:
                raise
            handler.task.retry(wait, why=store.Failure.of(error))
            self.log_retry(handler, error, wait)
            return None

    async def aaround_perform(self, handler: Application, perform: APerform) -> object:
        try:
            return await perform()
        except NO_ERRORS:
            raise
        except self.errors as error:
            if (wait := self.wait_of(handler, error)) is None:
                raise
            await handler.task.aretry(wait, why=store.Failure.of(error))
            self.log_retry(handler, error, wait)
            return None

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

    def log_retry(self, handler: Application, error: Exception, wait: float) -> None:
        lease = handler.task.lease
        logger.warning(
            "A task is tried again after an error. queue=%s key=%s type=%s attempt=%s"
            " seconds=%.1f error=%s",
            printable(lease.queue),
            printable(lease.key),
            printable(lease.type),
            lease.tries,
            wait,
            type(error).__qualname__,
        )
