"""Whose tasks the processors of a worker run, and whose take longer than expected."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence

from django_perfectqueue import store

from .slot import ProcessorStatus

# In seconds. Tasks that take less can't keep others from a processor.
SLOW = 0.005
# How long a task runs before it is called longer than expected, at the least.
OVERRUN = 0.02


class Crowd:
    """
    How many tasks of which users run in this worker, by their statuses, as of the last look.

    ``running`` counts the tasks of each account that are slow, and ``overrun`` those of the
    accounts of which one was never measured, or has run for twice as long as was expected.
    A worker with one processor does not look: there it is never too late for others.
    """

    def __init__(self, statuses: Sequence[ProcessorStatus], processors: int) -> None:
        self.statuses = statuses
        self.processors = processors if processors > 1 else 0
        self.running: Counter[int] = Counter()
        self.overrun: dict[int, int] = {}
        self.look_at = 0.0 if self.processors else float("inf")

    def look(self, now: float) -> None:
        running: Counter[int] = Counter()
        overrun = set()
        for status in self.statuses:
            for task in status.tasks:
                ran, charge = now - task.since, task.charge
                if not charge or max(ran, charge) >= SLOW:
                    running[task.account] += 1
                if not charge or ran >= max(2 * charge, OVERRUN):
                    overrun.add(task.account)
        self.running = running
        self.overrun = {account: running[account] for account in overrun}
        # Looks at many tasks take no more than a twentieth of the time.
        self.look_at = now + max(SLOW, 20 * (time.monotonic() - now))

    def has_room(self, lease: store.Lease) -> bool:
        """Return whether its user has less than its share of the processors."""
        return not 0 < lease.share <= self.running.get(account_of(lease), 0)

    def holds_back(self, lease: store.Lease) -> bool:
        """Return whether a task must wait for room: nobody knows how long it takes."""
        return not self.has_room(lease) and (lease.is_new or account_of(lease) in self.overrun)


def account_of(lease: store.Lease) -> int:
    """Return the lane that is charged for a task: that of its user without limits."""
    return store.lane_of(lease.queue, lease.user) if lease.lane & 1 else lease.lane
