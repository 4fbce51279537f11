"""A task in a test's hands, which notes what becomes of it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from django_perfectqueue import store
from django_perfectqueue.conf import options
from django_perfectqueue.payload.names import JSON
from django_perfectqueue.queue import AcquiredTask, Duration
from django_perfectqueue.verdicts import SHORTEST_WAIT, Snooze, wait_of


class HeldTask(AcquiredTask):
    """
    An acquired task whose verbs take the time from the test, where that has set one.

    ``returned`` and ``wait`` are what its handler has settled it with.
    """

    moment: datetime | None = None
    returned: JSON = None
    wait: float | None = None

    def write(self, completion: store.Completion) -> bool:
        """Write that its handler has returned; return False where it is held no more."""
        using, worker = self.lease.using, self.worker
        return not store.finish([completion], using=using, worker=worker, now=self.moment)

    def heartbeat(self, *, now: datetime | None = None) -> None:
        super().heartbeat(now=now or self.moment)

    def update_data(self, changes: Mapping[str, object], *, now: datetime | None = None) -> None:
        super().update_data(changes, now=now or self.moment)

    def finish(self, result: object = None, *, now: datetime | None = None) -> None:
        super().finish(result, now=now or self.moment)
        self.returned = result

    def retry(
        self,
        wait: Duration | None = None,
        *,
        why: store.Failure | None = None,
        now: datetime | None = None,
    ) -> None:
        super().retry(wait, why=why, now=now)
        self.wait = options().RETRY_WAIT if wait is None else wait_of("retry()", wait)

    def release(self, delay: Duration = 0.0, *, now: datetime | None = None) -> None:
        super().release(delay, now=now)
        self.wait = max(SHORTEST_WAIT, wait_of("release()", delay))

    def _let_go(self, wait: float = 0.0, *, now: datetime | None = None) -> None:
        super()._let_go(wait, now=now or self.moment)

    def snooze(self, after: Duration, *, now: datetime | None = None) -> None:
        super().snooze(after, now=now or self.moment)
        self.wait = Snooze(after).after

    def _terms(self, now: datetime | None) -> dict[str, object]:
        return super()._terms(now or self.moment)
