"""Buffer of processor time, waiting times and endings that are not written yet."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime

from django_perfectqueue import store
from django_perfectqueue.queue import AcquiredTask
from django_perfectqueue.store import Tally, UsageKey
from django_perfectqueue.store.records.usage import (
    MOST_ROWS,
    all_types_key,
    type_key,
)

from ..attempt.ending import AttemptEnd

INTERVAL = 10.0
OVERDUE = 2.0
MOST_ENDED = 1_000


class UsageBuffer:
    """
    The processor time of each user, how long the user's tasks waited, and how they ended;
    and the same of each type.

    It is written every ten seconds, for running tasks as well. A failed write is lost and
    never counted twice, and does not affect tasks. ``ahead`` is by how much the server's
    clock is ahead of this host's, 0 until it was asked.
    """

    def __init__(self, *, using: str, kept: bool) -> None:
        self.using = using
        self.kept = kept
        self.tallies: dict[UsageKey, Tally] = {}
        self.ended: list[tuple[str, str, str, list[float], float, float, float]] = []
        self.words: list[tuple[str, str, str, str]] = []
        self.current: dict[int, AcquiredTask] = {}
        self.counted_until: dict[int, float] = {}
        self.ahead = 0.0
        self.lock = threading.Lock()
        self.next_write = time.monotonic() + INTERVAL

    def lacks_clock(self) -> bool:
        """Return whether ask_time() must be called before more tasks run."""
        return not self.ahead and bool(self.ended)

    def ask_time(self) -> datetime:
        """Return the server's time; store by how much it is ahead of this host's clock."""
        before = time.monotonic()
        moment = store.clock(using=self.using)
        self.ahead = moment.timestamp() - (before + time.monotonic()) / 2
        return moment

    def end(self, task: AcquiredTask, ended: float) -> None:
        """Count the rest of a task's time at its end."""
        with self.lock:
            del self.current[id(task)]
            counted = self.counted_until.pop(id(task), None)
            if not self.kept:
                return
            lease, since, started, waits = task.lease, counted, task.started, []
            waited = started - lease.run_at.timestamp()
            if since is None:
                since, waits = started, [waited]
            names = lease.queue, lease.user, lease.type
            self.ended.append((*names, waits, ended - since, waited, ended - started))
            if len(self.ended) >= MOST_ENDED and self.ahead:
                self.count_ended()

    def count(self, endings: Sequence[AttemptEnd]) -> None:
        """Count how attempts ended, once that is written."""
        if not self.kept:
            return
        words = [
            (lease.queue, lease.user, lease.type, ending.word)
            for ending in endings
            for lease in (ending.task.lease,)
        ]
        with self.lock:
            self.words += words
            if len(self.words) >= MOST_ENDED and self.ahead:
                self.count_ended()

    def count_ended(self) -> None:
        """Add the ended tasks to the tallies, those of a user or a type together."""
        users = defaultdict(list)
        types = defaultdict(list)
        for queue, user, type_, waits, seconds, waited, lasted in self.ended:
            users[queue, user].append((waits, seconds, lasted))
            types[queue, type_].append((waited, lasted))
        self.ended.clear()
        for (queue, user), some in users.items():
            tally = self.tally(queue, user)
            tally.seconds += sum([seconds for _waits, seconds, _lasted in some if seconds > 0.0])
            tally.wait(*[wait + self.ahead for waits, _seconds, _lasted in some for wait in waits])
            tally.run([lasted for _waits, _seconds, lasted in some])
        for (queue, type_), pairs in types.items():
            for key in (all_types_key(queue), type_key(queue, type_)):
                tally = self.tallies.setdefault(key, Tally())
                tally.wait(*[waited + self.ahead for waited, _lasted in pairs])
                tally.run([lasted for _waited, lasted in pairs])
        for key, tally in store.ended_so(self.words).items():
            self.tallies.setdefault(key, Tally()).add(tally)
        self.words.clear()

    def tally(self, queue: str, user: str) -> Tally:
        return self.tallies.setdefault(UsageKey(queue, False, user), Tally())

    def is_due(self, now: float) -> bool:
        return self.kept and now >= self.next_write

    def is_overdue(self, now: float) -> bool:
        """Return whether it is late although tasks run."""
        return self.is_due(now - OVERDUE) and bool(self.current)

    def write(self) -> None:
        """
        Write the tallies; of more than 1,000 users those with the least time as others.

        Raise a database error. The batch is then lost, unless reading the clock failed.
        """
        self.next_write = time.monotonic() + INTERVAL
        if self.kept and (self.tallies or self.ended or self.words or self.current):
            moment = self.ask_time()
            store.add_usage(self.take(), using=self.using, at=moment)

    def take(self) -> dict[UsageKey, Tally]:
        with self.lock:
            self.count_current()
            taken, self.tallies = store.folded(self.tallies, MOST_ROWS), {}
            return taken

    def count_current(self) -> None:
        """Count ended tasks, and the time of running tasks so far."""
        self.count_ended()
        now = time.monotonic()
        for task in list(self.current.values()):
            tally = self.tally(task.lease.queue, task.lease.user)
            if id(task) not in self.counted_until:
                tally.wait(task.started + self.ahead - task.lease.run_at.timestamp())
            tally.seconds += max(0.0, now - self.counted_until.get(id(task), task.started))
            self.counted_until[id(task)] = now
