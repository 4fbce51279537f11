"""Keep the register of the workers of all hosts."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import datetime

from django_perfectqueue.models import UNSEEN

from ..database.session import Session
from ..database.transaction import reading, retry_transaction, timely
from ..values import new_holder

KEPT = 3600.0
BATCH = 100

GIVEN = (
    "pid", "start", "pid_space", "launcher", "generation", "version", "release", "processors",
    "queues", "routes", "schedules",
)  # fmt: skip
RENEW = """
UPDATE "perfectqueue_worker"
SET "seen_at" = {now}, "leaving" = %(leaving)s, "seats" = %(seats)s, "drifted_at" = {drifted_at},
    "problem" = %(problem)s
WHERE "id" = %(id)s
"""
ENTER = """
INSERT INTO "perfectqueue_worker" (
    "id", "host", "pid", "start", "pid_space", "launcher", "generation", "version", "release",
    "processors", "queues", "routes", "schedules", "seats", "leaving", "started_at",
    "seen_at", "drifted_at", "problem"
) VALUES (
    %(id)s, %(host)s, %(pid)s, %(start)s, %(pid_space)s, %(launcher)s, %(generation)s,
    %(version)s, %(release)s, %(processors)s, %(queues)s, %(routes)s, %(schedules)s, %(seats)s,
    %(leaving)s, {started_at}, {now}, {drifted_at}, %(problem)s
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
    A worker as the register shows it, under an id that no other worker has.

    ``pid`` is its supervisor's, ``start`` and ``pid_space`` are as in the model, and
    ``generation`` counts the supervisors that its launcher has started. ``queues``, ``routes``
    and ``schedules`` are JSON. ``born`` is a time of the host's monotonic clock, in seconds.
    """

    host: str
    pid: int
    start: int = 0
    pid_space: str = ""
    launcher: int = 0
    generation: int = 1
    version: str
    release: str = ""
    processors: int
    queues: str
    routes: str
    schedules: str = "[]"
    id: int = field(default_factory=new_holder)
    born: float = field(default_factory=time.monotonic)


@retry_transaction
def register(
    worker: Registration,
    *,
    using: str,
    seats: str = "[]",
    leaving: bool = False,
    drifted: float | None = None,
    problem: str = "",
    now: datetime | None = None,
) -> None:
    """
    Enter a worker in the register, or renew its entry, which holds until UNSEEN has passed.

    ``seats`` is JSON: what each processor does. A worker that is ``leaving`` takes no more
    tasks. ``drifted`` is how many seconds ago it last corrected a counter, or None, and
    ``problem`` what of its upkeep has failed lately. A new entry also deletes entries that
    are long out of date.
    """
    with timely(using) as db:
        state = {"id": worker.id, "seats": seats, "leaving": leaving, "problem": problem}
        then = {"drifted_at": None if drifted is None else -drifted}
        if db.execute(RENEW, state, now=now, after=then).rowcount:
            return
        values = {
            **state,
            "host": worker.host[:255],
            **{name: getattr(worker, name) for name in GIVEN},
        }
        then["started_at"] = worker.born - time.monotonic()
        db.execute(ENTER, values, now=now, after=then)
        forget(db, now)


@retry_transaction
def sign_off(*ids: int, using: str) -> None:
    """Delete the entries of these workers."""
    with reading(using) as db:
        db.execute(STRIKE, ids=ids)


def forget(db: Session, now: datetime | None) -> None:
    """Delete up to BATCH entries that have not been renewed for KEPT seconds."""
    before = {"before": -UNSEEN.total_seconds() - KEPT}
    found = db.rows(OLD, {"limit": BATCH}, now=now, after=before)
    if found:
        db.execute(STRIKE, ids=sorted(id_ for (id_,) in found))
