"""Record who changed which share or limit, and apply it, whichever door it came through."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from functools import partial

from django.db import transaction
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
)
from django_perfectqueue.models.fields import ServerNow
from django_perfectqueue.store.lanes.apply import apply_limit, apply_shares
from django_perfectqueue.store.limits.meters import forget_limits
from django_perfectqueue.store.values import as_text

Rule = FairShare | QueueShare | Limit

LONGEST_NAME = 255
# After so many changes it is looked whether there are too many.
EVERY = 100
FORMER = "_former"
# Of a pause, as far as it has them.
TERMS = ("paused_until", "note")
PAUSE = ("paused", *TERMS)
VALUES: dict[type[Rule], tuple[str, ...]] = {
    FairShare: ("weight", "max_running", *PAUSE),
    QueueShare: ("weight",),
    Limit: ("max_running", "rate", "period", "burst", *PAUSE),
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
        pre_save.connect(remember, sender=model)
        post_save.connect(record_saved, sender=model)
        post_delete.connect(record_deleted, sender=model)


def remember(*, instance: Rule, using: str, **kwargs: object) -> None:
    """Keep what the row was before; name who pauses it, and clear that of one not paused."""
    rows = type(instance)._base_manager.using(using)
    before = rows.filter(pk=instance.pk).first() if instance.pk else None
    setattr(instance, FORMER, before)
    if isinstance(instance, QueueShare):
        return
    if not instance.paused:
        instance.paused_until, instance.note, instance.paused_by = None, "", ""
    elif before is None or any(getattr(before, name) != getattr(instance, name) for name in PAUSE):
        instance.paused_by = actor.get()


def record_saved(*, instance: Rule, using: str, **kwargs: object) -> None:
    before: Rule | None = getattr(instance, FORMER)
    if before is not None and subject(before) != subject(instance):
        record_deleted(instance=before, using=using)
        before = None
    record(before, instance, using=using)
    apply(instance, using=using)


def record_deleted(*, instance: Rule, using: str, **kwargs: object) -> None:
    record(instance, None, using=using)
    apply(instance, using=using)


def apply(rule: Rule, *, using: str) -> None:
    """Apply a rule that was edited to the tasks that wait, once this is committed."""
    if isinstance(rule, Limit):
        # What is submitted in the same transaction keeps to it already.
        forget_limits(using)
        act = partial(apply_limit, rule.key, using=using)
    elif isinstance(rule, FairShare):
        act = partial(apply_shares, rule.user, using=using)
    else:
        return
    transaction.on_commit(act, using=using)


def record(before: Rule | None, after: Rule | None, *, using: str) -> None:
    """Write down a change, if it is one, and forget those that are too many."""
    rule = after or before
    if rule is None or values(before) == values(after):
        return
    write(rule, Change(by=actor.get(), before=values(before), after=values(after)), using=using)


def write(rule: Rule | Schedule, change: Change, *, using: str) -> None:
    """Store a change of a rule or a schedule, and forget those that are too many."""
    change.at = ServerNow()
    for name, value in subject(rule).items():
        setattr(change, name, value)
    change.save(using=using)
    over = changes_of(rule, using=using).values_list("pk", flat=True)
    for last in over[CHANGES_OF_ONE : CHANGES_OF_ONE + 1]:
        changes_of(rule, using=using).filter(pk__lte=last).delete()
    # Those of tasks are forgotten apart: of a bulk operation there may be very many.
    others = Change.objects.using(using).exclude(kind=Change.Kind.TASK)
    if change.pk > CHANGES and not change.pk % EVERY:
        for last in others.order_by("-pk").values_list("pk", flat=True)[CHANGES : CHANGES + 1]:
            others.filter(pk__lte=last).delete()


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


def values(rule: Rule | None) -> dict[str, object] | None:
    if rule is None:
        return None
    found = {name: getattr(rule, name) for name in VALUES[type(rule)]}
    return {
        name: value.isoformat() if isinstance(value, datetime) else value
        for name, value in found.items()
        if value or name not in TERMS
    }
