"""Named steps and waits of a task: what each has given is kept for the attempts after it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, NamedTuple

from asgiref.sync import iscoroutinefunction, sync_to_async
from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Case, When
from django.db.models.functions import Length
from django.db.models.lookups import LessThanOrEqual

from django_perfectqueue import exceptions, models, store
from django_perfectqueue.conf import options
from django_perfectqueue.models.fields import ServerNow
from django_perfectqueue.payload import codecs
from django_perfectqueue.payload.codecs import JSON, STEP_LENGTH
from django_perfectqueue.payload.inputs import checked, encoded
from django_perfectqueue.store.tasks.steer import is_in_block

if TYPE_CHECKING:
    from .acquired import AcquiredTask

MOST = 1_000
SHORT = 1_000

Kind = models.Step.Kind


class Kept(NamedTuple):
    """A row that is kept: its text, None where that is long, and, of a wait, its times."""

    id: int
    text: str | None
    since: datetime
    until: datetime | None


class Steps:
    """
    The steps and waits of one attempt of a task, and those that are kept of earlier attempts.

    ``running`` is how many run at this moment, and ``progressed`` means that one was kept.
    """

    def __init__(self, task: AcquiredTask) -> None:
        self.task, self.using = task, task.lease.using
        self.rows = models.Step.objects.using(self.using).filter(task_id=task.lease.task_id)
        self.used: dict[tuple[int, str], MaybeCommitted | None] = {}
        self.running, self.progressed = 0, False
        self.kept: dict[tuple[int, str], Kept | None] = {}
        self.signals = 0
        self.read_at: datetime | None = None
        # A first attempt has nothing to read, but for that of a copy which begins at a step.
        if task.lease.attempt > 1 or task.lease.goes_on:
            self.read()

    def run(self, name: str, call: Callable[[], object]) -> JSON:
        """Return what is kept of a step, or else call it, and keep what it returns."""
        text = self.begin(name)
        if text is None:
            with self.trying(name):
                text = self.end(name, call())
        return codecs.decode(text)

    async def run_async(self, name: str, call: Callable[[], object]) -> JSON:
        """Do what run() does; what is no coroutine function is called in a thread."""
        text = await sync_to_async(self.begin)(name)
        if text is None:
            with self.trying(name):
                text = await sync_to_async(self.end)(name, await awaited(call))
        return codecs.decode(text)

    @contextmanager
    def trying(self, name: str) -> Iterator[None]:
        """Let the handler try a step again that has raised."""
        try:
            yield
        except BaseException:
            self.used.pop((Kind.STEP, name), None)
            raise
        finally:
            self.running -= 1

    def begin(self, name: str) -> str | None:
        """
        Return what is kept of a step, as it is stored, or None where it is to run.

        Raise InvalidTaskError for a bad name, or one that this attempt has used.
        """
        self.check(Kind.STEP, name)
        if (Kind.STEP, name) not in self.kept:
            self.task._give_way()
        text = self.text_of(Kind.STEP, name)
        self.used[Kind.STEP, name] = None
        self.running += text is None
        return text

    def check(self, kind: int, name: str) -> None:
        """Raise InvalidTaskError for a bad name, one that was used, or one too many."""
        checked("name of a step", name, STEP_LENGTH)
        doubt = self.used.get((kind, name))
        if (kind, name) in self.used and not (doubt and doubt.is_undone()):
            what = "run a step" if kind == Kind.STEP else "passed a wait"
            raise exceptions.InvalidTaskError(
                f"This attempt has {what} '{name}' already: give each step its own name."
            )
        if (kind, name) not in self.kept and len(self.kept) - self.signals >= MOST:
            raise exceptions.InvalidTaskError(
                f"A task may have at most {MOST} steps; '{name}' is one more."
            )

    def text_of(self, kind: int, name: str) -> str | None:
        """Return what is kept, as it is stored; None where nothing is."""
        if (kind, name) not in self.kept:
            return None
        if (row := self.kept[kind, name]) and row.text is not None:
            return row.text
        found = self.rows.filter(kind=kind, name=name).values_list("result_text", flat=True)
        return store.database.with_retries(found.first, using=self.using)

    def end(self, name: str, value: object) -> str:
        """Keep what a step has returned; return it as it is stored."""
        text = encoded_result(value, f"The result of step '{name}'", using=self.using)
        self.task._write(
            lambda: store.steps.keep_step(self.task.lease, name, text, using=self.using)
        )
        self.kept[Kind.STEP, name] = None
        self.progressed = True
        # What is rolled back may run again in this attempt.
        self.used[Kind.STEP, name] = maybe_committed(self.using)
        return text

    def read(self) -> None:
        """Read what is kept, and the time; of a long result only that it is there."""
        length = Length("result_text")
        short = Case(When(LessThanOrEqual(length, SHORT), then="result_text"))
        rows = self.rows.values_list(ServerNow(), "kind", "name", "pk", short, "kept_at", "until")
        found = store.database.with_retries(lambda: list(rows), using=self.using)
        for clock, kind, name, *row in found:
            self.read_at = self.task.moment or clock
            self.kept[kind, name] = Kept(*row)
            self.signals += kind == Kind.SIGNAL

    def wait(self, kind: Kind, name: str, end: Callable[[datetime], datetime | None]) -> JSON:
        """
        Return what has ended a wait: the data of its signal, or None for its time.

        ``end`` says until when one lasts that begins at a time. Raise SuspendedError where the task
        has to wait, and InvalidTaskError as begin() does.
        """
        self.check(kind, name)
        text = self.text_of(kind, name)
        if not text and kind == Kind.WAIT:
            text = self.text_of(Kind.SIGNAL, name)
        value = codecs.decode(text or self.look(kind, name, end))
        self.used[kind, name] = None
        self.task._hide(value)
        return value

    def look(self, kind: Kind, name: str, end: Callable[[datetime], datetime | None]) -> str:
        """Do the same for one that was not ended when this attempt has read; return the text."""
        task, row, now = self.task, self.kept.get((kind, name)), self.read_at
        terms: Any = {"using": self.using, "now": task.moment}
        if not (row and row.until and now and row.until <= now):
            now, signal = store.steps.look_for_signal(task.lease.task_id, name, **terms)
            if kind == Kind.WAIT and signal is not None:
                return signal
        # In UTC: elsewhere a day has 25 hours when the clocks go back.
        wait = store.Wait(kind, name, end(now.astimezone(timezone.utc)))
        if row:
            wait = wait._replace(until=row.until, id=row.id, since=row.since)
        left = math.inf if wait.until is None else (wait.until - now).total_seconds()
        if left > 0:
            if kind == Kind.WAIT:
                self.leave_joins()
            task._suspend(wait._replace(seconds=left))
        # The first that is written stays: this, or a signal.
        nothing, is_over = encoded(None), kind != Kind.WAIT
        return nothing if is_over else store.steps.time_out(task.lease, wait, nothing, **terms)

    def leave_joins(self) -> None:
        """Have the task no longer wait for what it joined before its code took another way."""
        if any(kind == Kind.JOIN and row and not row.text for (kind, _), row in self.kept.items()):
            store.dependencies.leave_joins(self.task.lease, using=self.using)


def in_transaction() -> bool:
    """Return whether an exception here may undo a transaction, but for that of a TestCase."""
    opened = connections.all(initialized_only=True)
    return any(
        is_in_block(one) if one.in_atomic_block else store.database.is_callers(one.alias)
        for one in opened
    )


async def awaited(call: Callable[[], object]) -> JSON:
    value = await (call if iscoroutinefunction(call) else sync_to_async(call))()
    return await value if isawaitable(value) else value


def encoded_result(value: object, name: str = "The result", *, using: str) -> str:
    """Return a result as it is stored; raise InvalidResultError where it can't be."""
    limit = options().MAX_RESULT_SIZE
    by = "MAX_PAYLOAD_SIZE" if limit is None else "MAX_RESULT_SIZE"
    try:
        text = encoded(value, name, limit=limit, by=by)
    except exceptions.InvalidTaskError as error:
        raise exceptions.InvalidResultError(str(error)) from error
    if why := store.database.too_long(text, using=using):
        raise exceptions.InvalidResultError(
            f"{name} can't be stored: {why}. Raise that, or return less."
        )
    return text


# What was written in a transaction that has yet to be committed.


class MaybeCommitted:
    """Whether something that was written in a caller's transaction came to be."""

    def __init__(self, connection: BaseDatabaseWrapper) -> None:
        self.connection = connection
        self.committed = False
        transaction.on_commit(self, using=connection.alias, robust=True)

    def __call__(self) -> None:
        self.committed = True

    def is_undone(self) -> bool:
        """Return whether the transaction, or the savepoint that it was in, was rolled back."""
        if self.committed:
            return False
        return not any(hook[1] is self for hook in list(self.connection.run_on_commit))


def maybe_committed(using: str) -> MaybeCommitted | None:
    """Return whether what was just written comes to be; None where it is committed already."""
    connection = connections[using]
    return MaybeCommitted(connection) if connection.in_atomic_block else None
