"""Report the errors that handlers raise."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING

from asgiref.sync import sync_to_async
from django.core.mail import mail_admins

from django_perfectqueue.lib.imports import path_of
from django_perfectqueue.lib.printable import printable

from .not_errors import NO_ERRORS

if TYPE_CHECKING:
    from ..handler import Application
    from .chain import APerform, Perform

Facts = dict[str, str | int]

logger = logging.getLogger("django_perfectqueue.errors")


def log_error(error: BaseException, facts: Facts) -> None:
    """Log an error with its traceback, and with the task in ``record.task``."""
    logger.error(
        "A handler raised. %s", as_text(facts), exc_info=error, extra={"task": dict(facts)}
    )


def mail_error(error: BaseException, facts: Facts) -> None:
    """Mail an error to ADMINS, by Django's mail_admins()."""
    subject = f"Task {printable(str(facts['key']))}: {type(error).__qualname__}"
    mail_admins(subject, f"{as_text(facts, between=chr(10))}\n\n{facts['traceback']}")


class ReportErrors:
    """
    Calls a reporter with each error that a handler raises, and lets the error go on.

    The reporter gets the error and a dict of facts about the task: queue, key, type, user,
    attempt, handler and traceback; never its data, and what is sensitive in them is blacked
    out of the traceback. What it raises is logged, and does not mask the error.
    """

    def __init__(self, report: Callable[[Exception, Facts], object] = log_error) -> None:
        self.report = report

    def around_perform(self, handler: Application, perform: Perform) -> object:
        try:
            return perform()
        except NO_ERRORS:
            raise
        except Exception as error:
            self.send_report(handler, error)
            raise

    async def aaround_perform(self, handler: Application, perform: APerform) -> object:
        try:
            return await perform()
        except NO_ERRORS:
            raise
        except Exception as error:
            await sync_to_async(self.send_report)(handler, error)
            raise

    def send_report(self, handler: Application, error: Exception) -> None:
        facts = facts_of(handler, error)
        try:
            self.report(error, facts)
        except Exception:
            logger.exception("A reporter of errors raised. %s", as_text(facts))


def facts_of(handler: Application, error: BaseException) -> Facts:
    lease = handler.task.lease
    return {
        "queue": lease.queue,
        "key": lease.key,
        "type": lease.type,
        "user": lease.user,
        "attempt": lease.tries,
        "handler": path_of(type(handler)),
        "traceback": handler.task.redacted("".join(traceback.format_exception(error))),
    }


def as_text(facts: Facts, *, between: str = " ") -> str:
    texts = {name: str(value) for name, value in facts.items() if name != "traceback"}
    return between.join(f"{name}={printable(value)}" for name, value in texts.items())
