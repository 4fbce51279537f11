"""A task in a test's hands, which notes what becomes of it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from django_perfectqueue import store
from django_perfectqueue.payload.codecs import JSON
from django_perfectqueue.queue import AcquiredTask


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

    def _end(self, ending: store.Ending, *, now: datetime | None = None) -> None:
        super()._end(ending, now=now or self.moment)
        self.wait = None if ending.outcome else ending.wait
