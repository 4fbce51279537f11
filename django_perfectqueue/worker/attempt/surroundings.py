"""An attempt in progress, what stands around it, and how it has ended."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, AsyncExitStack
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from asgiref.sync import _restore_context, sync_to_async
from django.core.cache import caches
from django.utils import timezone

from django_perfectqueue import logs, signals, store
from django_perfectqueue.application import Application
from django_perfectqueue.lib.printable import printable
from django_perfectqueue.lib.running import running
from django_perfectqueue.payload import context
from django_perfectqueue.queue import AcquiredTask, add_line
from django_perfectqueue.signals import ENDINGS, TaskNames
from django_perfectqueue.tracing import otel

from .event_loop import Work, is_coroutine

if TYPE_CHECKING:
    from opentelemetry.trace import Span

R = TypeVar("R")


def prepare() -> None:
    """
    Create the caches in the context of this thread, whose tasks share them.

    Django keeps caches and their connections per context. Created in the context of a
    task, each task would open new connections.
    """
    for alias in caches:
        with contextlib.suppress(Exception):
            caches[alias]


def within(task: AcquiredTask, call: Callable[[], object]) -> object:
    """
    Call a function with what the submitter of a task has sent along, and with nothing else.

    Raise PayloadError if that can't be read, and any exception of a provider.
    """
    with context.restored_by_providers(task.context):
        return call()


async def awithin(task: AcquiredTask, call: Callable[[], Awaitable[object]]) -> object:
    """
    Do what within() does for a coroutine.

    Providers may set the connections of its synchronous calls, so they run in their thread.
    """
    inside = context.restored_by_providers(task.context)
    if not context.may_block():
        with inside:
            return await call()
    own = copy_context()
    async with AsyncExitStack() as stack:
        await in_thread(own, inside.__enter__)
        stack.push_async_exit(functools.partial(in_thread, own, inside.__exit__))
        return await call()


async def in_thread(own: Context, function: Callable[..., R], *given: object) -> R:
    """Call a function in a thread, in a context of which this one takes over what it sets."""

    def call() -> R:
        _restore_context(own)
        return function(*given)

    try:
        return await sync_to_async(own.run)(call)
    finally:
        _restore_context(own)


# OpenTelemetry spans of attempts.


FAULTS = ("retried", "failed", "preempted", "left")


def traced(task: AcquiredTask) -> AbstractContextManager[Span]:
    """Return a span for an attempt, in the trace of its submitter."""
    lease = task.lease
    due = max(lease.created_at, lease.run_at)
    since = due if due <= timezone.now() else lease.created_at
    return otel.process_span(lease, since, task._known_context)


def end_span(span: Span, ending: AttemptEnd) -> None:
    """Set how an attempt ended, and its error, on its span."""
    span.set_attribute("perfectqueue.ending", ending.word)
    if ending.error is not None and ending.word in FAULTS:
        why = store.Failure.of(ending.error)
        message, stack = map(ending.task.redacted, (why.message, why.traceback))
        otel.fail(span, why.error, message, stack)


# Store what handlers log, beside the project's own logging.


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
        is_own = record.name in OWN or record.name.startswith(BELOW)
        if record.levelno >= self.least and not is_own:
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


# The result of one attempt, and its signals.


@dataclass(slots=True)
class AttemptEnd:
    """
    The result of one attempt.

    ``word`` is the outcome: finished, retried, snoozed, failed, discarded, cancelled, released,
    yielded, suspended, preempted, left to its lease, or crashed with its processor. With a
    ``completion`` it is not written yet.
    """

    word: str
    task: AcquiredTask
    handler: type[Application] | None
    seconds: float
    completion: store.Completion | None = None
    error: BaseException | None = None
    stop: bool = False


def announced(endings: Sequence[AttemptEnd]) -> set[tuple[str, object]]:
    """Return the outcomes, each with its handler, whose signals have receivers."""
    return {
        (word, handler)
        for word, handler in {(ending.word, ending.handler) for ending in endings}
        if word in ENDINGS and ENDINGS[word].receivers and ENDINGS[word].has_listeners(handler)
    }


def announce(
    word: str,
    task: AcquiredTask,
    handler: type[Application] | None,
    error: BaseException | None = None,
) -> None:
    """Send the signal of an outcome, if it has receivers."""
    signal = ENDINGS.get(word)
    if signal is not None and signal.receivers:
        with store.database.shared_operations():
            signals.send(signal, TaskNames.of(task.lease), sender=handler, task=task, error=error)


def announce_start(task: AcquiredTask, handler: Application | None) -> None:
    """Send the signal of a start, if there is a handler and the signal has receivers."""
    if handler is not None and signals.task_started.receivers:
        names = TaskNames.of(task.lease)
        signals.send(signals.task_started, names, sender=type(handler), task=task)


# An attempt in progress.


logger = logging.getLogger("django_perfectqueue.runner")
logger.addFilter(logs.Masked())

# In seconds. A task that takes no longer is charged when it ends.
SUDDEN = 0.1
# It is charged again each time it has run so many times as long as it was charged for.
AGAIN = 1.5


@dataclass(slots=True, eq=False)
class Running:
    """
    An attempt in progress, and what its handler has returned or raised; with the ``ending`` of
    one that is settled already.

    ``index`` is its position in the status. ``spawn`` starts a coroutine in the event loop of
    the handler, if it has one; there it is the task ``coroutine``, which was cancelled for a
    ``reason``. It ``is_suspect`` if an interrupt may have hit a statement in
    progress. While it is ``alone``, it holds the only write lock of the database, so no
    other process can take its task. ``charged`` is what its user was charged for it while it
    ran, in seconds; 0.0 where it was not.
    """

    task: AcquiredTask
    index: int = 0
    handler: Application | None = None
    active: bool = True
    result: object = None
    error: BaseException | None = None
    ending: AttemptEnd | None = None
    reasons_sent: set[type[BaseException]] = field(default_factory=set)
    spawn: Callable[[Work], None] | None = None
    coroutine: asyncio.Task[Any] | None = None
    reason: BaseException | None = None
    is_suspect: bool = False
    alone: bool = False
    charged: float = 0.0

    def has_overrun(self, now: float) -> bool:
        """Return whether its user is to be charged more for it than it was, by this time."""
        task = self.task
        due = self.charged * AGAIN or max(2 * task.lease.charge, SUDDEN)
        return now - task.started >= due and not task.settled

    def kill(self, reason: BaseException) -> None:
        """Interrupt the handler, once for each type of reason; called from other threads."""
        handler = self.handler
        if handler is None or not self.active or type(reason) in self.reasons_sent:
            return
        self.reasons_sent.add(type(reason))
        self.is_suspect = True
        with logs.about(self.task):
            try:
                outcome: object = handler.kill(reason)
                if is_coroutine(outcome) and self.spawn is not None:
                    self.spawn(outcome)
                elif is_coroutine(outcome):
                    outcome.close()
                    raise TypeError("kill() is a coroutine function, and perform() is none.")
            except Exception:
                logger.exception("A handler's kill() raised. %s", about(self.task))

    def interrupt(
        self, send: Callable[[Running, BaseException], None], reason: BaseException
    ) -> None:
        self.is_suspect = True
        send(self, reason)


def about(task: AcquiredTask) -> str:
    """Return the names of a task for the log, never its data."""
    lease = task.lease
    return printable(
        f"queue={lease.queue} key={lease.key} type={lease.type} user={lease.user}"
        f" attempt={lease.tries}"
    )
