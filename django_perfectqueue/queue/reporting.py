"""What a handler reads of its task, and what it reports while it runs."""

from __future__ import annotations

import logging
import time
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.db import Error, connections, transaction

from django_perfectqueue import store
from django_perfectqueue.conf import options
from django_perfectqueue.exceptions import PayloadError, PerfectQueueError
from django_perfectqueue.lib.async_twins import in_event_loop, twin
from django_perfectqueue.lib.printable import printable
from django_perfectqueue.payload import codecs
from django_perfectqueue.payload.context import secrets_of, without
from django_perfectqueue.payload.journal import Notes, entry, part_of
from django_perfectqueue.store.values import Note

logger = logging.getLogger("django_perfectqueue.queue")


@dataclass(slots=True, repr=False)
class ReportingTask:
    """
    A task that is held: its data, and its progress and log.

    ``notes`` are what it has reported by progress() and log(), which is written by the worker
    that runs it, or where there is none by the task itself.
    """

    lease: store.Lease
    alive_time: float = 300.0
    worker: str = ""
    notes: Notes | None = field(default=None, compare=False, kw_only=True)
    _writes: bool = field(default=False, compare=False, kw_only=True)
    _data: object = field(default=None, kw_only=True)
    _secrets: tuple[object, tuple[str, ...]] | None = field(
        default=None, compare=False, kw_only=True
    )

    @property
    def key(self) -> str:
        return self.lease.key

    @property
    def type(self) -> str:
        return self.lease.type

    @property
    def user(self) -> str:
        return self.lease.user

    @property
    def attempt(self) -> int:
        """How many attempts have counted, this one among them; a release counts none."""
        return self.lease.tries

    @property
    def created_at(self) -> datetime:
        return self.lease.created_at

    @property
    def data(self) -> Any:
        """
        What was submitted.

        Raise PayloadError when the stored text can't be read.
        """
        if self._data is None:
            self._data = codecs.decode(self.lease.payload)
        return self._data

    @property
    def context(self) -> dict[str, Any]:
        """
        What it has taken along of its submitter's surroundings; see CONTEXT.

        Raise PayloadError when the stored text can't be read.
        """
        if self.lease.context is None:
            return {}
        values = codecs.decode(self.lease.context)
        if not isinstance(values, dict):
            raise PayloadError(f"The context of the task is no JSON object, but {values!r}.")
        return values

    @property
    def _known_context(self) -> dict[str, Any]:
        """The same; empty where it can't be read."""
        try:
            return self.context
        except PayloadError:
            return {}

    @property
    def scheduled_for(self) -> datetime | None:
        """The tick that a schedule has submitted it for; None where none has."""
        tick = self.context.get(store.schedules.SCHEDULED_FOR)
        return None if tick is None else datetime.fromisoformat(tick)

    def progress(
        self, part: float | None = None, stage: str | None = None, *, of: float | None = None
    ) -> None:
        """
        Report the progress: a part of 1, or a count ``of`` a total, and the current stage.

        None leaves a value unchanged. It may be called as often as you like: it
        is noted in memory, and written at most every JOURNAL_INTERVAL, apart from whatever
        transaction is open here. Raise ValueError when it is no such part.
        """
        done = part_of(part, of)
        self._noted().set_progress(done, stage if stage is None else self.redacted(str(stage)))
        if self._writes:
            self._write_in_time()

    def log(self, text: object, *, level: str = "INFO") -> None:
        """Add to the log that is kept of this attempt, without what is sensitive."""
        add_line(self, time.time(), level, "task", str(text))
        if self._writes:
            self._write_in_time()

    def write_notes(self) -> None:
        """
        Write the progress and the log at once; for programs that run it without a worker.

        In a transaction that is open here it has a savepoint of its own. That it can't be
        written is logged, and no more; but the error is raised where it has undone that
        transaction.
        """
        if (note := note_of(self)) is None:
            return
        using = self.lease.using
        connection = connections[using]
        was_undone = connection.needs_rollback
        try:
            block = transaction.atomic(using=using) if connection.in_atomic_block else nullcontext()
            with block, store.database.single_operation():
                store.records.write_journal([note], using=using)
        except Error as error:
            # The savepoint is gone with its connection, or by a deadlock on MySQL: the caller's
            # block would be rolled back at its end, and left as if it were committed.
            if connection.needs_rollback and not was_undone:
                raise
            logger.warning(
                "The journal of a task can't be written. key=%s error=%s",
                printable(self.key),
                error,
            )

    def redacted(self, text: str) -> str:
        """Return a text with stars for what is sensitive in the task's data."""
        return without(text, self._secrets_in_data())

    @property
    def has_secrets(self) -> bool:
        """Whether anything in its data is sensitive."""
        return bool(self._secrets_in_data())

    def _secrets_in_data(self) -> tuple[str, ...]:
        known = self._secrets
        if known is None or known[0] is not self._data:
            secrets = {*secrets_of(self._readable_data()), *(known[1] if known else ())}
            known = self._secrets = (self._data, tuple(sorted(secrets, key=len, reverse=True)))
        return known[1]

    def _hide(self, value: object) -> None:
        """Have what is sensitive in a value be redacted as that in the data is."""
        if more := set(secrets_of(value)).difference(known := self._secrets_in_data()):
            self._secrets = (self._data, tuple(sorted({*known, *more}, key=len, reverse=True)))

    def _readable_data(self) -> object:
        """Return the data, or None where its codec can't read it, whatever that raises."""
        try:
            return self.data
        except PayloadError:
            return None
        except PerfectQueueError:
            raise  # The attempt is broken off, in this very moment.
        except Exception:
            return None

    def _noted(self) -> Notes:
        if self.notes is None:
            self.notes = Notes(options().LOG_LINES_SIZE)
        return self.notes

    def _write_in_time(self) -> None:
        """Write the journal unless that was done just now, or an event loop runs here."""
        notes = self._noted()
        now = time.monotonic()
        if now >= notes.next_write and not in_event_loop():
            notes.next_write = now + options().JOURNAL_INTERVAL
            self.write_notes()

    aprogress = twin(progress)
    alog = twin(log)
    awrite_notes = twin(write_notes)


def add_line(task: ReportingTask, at: float, level: str, source: str, text: str) -> None:
    """Add to a task's log what was logged at a time, in seconds since 1970, by some logger."""
    task._noted().add(entry(at, level, source, task.redacted(text)))


def note_of(task: ReportingTask) -> Note | None:
    """Return a task's journal, if it has changed since the last call."""
    notes = task.notes
    if notes is None or not notes.changed:
        return None
    # In this order: a change from here on is written the next time.
    notes.changed = False
    is_first, notes.written = not notes.written, True
    part, stage = notes.progress
    return Note(
        task_id=task.lease.task_id,
        key=task.key,
        attempt=task.lease.attempt,
        progress=part,
        stage=stage,
        lines=notes.text(),
        is_first=is_first,
    )
