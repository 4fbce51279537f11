"""
Which task a log record is about, for the project's LOGGING.

While a task runs, every record that its thread or coroutine logs can name the task: those
of this package, and those of the handler and of all that it calls. Data is never logged,
and what others log of it can be masked.
"""

from __future__ import annotations

import json
import logging
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from . import tracing
from .lib.printable import printable
from .lib.running import running
from .payload.context import STARS, masked

FIELDS = ("pq_queue", "pq_key", "pq_type", "pq_user", "pq_attempt", "pq_worker")
NOTHING: Mapping[str, object] = dict.fromkeys(FIELDS, "")

STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}

__all__ = ["FIELDS", "JsonFormatter", "Masked", "TaskContext", "about", "context"]

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
            mask(record, task)
        return True


def mask(record: logging.LogRecord, task: Any) -> None:
    try:
        text = record.getMessage()
    except Exception:
        text = ""  # The formatter will report the error.
    if (masked_text := task.redacted(text)) != text:
        record.msg, record.args = masked_text, ()
    if record.exc_info and record.exc_info[0] is not None and not record.exc_text:
        traceback = PLAIN.formatException(record.exc_info)
        if (masked_text := task.redacted(traceback)) != traceback:
            # Formatters print this, if it is there, in place of what they would make.
            record.exc_text = masked_text
    for name in ("exc_text", "stack_info"):
        if text := getattr(record, name):
            setattr(record, name, task.redacted(text))
    for name, value in vars(record).items():
        if name not in STANDARD:
            setattr(record, name, mask_extra(name, value, task))


def mask_extra(name: str, value: object, task: Any) -> object:
    """Return what was given as ``extra`` with stars; in place of what is nested too deep."""
    try:
        return masked_value(masked({name: value})[name], task)
    except RecursionError:
        return STARS


def masked_value(value: object, task: Any) -> object:
    if isinstance(value, str):
        return task.redacted(value)
    if isinstance(value, Mapping):
        return {name: masked_value(inner, task) for name, inner in value.items()}
    return [masked_value(inner, task) for inner in value] if isinstance(value, list) else value


class JsonFormatter(logging.Formatter):
    """
    Writes each record as a JSON object on a line of its own.

    It has the time (UTC, ISO 8601), the level, the logger, the process and the message;
    the task that runs, with no filter needed; what was given as ``extra``; where there is
    a trace, ``trace_id`` and ``span_id``; and the traceback as text. What JSON does not
    know is written as its ``repr()``.
    """

    host = socket.gethostname()

    def format(self, record: logging.LogRecord) -> str:
        facts = self.record_facts(record)
        try:
            return json.dumps(facts, default=repr, allow_nan=False)
        except (TypeError, ValueError, RecursionError):
            return json.dumps({name: plain(value) for name, value in facts.items()})

    def record_facts(self, record: logging.LogRecord) -> dict[str, object]:
        given = {name: value for name, value in vars(record).items() if name not in STANDARD}
        task = {**context(), **given}
        return {
            "time": self.formatTime(record),
            "level": record.levelname,
            "logger": record.name,
            "host": self.host,
            "pid": record.process,
            "message": record.getMessage(),
            **{name: value for name, value in task.items() if name not in FIELDS or value != ""},
            **{name: value for name, value in tracing.ids().items() if name not in given},
            **self.trouble(record),
        }

    def formatTime(  # noqa: N802
        self, record: logging.LogRecord, datefmt: str | None = None
    ) -> str:
        moment = time.gmtime(record.created)
        return time.strftime("%Y-%m-%dT%H:%M:%S", moment) + f".{int(record.msecs):03}Z"

    def trouble(self, record: logging.LogRecord) -> dict[str, str]:
        found = {}
        if record.exc_info and record.exc_info[0] is not None:
            found["error"] = record.exc_info[0].__qualname__
            found["traceback"] = record.exc_text or self.formatException(record.exc_info)
        elif record.exc_text:
            found["traceback"] = record.exc_text
        if record.stack_info:
            found["stack"] = self.formatStack(record.stack_info)
        return found


def plain(value: object) -> object:
    return value if isinstance(value, str | int | None) else repr(value)
