"""Reads the tables of other queues, and moves what waits there into this one."""

from .celery_beat import CeleryBeat
from .dj_queue import DjQueue
from .django_ox import DjangoOx
from .django_q2 import DjangoQ2
from .django_tasks_db import DjangoTasksDb
from .move import Move, Tally
from .perfectqueue import PerfectQueue
from .perfectsched import PerfectSched
from .source import Source

SOURCES: dict[str, type[Source]] = {
    kind.name: kind
    for kind in (PerfectQueue, DjangoTasksDb, DjangoQ2, CeleryBeat, DjangoOx, DjQueue, PerfectSched)
}

__all__ = ["SOURCES", "Move", "Source", "Tally"]
