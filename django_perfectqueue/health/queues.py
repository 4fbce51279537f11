"""Which queues are looked at where none is named."""

from __future__ import annotations

from django_perfectqueue import conf
from django_perfectqueue.compat import HAS_TASKS
from django_perfectqueue.lib.distinct import names
from django_perfectqueue.models import Lane


def named_queues(using: str) -> list[str]:
    """Return the queues that the settings name: DEFAULT_QUEUE, and QUEUES of the backends."""
    named = [conf.options().DEFAULT_QUEUE]
    if HAS_TASKS:
        from django_perfectqueue.backend.base import configured

        for backend in configured():
            named += backend.queue_names if backend.using == using else []
    return list(dict.fromkeys(named))


def used_queues(using: str) -> list[str]:
    """Return the queues that have had tasks, 50 at most, by the index of lanes."""
    return names(Lane.objects.using(using), "queue")
