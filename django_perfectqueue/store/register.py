"""Tell the other hosts which workers there are."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ..models import UNSEEN
from .dialects import Dialect
from .dialects.base import numbers
from .transaction import reading, repeated
from .values import new_holder

KEPT = 3600.0
BATCH = 100

RENEW = 'UPDATE "perfectqueue_worker" SET "seen_at" = {now} WHERE "id" = %(id)s'
ENTER = """
INSERT INTO "perfectqueue_worker" (
    "id", "host", "pid", "version", "processors", "queues", "routes", "started_at", "seen_at"
) VALUES (
    %(id)s, %(host)s, %(pid)s, %(version)s, %(processors)s, %(queues)s, %(routes)s,
    {started_at}, {now}
)
"""
STRIKE = 'DELETE FROM "perfectqueue_worker" WHERE "id" IN ({ids})'
OLD = """
SELECT "id" FROM "perfectqueue_worker"
WHERE "seen_at" <= {before} ORDER BY "seen_at" LIMIT %(limit)s
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """
    What a worker tells of itself, under a number that no other has.

    ``queues`` and ``routes`` are JSON. ``born`` is by the host's monotonic clock.
    """

    host: str
    pid: int
    version: str
    processors: int
    queues: str
    routes: str
    id: int = field(default_factory=new_holder)
    born: float = field(default_factory=time.monotonic)


@repeated
def register(worker: Registration, *, using: str, now: datetime | None = None) -> None:
    """
    Say that a worker is alive, which is good until UNSEEN has passed.

    Who enters the register strikes out those that are long gone.
    """
    with reading(using) as (cursor, dialect):
        if dialect.execute(cursor, RENEW, {"id": worker.id}, now=now).rowcount:
            return
        values = {
            "id": worker.id,
            "host": worker.host[:255],
            "pid": worker.pid,
            "version": worker.version,
            "processors": worker.processors,
            "queues": worker.queues,
            "routes": worker.routes,
        }
        started = {"started_at": worker.born - time.monotonic()}
        dialect.execute(cursor, ENTER, values, now=now, after=started)
        forget(cursor, dialect, now)


@repeated
def sign_off(worker: Registration, *, using: str) -> None:
    """Say that a worker takes no more tasks."""
    with reading(using) as (cursor, dialect):
        dialect.execute(cursor, STRIKE.replace("{ids}", numbers([worker.id])))


def forget(cursor: Any, dialect: Dialect, now: datetime | None) -> None:
    """Delete some of the workers that have been gone for KEPT seconds."""
    before = {"before": -UNSEEN.total_seconds() - KEPT}
    found = dialect.execute(cursor, OLD, {"limit": BATCH}, now=now, after=before).fetchall()
    if found:
        ids = numbers(sorted(id_ for (id_,) in found))
        dialect.execute(cursor, STRIKE.replace("{ids}", ids))
