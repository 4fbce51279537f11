"""The leases and attempts of a processor."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice

from django_perfectqueue import store

from ..attempt.runner import Running
from ..shared.crowd import SLOW, Crowd, account_of


class InHand:
    """
    The batch of leases that wait to run, and the running attempts; for any thread.

    While it is ``unsure``, nothing of the batch may run: the answer to a release was lost,
    so another processor may hold some of the leases.
    """

    def __init__(
        self, running: Callable[[], list[Running]], crowd: Crowd, give_way: Callable[[], None]
    ) -> None:
        self.running = running
        self.crowd = crowd
        self.give_way = give_way
        self.batch: deque[store.Lease] = deque()
        self.unsure = False

    def leases(self) -> list[store.Lease]:
        """Return the leases of the running attempts and of the batch."""
        running = [one.task.lease for one in self.running() if not one.task.settled]
        return running + list(self.batch)

    def attempt(self, lease: store.Lease) -> Running | None:
        """Return the attempt that runs under a lease, if it has begun."""
        return next((one for one in self.running() if one.task.lease.fence == lease.fence), None)

    def next(self, now: float, ahead: int = 0) -> store.Lease | None:
        """
        Take the lease to run next out of the batch; None while it is empty or unsure, or is
        given back. The last ones may have been acquired ``ahead``, for later.
        """
        try:
            lease = self.batch.popleft()
        except IndexError:
            return None
        if now >= self.crowd.look_at:
            self.crowd.look(now)
        found: store.Lease | None = lease
        if self.crowd.running or lease.charge >= SLOW or lease.is_new:
            found = self.with_room(lease, ahead)
        # Checked after the pop: another thread sets it before it puts leases back.
        if found and self.unsure:
            self.batch.appendleft(found)
            return None
        return found

    def with_room(self, lease: store.Lease, ahead: int) -> store.Lease | None:
        """
        Return this lease, or the next one of a user with less than its share of processors.

        Where there is none, this one begins if it is known how long its tasks take; if not, the
        batch is given back.
        """
        if not self.crowd.has_room(lease):
            others = islice(list(self.batch), max(0, len(self.batch) - ahead))
            other = next(filter(self.crowd.has_room, others), None)
            if other and self.drop(other):
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

    def take_batch(self) -> list[store.Lease]:
        """Empty the batch, while other threads may take from it."""
        taken = []
        while self.batch:
            try:
                taken.append(self.batch.popleft())
            except IndexError:
                break
        return taken

    def put_back(self, leases: Iterable[store.Lease]) -> None:
        """Put leases back into the batch whose release was not confirmed."""
        self.unsure = True
        self.batch.extendleft(reversed(list(leases)))

    def drop(self, lease: store.Lease) -> bool:
        """Take a lease out of the batch; return False when its task is running already."""
        try:
            self.batch.remove(lease)
        except ValueError:
            return False
        return True
