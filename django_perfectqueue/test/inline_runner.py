"""Run one task by the worker's own runner, in the caller's thread and on its connections."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any, TypeVar

from django_perfectqueue import store
from django_perfectqueue.application import Dispatch
from django_perfectqueue.application.base import awaited
from django_perfectqueue.conf import options
from django_perfectqueue.payload import context
from django_perfectqueue.payload.codecs import JSON, decode
from django_perfectqueue.queue import AcquiredTask
from django_perfectqueue.verdicts import Verdict
from django_perfectqueue.worker.attempt import surroundings
from django_perfectqueue.worker.attempt.event_loop import EventLoop
from django_perfectqueue.worker.attempt.interrupts import MainThreadInterrupter
from django_perfectqueue.worker.attempt.runner import Runner
from django_perfectqueue.worker.attempt.surroundings import AttemptEnd, announce
from django_perfectqueue.worker.database.link import ConnectionCleanup, mine
from django_perfectqueue.worker.shared.status import Outage

R = TypeVar("R")

PUT_OFF = ("retried", "snoozed", "released", "suspended")
LOGGERS = ("django_perfectqueue.runner", "django.tasks", "django_tasks")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """
    One attempt, and what became of its task by it.

    ``word`` is finished, retried, snoozed, failed, discarded, cancelled, released, suspended,
    preempted or left. ``result`` is what the handler has returned, as JSON gives it back,
    ``error`` what it has raised. ``wait`` is how many seconds a task that is retried, snoozed,
    released or suspended was put off, infinite where only a signal ends that, and ``seconds`` how
    long the attempt took.
    """

    key: str
    type: str
    queue: str
    user: str
    attempt: int
    word: str
    result: JSON = None
    error: BaseException | None = None
    wait: float | None = None
    seconds: float = 0.0

    def __str__(self) -> str:
        line = f"{self.word} {self.queue}/{self.key} type={self.type} attempt={self.attempt}"
        return f"{line} error={self.error!r}" if self.error is not None else line


class HeldTask(AcquiredTask):
    """
    An acquired task whose verbs take the time from the test, where that has set one.

    ``returned`` and ``wait`` are what its handler has settled it with.
    """

    returned: JSON = None
    wait: float | None = None

    def finish(self, result: object = None) -> None:
        super().finish(result)
        self.returned = result

    def _end(self, ending: store.Ending) -> None:
        super()._end(ending)
        self.wait = None if ending.outcome else ending.wait


class InlineRunner(Runner):
    """
    Runs tasks where it was made, also inside of the transaction of a test.

    What a worker would write together with neighbours is written at once. Nobody watches
    meanwhile: no time limit is kept, no lease renewed. Here Ctrl-C is the caller's.
    """

    stops = (*Runner.stops, KeyboardInterrupt)

    def __init__(self, dispatch: type[Dispatch]) -> None:
        link: Any = DirectLink()
        super().__init__(
            dispatch, link=link, interrupter=MainThreadInterrupter(), event_loop=CallersEventLoop()
        )
        self.cleanup: CallersCleanup = CallersCleanup()
        self.check_at = float("inf")

    def attempt(self, task: HeldTask) -> Run:
        """Run a task and settle it; raise what is to end the whole program."""
        before = context.provided()
        with quiet(), captured(), self.cleanup.watching():
            ending = self.run(task)
        if context.may_block():
            # A provider may have set what the caller's connection has.
            copy_context().run(put_back, before)
        if task.notes is not None:
            task.write_notes()
        if ending.completion is not None:
            terms: Any = {"using": task.lease.using, "worker": task.worker, "now": task.moment}
            if store.finish([ending.completion], **terms):
                ending.word = "preempted"
            announce(ending.word, task, ending.handler)
        if ending.stop and ending.error is not None:
            raise ending.error
        return run_of(ending, task)


def put_back(values: Mapping[str, JSON]) -> None:
    """Restore what was captured; what a context manager sets, it has put back itself."""
    for path, provider in context.providers().items():
        provider.restore(values.get(path))


class DirectLink:
    """A way to the database that does not wait for it: a test is to see its errors."""

    outage = Outage()

    def retry_until_done(self, verb: Callable[[], R]) -> R:
        return verb()

    once = retry_until_done


class CallersEventLoop(EventLoop):
    """
    Runs coroutines as async_to_sync() does.

    So what they call by sync_to_async(), Django's ORM above all, is called in the thread
    that waits for them, on the connections that have the test's transaction.
    """

    def drive(self, coroutine: object) -> object:
        return awaited(coroutine)


class CallersCleanup(ConnectionCleanup):
    """
    Leaves the caller's transactions good, whatever a handler does.

    In a transaction that the caller has opened, each handler runs in a savepoint. It is
    rolled back only where the handler has broken the transaction, as an error of the
    database does on PostgreSQL; else all that it did stands, as it would in a worker, also
    where it raised. What it has asked for with on_commit() is then called.
    """

    def __init__(self) -> None:
        super().__init__()
        self.marks: list[Savepoint] = []

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        self.set_marks()
        try:
            yield
        finally:
            self.lift_marks()

    def run(self, *, suspect: bool = False) -> None:
        # The session is the caller's.
        mine.watch.changed.clear()
        super().run(suspect=suspect)
        try:
            self.lift_marks()
        finally:
            self.set_marks()

    def set_marks(self) -> None:
        self.marks = [Savepoint(link) for link in self.left_alone if link.in_atomic_block]

    def lift_marks(self) -> None:
        marks, self.marks = self.marks, []
        for mark in marks:
            mark.lift()


class Savepoint:
    """A point in an open transaction to which it can be rolled back, if it must."""

    def __init__(self, link: Any) -> None:
        self.link = link
        self.hooks = len(link.run_on_commit)
        self.blocks = len(link.atomic_blocks)
        self.names = list(link.savepoint_ids)
        self.name = link.savepoint()

    def lift(self) -> None:
        if self.is_broken():
            self.undo()
        else:
            self.link.savepoint_commit(self.name)
            self.call_hooks()

    def is_broken(self) -> bool:
        """Return whether the transaction is broken, or has a block that was left open."""
        link = self.link
        left_open = len(link.atomic_blocks) > self.blocks
        return link.needs_rollback or left_open or not link.is_usable()

    def undo(self) -> None:
        link = self.link
        link.needs_rollback = False
        link.savepoint_ids[:] = self.names
        del link.atomic_blocks[self.blocks :]
        del link.run_on_commit[self.hooks :]
        link.savepoint_rollback(self.name)

    def call_hooks(self) -> None:
        hooks = self.link.run_on_commit
        while len(hooks) > self.hooks:
            _savepoints, function, robust = hooks.pop(self.hooks)
            with contextlib.suppress(Exception) if robust else contextlib.nullcontext():
                function()


def run_of(ending: AttemptEnd, task: HeldTask) -> Run:
    completion = ending.completion
    stored = completion.result if completion is not None else None
    # What it was settled with before may have been rolled back.
    returned = task.returned if ending.word == "finished" else None
    return Run(
        key=task.key,
        type=task.type,
        queue=task.lease.queue,
        user=task.user,
        attempt=task.attempt,
        word=ending.word,
        result=returned if stored is None else decode(stored),
        error=ending.error,
        wait=task.wait if ending.word in PUT_OFF else None,
        seconds=ending.seconds,
    )


def raise_trouble(run: Run) -> None:
    """
    Raise the unhandled error in which an attempt ended, with its traceback and a note of its task.

    A Verdict is what the handler wants, unless it wants what its attempts don't allow.
    """
    error = run.error
    wanted = isinstance(error, Verdict) and run.word != "failed"
    if error is None or wanted or run.word not in ("retried", "failed"):
        return
    if add_note := getattr(error, "add_note", None):  # Python 3.11
        add_note(f"Raised by task '{run.key}' of type '{run.type}', which was {run.word}.")
    raise error


@contextlib.contextmanager
def captured() -> Iterator[None]:
    """Keep what handlers log, as a worker does."""
    surroundings.begin(options().LOG_CAPTURE)
    try:
        yield
    finally:
        surroundings.end()


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """
    Keep off the screen what the test receives anyway.

    A listener, as assertLogs() is, gets it all the same.
    """
    loggers, nothing = [logging.getLogger(name) for name in LOGGERS], logging.NullHandler()
    for logger in loggers:
        logger.addHandler(nothing)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeHandler(nothing)
