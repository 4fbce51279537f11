"""Who steered which task or schedule, by a command or in the admin."""

from __future__ import annotations

from collections.abc import Iterable

from django.utils.translation import gettext_lazy

from django_perfectqueue.fairness.wording import changed_values, difference
from django_perfectqueue.models import CHANGES, Change, Task
from django_perfectqueue.models.fields import ServerNow
from django_perfectqueue.store.values import as_text

LONGEST_NAME = 255
BATCH = 500
SHOWN = 20
DID = "did"
ACTIONS = {
    "retried": gettext_lazy("put back in line"),
    "cancelled": gettext_lazy("cancelled"),
    "requested": gettext_lazy("cancel requested"),
    "finished": gettext_lazy("closed as finished"),
    "deleted": gettext_lazy("deleted"),
    "reprioritized": gettext_lazy("given another priority"),
    "added": gettext_lazy("added"),
    "changed": gettext_lazy("changed"),
    "triggered": gettext_lazy("run now"),
    "backfilled": gettext_lazy("past ticks submitted"),
}


def sign(tasks: Iterable[tuple[str, str]], word: str, *, by: str, using: str) -> None:
    """
    Record what a person has done to tasks, given by queue and key, after it was done.

    It is not in the transactions of these verbs, which lock rows that workers need; so it
    may be missing where the process dies in between.
    """
    row = {"kind": Change.Kind.TASK.value, "by": as_text(by, LONGEST_NAME), "after": {DID: word}}
    made = [Change(at=ServerNow(), name=key, queue=queue, **row) for queue, key in tasks]
    if not made:
        return
    rows = Change.objects.using(using)
    rows.bulk_create(made, batch_size=BATCH)
    if last := rows.order_by("-pk").values_list("pk", flat=True).first():
        rows.filter(pk__lte=last - CHANGES).delete()


def actions_of(task: Task, *, using: str) -> list[Change]:
    """Return what people did to a task, not to an earlier task of its key; the last first."""
    rows = Change.objects.using(using).filter(
        kind=Change.Kind.TASK, name=task.key, queue=task.queue, at__gte=task.created_at
    )
    return list(rows.order_by("-pk")[:SHOWN])


def describe_action(change: Change) -> str:
    """Return what a person did to a task or a schedule."""
    word = (change.after or {}).get(DID, "")
    return str(ACTIONS.get(word, word))


def describe_change(change: Change) -> str:
    """Return what a change of any kind has changed."""
    if change.kind == Change.Kind.TASK:
        return describe_action(change)
    if change.kind == Change.Kind.SCHEDULE:
        return ": ".join(filter(None, [describe_action(change), changed_values(change)]))
    return difference(change)
