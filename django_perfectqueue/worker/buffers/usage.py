"""What a processor has given to whom, until the database knows of it."""

from __future__ import annotations

import threading
import time
from datetime import datetime

from django_perfectqueue import store
from django_perfectqueue.queue import AcquiredTask
from django_perfectqueue.store import Tally, Whose
from django_perfectqueue.store.records.usage import MOST_ROWS

INTERVAL = 10.0
OVERDUE = 2.0
MOST_USERS = 10_000
LAST_ROWS = 10_000


class Ledger:
    """
    The processor time of each user, and how long its tasks had waited.

    It is gathered in memory and written every ten seconds, also for a task that goes on.
    What can't be written is lost and never counted twice, and no task is disturbed by it.
    """

    def __init__(self, *, using: str, kept: bool) -> None:
        self.using = using
        self.kept = kept
        self.tallies: dict[Whose, Tally] = {}
        self.current: dict[int, AcquiredTask] = {}
        self.booked_until: dict[int, float] = {}
        self.ahead = 0.0
        self.lock = threading.Lock()
        self.next_write = time.monotonic() + INTERVAL

    def set_clock(self) -> None:
        """Learn by how much the server's clock is ahead of this host's."""
        if self.kept:
            self.ask_time()

    def ask_time(self) -> datetime:
        """Return the server's time, and remember the difference."""
        before = time.monotonic()
        moment = store.clock(using=self.using)
        self.ahead = moment.timestamp() - (before + time.monotonic()) / 2
        return moment

    def begin(self, task: AcquiredTask) -> None:
        self.current[id(task)] = task

    def end(self, task: AcquiredTask, ended: float) -> None:
        """Book what is left of a task that was begun."""
        with self.lock:
            del self.current[id(task)]
            if self.kept:
                self.book(task, ended).ended += 1
            if self.booked_until:
                self.booked_until.pop(id(task), None)

    def book(self, task: AcquiredTask, until: float) -> Tally:
        """Book the time since the task began, or was booked last."""
        lease, began = task.lease, task.started
        whose = Whose(lease.queue, False, lease.user)
        tally = self.tallies.get(whose)
        if tally is None:
            tally = self.tallies[whose] = Tally()
        if self.booked_until and id(task) in self.booked_until:
            began = self.booked_until[id(task)]
        else:
            tally.wait(began + self.ahead - lease.run_at.timestamp())
        tally.seconds += max(0.0, until - began)
        return tally

    def is_due(self, now: float) -> bool:
        return self.kept and now >= self.next_write

    def is_overdue(self, now: float) -> bool:
        """Tell whether a task takes so long that someone else had better write meanwhile."""
        return self.is_due(now - OVERDUE) and bool(self.current)

    def write(self, *, last: bool = False) -> None:
        """
        Write what was gathered; of more than 1,000 users those with most time first.

        Raise a database error. Unless it came when the server was asked for its time, what
        was to be written is lost.
        """
        self.next_write = time.monotonic() + INTERVAL
        if self.kept and (self.tallies or self.current):
            moment = self.ask_time()
            taken = self.take_last() if last else self.take()
            store.add_usage(taken, using=self.using, at=moment)

    def take(self) -> dict[Whose, Tally]:
        """
        Take what is to be written now.

        What others have waits for their turn; of far too many the smallest are told apart
        no longer.
        """
        with self.lock:
            self.book_current()
            ranked = sorted(self.tallies, key=lambda whose: -self.tallies[whose].seconds)
            taken = {whose: self.tallies.pop(whose) for whose in ranked[:MOST_ROWS]}
            if len(self.tallies) > MOST_USERS:
                self.tallies = store.folded(self.tallies, MOST_USERS)
                others = [whose for whose in self.tallies if whose.others]
                taken.update({whose: self.tallies.pop(whose) for whose in others})
            return taken

    def take_last(self) -> dict[Whose, Tally]:
        with self.lock:
            self.book_current()
            taken, self.tallies = store.folded(self.tallies, LAST_ROWS), {}
            return taken

    def book_current(self) -> None:
        """Book what the tasks that run have taken so far."""
        now = time.monotonic()
        for task in list(self.current.values()):
            self.book(task, now)
            self.booked_until[id(task)] = now
