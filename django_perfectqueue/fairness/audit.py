"""
Who changed which share or limit, and when: kept whichever door it came through.

And who steered which task, by a command or in the admin.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from django.db.models import QuerySet
from django.db.models.signals import post_delete, post_save, pre_save

from django_perfectqueue.models import (
    CHANGES,
    CHANGES_OF_ONE,
    Change,
    FairShare,
    Limit,
    QueueShare,
    Schedule,
    Task,
)
from django_perfectqueue.models.fields import ServerNow
from django_perfectqueue.store.values import as_text

Rule = FairShare | QueueShare | Limit

LONGEST_NAME = 255
SIGNED = 500
DEEDS = 20
DID = "did"
VALUES: dict[type[Rule], tuple[str, ...]] = {
    FairShare: ("weight", "max_running", "paused"),
    QueueShare: ("weight",),
    Limit: ("max_running", "rate", "period", "burst", "paused"),
}

actor: ContextVar[str] = ContextVar("actor", default="")


@contextmanager
def acting(by: str) -> Iterator[None]:
    """Put down what is changed in here to someone; an empty name leaves it to who is outside."""
    token = actor.set(as_text(by, LONGEST_NAME) if by else actor.get())
    try:
        yield
    finally:
        actor.reset(token)


def follow_changes() -> None:
    for model in VALUES:
        pre_save.connect(remember, sender=model, dispatch_uid="perfectqueue_remember")
        post_save.connect(record_saved, sender=model, dispatch_uid="perfectqueue_record")
        post_delete.connect(record_deleted, sender=model, dispatch_uid="perfectqueue_record")


def remember(*, instance: Any, using: str, **kwargs: object) -> None:
    """Keep what the row was before."""
    rows = type(instance)._base_manager.using(using)
    instance._former = rows.filter(pk=instance.pk).first() if instance.pk else None


def former(instance: object) -> Any:
    """Return what the row was before it was saved, or None."""
    return getattr(instance, "_former", None)


def record_saved(*, instance: Rule, using: str, **kwargs: object) -> None:
    before = former(instance)
    if before is not None and subject(before) != subject(instance):
        record(before, None, using=using)
        before = None
    record(before, instance, using=using)


def record_deleted(*, instance: Rule, using: str, **kwargs: object) -> None:
    record(instance, None, using=using)


def record(before: Rule | None, after: Rule | None, *, using: str) -> None:
    """Write down a change, if it is one, and forget those that are too many."""
    rule = after or before
    if rule is None or values(before) == values(after):
        return
    rows = Change.objects.using(using)
    change = rows.create(
        at=ServerNow(),
        by=actor.get(),
        **subject(rule),
        before=values(before),
        after=values(after),
    )
    over = changes_of(rule, using=using).values_list("pk", flat=True)
    for last in over[CHANGES_OF_ONE : CHANGES_OF_ONE + 1]:
        changes_of(rule, using=using).filter(pk__lte=last).delete()
    rows.filter(pk__lte=change.pk - CHANGES).delete()


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
    rows.bulk_create(made, batch_size=SIGNED)
    if last := rows.order_by("-pk").values_list("pk", flat=True).first():
        rows.filter(pk__lte=last - CHANGES).delete()


def actions_of(task: Task, *, using: str) -> list[Change]:
    """Return what people did to a task, not to an earlier task of its key; the last first."""
    rows = Change.objects.using(using).filter(
        kind=Change.Kind.TASK, name=task.key, queue=task.queue, at__gte=task.created_at
    )
    return list(rows.order_by("-pk")[:DEEDS])


def changes_of(rule: Rule | Schedule, *, using: str) -> QuerySet[Change]:
    """Return the changes of a share, a limit or a schedule, the last one first."""
    return Change.objects.using(using).filter(**subject(rule)).order_by("-pk")


def subject(rule: Rule | Schedule) -> dict[str, str]:
    """Return what identifies a rule's changes, also after the row was deleted and made again."""
    if isinstance(rule, FairShare):
        return {"kind": Change.Kind.SHARE.value, "name": rule.user, "queue": rule.queue}
    if isinstance(rule, QueueShare):
        return {"kind": Change.Kind.QUEUE.value, "name": "", "queue": rule.queue}
    if isinstance(rule, Schedule):
        return {"kind": Change.Kind.SCHEDULE.value, "name": rule.name, "queue": ""}
    return {"kind": Change.Kind.LIMIT.value, "name": rule.key, "queue": ""}


def values(rule: Rule | None) -> dict[str, Any] | None:
    return None if rule is None else {name: getattr(rule, name) for name in VALUES[type(rule)]}
