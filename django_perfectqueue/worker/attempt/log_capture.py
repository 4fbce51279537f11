"""Store what handlers log, beside the project's own logging."""

from __future__ import annotations

import logging
import os

from django_perfectqueue.lib.running import running
from django_perfectqueue.queue import add_line

OWN = ("django_perfectqueue", "django.tasks", "django_tasks")
BELOW = tuple(f"{name}." for name in OWN)


class LogCapture(logging.Handler):
    """
    Adds each record that is logged while a task runs to the notes of its attempt.

    It is a handler of the root logger and takes no lock, since an interrupt or a fork would
    leave it locked. Records without another handler go to ``logging.lastResort``, as they
    would without this one.
    """

    leaves_own = True

    def __init__(self, level: str) -> None:
        super().__init__()
        self.least = logging.getLevelName(level)
        self.pid = os.getpid()

    def handle(self, record: logging.LogRecord) -> bool:
        last = logging.lastResort
        if last is not None and record.levelno >= last.level and self.is_alone(record.name):
            last.handle(record)
        if record.levelno >= self.least and not is_own(record.name):
            self.emit(record)
        return True

    def is_alone(self, name: str) -> bool:
        """Return whether no other handler gets the records of a logger."""
        logger: logging.Logger | None = logging.getLogger(name)
        while logger is not None:
            if any(handler is not self for handler in logger.handlers):
                return False
            logger = logger.parent if logger.propagate else None
        return True

    def emit(self, record: logging.LogRecord) -> None:
        task = running.get()
        if task is None or os.getpid() != self.pid:
            return
        # A codec may log while a line is added: such a record belongs to no task.
        token = running.set(None)
        try:
            add_line(task, record.created, record.levelname, record.name, said(record))
        except Exception:
            return  # The other handlers report a record that can't be formatted.
        finally:
            running.reset(token)


def is_own(name: str) -> bool:
    return name in OWN or name.startswith(BELOW)


def said(record: logging.LogRecord) -> str:
    """Return a record's message, and its exception in a line."""
    text = record.getMessage()
    error = record.exc_info[1] if record.exc_info else None
    if error is None:
        return text
    return f"{text}\n{type(error).__qualname__}: {error}{place_of(error)}"


def place_of(error: BaseException) -> str:
    """Return where an exception was raised."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return ""
    return f" ({os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno})"


def begin(level: str | None) -> None:
    """Store records from this level on; with None, store nothing."""
    end()
    if level is not None:
        logging.getLogger().addHandler(LogCapture(level))


def end() -> None:
    root = logging.getLogger()
    for handler in [one for one in root.handlers if isinstance(one, LogCapture)]:
        root.removeHandler(handler)
