"""Whose tasks the processors of a worker run, and whose take longer than expected."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence

from django_perfectqueue import store

from .slot import Slot

SLOW = 0.005
"""In seconds. Tasks that take less can't keep others from a processor."""
OVERRUN = 0.02
"""How long a task runs before it is called longer than expected, at the least."""
MOST_TIME = 20
"""A look may take one part in so many of the time until the next one."""


class Crowd:
    """
    Which users have how many tasks running in this worker, by its slots, as of the last look.
    A worker with one processor does not look.

    ``running`` counts the tasks of each account that are slow. ``overrun`` are those of
    which one was never measured, or has run for twice as long as was expected.
    """

    def __init__(self, slots: Sequence[Slot]) -> None:
        self.slots = slots
        processors = sum(len(slot.places) for slot in slots)
        self.processors = processors if processors > 1 else 0
        self.running: Counter[int] = Counter()
        self.overrun: set[int] = set()
        self.look_at = 0.0 if self.processors else float("inf")

    def look(self, now: float) -> None:
        running: Counter[int] = Counter()
        overrun = set()
        for slot in self.slots:
            for task in slot.places:
                if task.task_id:
                    ran, charge = now - task.since, task.charge
                    if not charge or max(ran, charge) >= SLOW:
                        running[task.account] += 1
                    if not charge or ran >= max(2 * charge, OVERRUN):
                        overrun.add(task.account)
        self.running, self.overrun = running, overrun
        self.look_at = now + max(SLOW, MOST_TIME * (time.monotonic() - now))

    def overruns(self) -> dict[int, int]:
        """Return how many tasks run of each account of which one takes longer than expected."""
        return {account: self.running[account] for account in self.overrun}

    def is_full(self, lease: store.Lease) -> bool:
        """Return whether a user's share of the processors is in use, as far as is known."""
        return 0 < lease.share <= self.running.get(account_of(lease), 0)

    def holds_back(self, lease: store.Lease) -> bool:
        """Return whether a task must wait for that: nobody knows how long it takes."""
        return self.is_full(lease) and (lease.is_new or account_of(lease) in self.overrun)


def account_of(lease: store.Lease) -> int:
    """Return the lane that is charged for a task: that of its user without limits."""
    return store.lane_of(lease.queue, lease.user) if lease.lane & 1 else lease.lane
