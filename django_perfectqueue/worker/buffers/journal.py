"""Buffer of progress and log lines that are not written yet."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from django.db import Error

from django_perfectqueue import store
from django_perfectqueue.queue import AcquiredTask, note_of

from ..attempt.running import Running

LATE = 0.05
YOUNG = 0.5
MOST = 1_000
SHORTEST, LONGEST = 1.0, 60.0


class JournalBuffer:
    """
    Writes the progress and log lines of all tasks of a processor together.

    A running task is written at most once an ``interval``, and once more at its end. One
    thread writes. A failed write is retried with exponential backoff. Notes of ended tasks
    are limited in number; the oldest are dropped.
    """

    def __init__(
        self, running: Callable[[], list[Running]], *, using: str, interval: float
    ) -> None:
        self.running = running
        self.using = using
        self.interval = interval
        self.left: deque[store.Note] = deque(maxlen=MOST)
        self.left_at = 0.0
        self.next_look = 0.0
        self.not_before = 0.0
        self.failures = 0

    def keep(self, task: AcquiredTask) -> None:
        """Keep the last note of an attempt that has ended."""
        if (note := note_of(task)) is not None:
            if not self.left:
                self.left_at = time.monotonic()
            self.left.append(note)

    def is_due(self, now: float) -> bool:
        """Return whether a note of a running or an ended task is due."""
        if now < self.not_before:
            return False
        if self.left and now >= self.left_at + LATE:
            return True
        return now >= self.next_look and any(has_news(one.task, now) for one in self.running())

    def hurry(self) -> None:
        """Skip the backoff for the last write."""
        self.not_before = 0.0

    def write(self) -> None:
        """Write all due notes in one statement, unless in a backoff; raise a database error."""
        if time.monotonic() >= self.not_before and (notes := self.take()):
            self.send(notes)

    def take(self) -> list[store.Note]:
        """Take the notes of ended tasks and the changed ones of running tasks; the last of each."""
        now = time.monotonic()
        notes = [self.left.popleft() for _note in range(len(self.left))]
        if now >= self.next_look:
            changed = [note_of(one.task) for one in self.running() if has_news(one.task, now)]
            notes += [note for note in changed if note is not None]
            self.next_look = now + self.interval
        return list({(note.task_id, note.attempt): note for note in notes}.values())

    def send(self, notes: list[store.Note]) -> None:
        try:
            store.write_journal(notes, using=self.using)
        except Error as error:
            self.failures += 1
            pause = min(LONGEST, SHORTEST * 2.0 ** min(self.failures, 10))
            self.not_before = time.monotonic() + pause
            if store.problem_of(error, using=self.using).passes:
                self.left.extendleft(reversed(notes))
            raise
        self.failures = 0


def has_news(task: AcquiredTask, now: float) -> bool:
    """Return whether a running task has a changed note and is not a short one."""
    notes = task.notes
    return notes is not None and notes.changed and now - task.started >= YOUNG
