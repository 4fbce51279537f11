"""Record what people have done to tasks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from django_perfectqueue.models import CHANGES, Change
from django_perfectqueue.models.fields import ServerNow

from ..values import as_text

LONGEST_NAME = 255
BATCH = 500
DID = "did"


def sign(
    tasks: Iterable[tuple[str, str]],
    word: str,
    *,
    by: str,
    using: str,
    more: Mapping[str, object] | None = None,
) -> None:
    """
    Record what a person has done to tasks, given by queue and key; ``more`` are its terms.

    Of tasks the last CHANGES records are kept; those of shares and limits are apart.
    """
    after = {DID: word, **(more or {})}
    row = {"kind": Change.Kind.TASK.value, "by": as_text(by, LONGEST_NAME), "after": after}
    made = [Change(at=ServerNow(), name=key, queue=queue, **row) for queue, key in tasks]
    if not made:
        return
    rows = Change.objects.using(using)
    rows.bulk_create(made, batch_size=BATCH)
    if last := rows.order_by("-pk").values_list("pk", flat=True).first():
        rows.filter(pk__lte=last - CHANGES, kind=Change.Kind.TASK).delete()
