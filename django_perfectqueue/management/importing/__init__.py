"""Reads the tables of other queues, and moves what waits there into this one."""

from .move import ImportTally, Move, SkipReason, Table
from .sources import CeleryBeat, DjangoQ2, DjangoTasksDb, PerfectQueue

SOURCES: dict[str, type[Table]] = {
    table.source: table for table in (PerfectQueue, DjangoTasksDb, DjangoQ2, CeleryBeat)
}

__all__ = ["SOURCES", "ImportTally", "Move", "SkipReason"]
