"""Keeps what handlers log, beside what the project's own logging does with it."""

from __future__ import annotations

import logging
import os

from django_perfectqueue.exceptions import PerfectQueueError
from django_perfectqueue.lib.running import running
from django_perfectqueue.queue import add_line

OWN = ("django_perfectqueue", "django.tasks", "django_tasks")
BELOW = tuple(f"{name}." for name in OWN)


class LogCapture(logging.Handler):
    """
    Adds each record that is logged while a task runs to the notes of its attempt.

    It stands at the root logger, and takes no lock: an attempt that is broken off here, or
    a process that is forked, leaves none behind. What is logged where nobody else handles
    it goes where it would go without this handler.
    """

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
        """Tell whether no other handler gets the records of a logger."""
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
        # What is logged on the way, by a codec perhaps, is no one's.
        token = running.set(None)
        try:
            add_line(task, record.created, record.levelname, record.name, said(record))
        except PerfectQueueError:
            raise  # The attempt is broken off, in this very moment.
        except Exception:
            return  # Those who print it say what is wrong with it.
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
    """Keep records from this level on; None keeps none."""
    end()
    if level is not None:
        logging.getLogger().addHandler(LogCapture(level))


def end() -> None:
    root = logging.getLogger()
    for handler in [one for one in root.handlers if isinstance(one, LogCapture)]:
        root.removeHandler(handler)
