"""Keep the register of the workers of all hosts."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta

from django.db.models.expressions import Combinable

from django_perfectqueue.models import UNSEEN, Worker
from django_perfectqueue.models.fields import ServerNow

from ..database.transaction import retry_transaction, timely
from ..values import new_holder

KEPT = 3600.0
BATCH = 100


@dataclass(slots=True, kw_only=True)
class Registration:
    """
    A worker as the register shows it, under an id that no other worker has.

    Its fields are those of the model, but for ``born``: a time of the host's monotonic clock,
    in seconds.
    """

    host: str
    pid: int
    start: int = 0
    pid_space: str = ""
    launcher: int = 0
    generation: int = 1
    version: str
    processors: int
    queues_text: str
    routes_text: str
    schedules_text: str = "[]"
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
    ``problem`` what of its upkeep has failed lately. A new entry also deletes up to BATCH
    entries that have not been renewed for KEPT seconds.
    """
    rows, moment = Worker.objects.using(using), now or ServerNow()

    def ago(seconds: float) -> datetime | Combinable:
        return moment - timedelta(seconds=seconds)

    state = {
        "seats_text": seats,
        "leaving": leaving,
        "problem": problem,
        "seen_at": moment,
        "drifted_at": None if drifted is None else ago(drifted),
    }
    with timely(using):
        if rows.filter(pk=worker.id).update(**state):
            return
        given = asdict(worker) | {"host": worker.host[:255]} | state
        rows.create(started_at=ago(time.monotonic() - given.pop("born")), **given)
        old = rows.filter(seen_at__lte=ago(UNSEEN.total_seconds() + KEPT)).order_by("seen_at")
        sign_off(*old.values_list("pk", flat=True)[:BATCH], using=using)


@retry_transaction
def sign_off(*ids: int, using: str) -> None:
    """Delete the entries of these workers."""
    Worker.objects.using(using).filter(pk__in=ids).delete()
