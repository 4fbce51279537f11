"""Who steered which task or schedule, by a command or in the admin."""

from __future__ import annotations

from django.db.models import QuerySet
from django.utils.translation import gettext_lazy

from django_perfectqueue.fairness.wording import changed_values, difference
from django_perfectqueue.lib.printable import printable
from django_perfectqueue.models import Change, Task
from django_perfectqueue.store.records.journal import DID, SIGNAL

SHOWN = 20
ACTIONS = {
    "retried": gettext_lazy("put back in line"),
    "cancelled": gettext_lazy("cancelled"),
    "requested": gettext_lazy("cancel requested"),
    "finished": gettext_lazy("closed as finished"),
    "deleted": gettext_lazy("deleted"),
    "moved": gettext_lazy("moved to another queue"),
    "edited": gettext_lazy("data edited"),
    "copied": gettext_lazy("copied"),
    "made": gettext_lazy("submitted as a copy"),
    "signalled": gettext_lazy("signal sent"),
    "bulk retry": gettext_lazy("bulk operation asked for: retry"),
    "bulk cancel": gettext_lazy("bulk operation asked for: cancel"),
    "bulk delete": gettext_lazy("bulk operation asked for: delete"),
    "bulk move": gettext_lazy("bulk operation asked for: move"),
    "bulk edit": gettext_lazy("bulk operation asked for: edit"),
    "reprioritized": gettext_lazy("given another priority"),
    "began": gettext_lazy("began"),
    "added": gettext_lazy("added"),
    "changed": gettext_lazy("changed"),
    "triggered": gettext_lazy("run now"),
    "backfilled": gettext_lazy("past ticks submitted"),
}


def actions_of(task: Task, *, using: str) -> QuerySet[Change]:
    """Return what people did to a task, not to an earlier task of its key; the last first."""
    rows = Change.objects.using(using).filter(
        kind=Change.Kind.TASK, name=task.key, queue=task.queue, at__gte=task.created_at
    )
    return rows.order_by("-pk")[:SHOWN]


def describe_action(change: Change) -> str:
    """Return what a person did to a task or a schedule, or that a release began."""
    after = change.after or {}
    word = after.get(DID, "")
    said = str(ACTIONS.get(word, word))
    if SIGNAL in after:
        said = f"{said}: {printable(str(after[SIGNAL]))}"
    return f"{said}: {after['from']} → {change.queue}" if word == "moved" else said


def describe_change(change: Change) -> str:
    """Return what a change of any kind has changed, or what is stored if that can't be read."""
    whole = all(isinstance(each, dict | None) for each in (change.before, change.after))
    if not whole or change.kind not in Change.Kind.values:
        return f"{change.before} → {change.after}"
    if change.kind in (Change.Kind.TASK, Change.Kind.RELEASE):
        return describe_action(change)
    if change.kind == Change.Kind.SCHEDULE:
        return ": ".join(filter(None, [describe_action(change), changed_values(change)]))
    return difference(change)
