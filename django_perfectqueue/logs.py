"""
Which task a log record is about, for the project's LOGGING.

While a task runs, every record that its thread or coroutine logs can name the task: those
of this package, and those of the handler and of all that it calls. Data is never logged,
and what others log of it can be masked.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from .lib.printable import printable
from .lib.running import running
from .payload.context import STARS, masked

FIELDS = ("pq_queue", "pq_key", "pq_type", "pq_user", "pq_attempt", "pq_worker")
NOTHING: Mapping[str, object] = dict.fromkeys(FIELDS, "")

STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}

__all__ = ["FIELDS", "Masked", "TaskContext", "about", "context"]

PLAIN = logging.Formatter()


def context() -> Mapping[str, object]:
    """Return the log fields of the task that runs here: a value for each of FIELDS."""
    task = running.get()
    if task is None:
        return NOTHING
    lease = task.lease
    values = (lease.queue, lease.key, lease.type, lease.user, lease.tries, task.worker)
    return dict(zip(FIELDS, values, strict=True))


class TaskContext(logging.Filter):
    """
    Adds the task that runs to each record, and lets all of them pass.

    The attributes are ``pq_queue``, ``pq_key``, ``pq_type``, ``pq_user``, ``pq_attempt``
    and ``pq_worker``; outside of a task they are empty. What is not printable in them is
    spelt out, so that a key can't begin another line. It belongs to a handler: a filter
    of a logger does not see the records of the loggers below it.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        if not hasattr(record, "pq_key"):
            for name, value in context().items():
                setattr(record, name, printable(value) if isinstance(value, str) else value)
        return True


@contextmanager
def about(task: object) -> Iterator[None]:
    """Attribute the log records of this block to a task, though it does not run here."""
    token = running.set(task)
    try:
        yield
    finally:
        running.reset(token)


class Masked(logging.Filter):
    """
    Puts stars into each record for what is sensitive in the data of the task that runs.

    They come into the message, the traceback as text, and what was given as ``extra``; the
    exception itself is left for those who report errors. All records pass. It belongs to a
    handler, and to the first of them: a record that has gone elsewhere before was not masked.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        task = running.get()
        if task is not None and task.has_secrets:
            mask(record, task.redacted)
        return True


def mask(record: logging.LogRecord, redacted: Callable[[str], str]) -> None:
    try:
        text = record.getMessage()
    except Exception:
        text = ""  # The formatter will report the error.
    if (masked_text := redacted(text)) != text:
        record.msg, record.args = masked_text, ()
    if record.exc_info and record.exc_info[0] is not None and not record.exc_text:
        traceback = PLAIN.formatException(record.exc_info)
        if (masked_text := redacted(traceback)) != traceback:
            # Formatters print this, if it is there, in place of what they would make.
            record.exc_text = masked_text
    for name in ("exc_text", "stack_info"):
        if text := getattr(record, name):
            setattr(record, name, redacted(text))
    for name, value in vars(record).items():
        if name not in STANDARD:
            setattr(record, name, mask_extra(name, value, redacted))


def mask_extra(name: str, value: object, redacted: Callable[[str], str]) -> object:
    """Return what was given as ``extra`` with stars; in place of what is nested too deep."""
    try:
        return masked_value(masked({name: value})[name], redacted)
    except RecursionError:
        return STARS


def masked_value(value: object, redacted: Callable[[str], str]) -> object:
    if isinstance(value, str):
        return redacted(value)
    if isinstance(value, Mapping):
        return {name: masked_value(inner, redacted) for name, inner in value.items()}
    return [masked_value(inner, redacted) for inner in value] if isinstance(value, list) else value
