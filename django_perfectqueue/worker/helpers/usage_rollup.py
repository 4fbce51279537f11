"""Record waiting users, and roll up the usage of users."""

from __future__ import annotations

import time

from django_perfectqueue import store

from ..plan import Plan

NOTE_INTERVAL = 4.0
SUM_INTERVAL = 60.0
QUIET = 3.0


class UsageRollup:
    """
    Records waiting users and sums up usage for all queues, in small steps.

    Several hosts may do so at once with the same result. While no user waits, the intervals
    are QUIET times as long.
    """

    def __init__(self, plan: Plan) -> None:
        self.using = plan.using
        self.keep = plan.options.USAGE_TIME
        self.next_note = self.next_sum = 0.0
        self.pause = QUIET

    def work(self) -> None:
        """Do the steps that are due; called every few seconds."""
        if self.keep == 0:
            return
        now = time.monotonic()
        if now >= self.next_note:
            self.pause = 1.0 if store.note_waiting(using=self.using) else QUIET
            self.next_note = now + NOTE_INTERVAL * self.pause
        if now >= self.next_sum:
            store.roll_up(using=self.using, keep=self.keep)
            self.next_sum = now + SUM_INTERVAL * self.pause
