"""The leases and attempts of a processor."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from django_perfectqueue import store

from ..attempt.running import Running
from ..shared.crowd import SLOW, Crowd, account_of


class Hand:
    """
    The batch of leases that wait to run, and the running attempts in their places; for any
    thread. The lock guards each change, and each look at both.

    Those in ``releasing`` are not to run here, but their release has no answer yet.
    ``give_way`` is called where nothing of the batch may begin before the tasks of others.
    """

    def __init__(self, places: int, crowd: Crowd, give_way: Callable[[], None]) -> None:
        self.lock = threading.RLock()
        self.places = places
        self.crowd = crowd
        self.give_way = give_way
        self.batch: deque[store.Lease] = deque()
        self.releasing: list[store.Lease] = []
        self.going: list[Running | None] = [None] * places
        self.free = list(reversed(range(places)))

    def running(self) -> list[Running]:
        return [one for one in self.going if one is not None]

    def count(self) -> int:
        """Return how many tasks run or wait to run; one that just begins counts once."""
        with self.lock:
            return self.held()

    def held(self) -> int:
        """Return the same, for who has the lock."""
        return self.places - len(self.free) + len(self.batch)

    def leases(self) -> list[store.Lease]:
        """Return the leases of the running attempts and of the batch."""
        # Under the lock: one that begins meanwhile would be seen neither here nor there.
        with self.lock:
            running = [one.task.lease for one in self.running() if not one.task.settled]
            return running + list(self.batch)

    def attempt(self, lease: store.Lease) -> Running | None:
        """Return the attempt that runs under a lease, if it has begun."""
        return next((one for one in self.running() if one.task.lease.fence == lease.fence), None)

    def next(self, now: float) -> store.Lease | None:
        """
        Take the lease to run next out of the batch, for who has the lock; None where nothing
        may begin.
        """
        crowd = self.crowd
        if now >= crowd.look_at:
            crowd.look(now)
        for _lease in range(len(self.batch)):
            lease = self.batch.popleft()
            if crowd.running or lease.charge >= SLOW or lease.is_new:
                if (found := self.with_room(lease)) is None:
                    return None
                lease = found
            if self.places == 1 or not self.runs(lease.task_id):
                return lease
            # An earlier attempt of this task lost its lease, but its handler still runs.
            self.batch.append(lease)
        return None

    def with_room(self, lease: store.Lease) -> store.Lease | None:
        """
        Return this lease, or the next one of a user with less than its share of processors.

        Where there is none, this one begins if it is known how long its tasks take; if not, the
        batch is to be given back.
        """
        if not self.crowd.has_room(lease):
            if other := next(filter(self.crowd.has_room, self.batch), None):
                self.batch.remove(other)
                self.batch.appendleft(lease)
                lease = other
            elif self.crowd.holds_back(lease):
                self.batch.appendleft(lease)
                self.give_way()
                return None
        if lease.share:
            # It counts until the next look.
            self.crowd.running[account_of(lease)] += 1
        return lease

    def runs(self, task_id: int) -> bool:
        return any(one is not None and one.task.lease.task_id == task_id for one in self.going)

    def add(self, leases: list[store.Lease]) -> None:
        with self.lock:
            self.batch.extend(leases)

    def drop(self, lease: store.Lease) -> bool:
        """Take a lease out of the batch; return False when its task is running already."""
        with self.lock:
            if lease not in self.batch:
                return False
            self.batch.remove(lease)
            return True

    def lay_aside(self) -> list[store.Lease]:
        """Take all out of the batch to be released; return all whose release has no answer."""
        with self.lock:
            self.releasing += self.batch
            self.batch.clear()
            return list(self.releasing)
