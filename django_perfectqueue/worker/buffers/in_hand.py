"""The leases and attempts of a processor."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from django_perfectqueue import store

from ..attempt.runner import Running


class InHand:
    """
    The batch of leases that wait to run, and the running attempts; for any thread.

    While it is ``unsure``, nothing of the batch may run: the answer to a release was lost,
    so another processor may hold some of the leases.
    """

    def __init__(self, running: Callable[[], list[Running]]) -> None:
        self.running = running
        self.batch: deque[store.Lease] = deque()
        self.unsure = False

    def leases(self) -> list[store.Lease]:
        """Return the leases of the running attempts and of the batch."""
        running = [one.task.lease for one in self.running() if not one.task.settled]
        return running + list(self.batch)

    def attempt(self, lease: store.Lease) -> Running | None:
        """Return the attempt that runs under a lease, if it has begun."""
        return next((one for one in self.running() if one.task.lease.fence == lease.fence), None)

    def next(self) -> store.Lease | None:
        """Take the lease to run next out of the batch; None while it is empty or unsure."""
        try:
            lease = self.batch.popleft()
        except IndexError:
            return None
        # Checked after the pop: another thread sets it before it puts leases back.
        if self.unsure:
            self.batch.appendleft(lease)
            return None
        return lease

    def first(self, may_run: Callable[[store.Lease], bool], count: int) -> store.Lease | None:
        """Take the first of so many leases that may run now; None where there is none."""
        for lease in list(self.batch)[:count]:
            if may_run(lease) and self.drop(lease):
                if not self.unsure:
                    return lease
                self.batch.appendleft(lease)
                return None
        return None

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
