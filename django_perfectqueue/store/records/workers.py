"""Keep the register of the workers of all hosts."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db.models.expressions import Combinable

from django_perfectqueue.models import UNSEEN, Worker
from django_perfectqueue.models.fields import ServerNow

from ..database.transaction import retry_transaction, timely

KEPT = 3600.0
BATCH = 100
RENEWED = ("states_text", "leaving", "problem", "seen_at", "drifted_at")


@retry_transaction
def register(
    worker: Worker,
    *,
    using: str,
    age: float = 0.0,
    drifted: float | None = None,
    now: datetime | None = None,
) -> None:
    """
    Enter a worker in the register, or renew its entry, which holds until UNSEEN has passed.

    It started ``age`` seconds ago, and ``drifted`` is how many seconds ago it last corrected a
    counter, or None. A new entry also deletes up to BATCH entries that have not been renewed
    for KEPT seconds.
    """
    rows, moment = Worker.objects.using(using), now or ServerNow()

    def ago(seconds: float) -> datetime | Combinable:
        return moment - timedelta(seconds=seconds)

    worker.seen_at, worker.started_at = moment, ago(age)
    worker.drifted_at = None if drifted is None else ago(drifted)
    with timely(using):
        if rows.filter(pk=worker.pk).update(**{name: getattr(worker, name) for name in RENEWED}):
            return
        worker.save(using=using, force_insert=True)
        old = rows.filter(seen_at__lte=ago(UNSEEN.total_seconds() + KEPT)).order_by("seen_at")
        sign_off(*old.values_list("pk", flat=True)[:BATCH], using=using)


@retry_transaction
def sign_off(*ids: int, using: str) -> None:
    """Delete the entries of these workers."""
    Worker.objects.using(using).filter(pk__in=ids).delete()
