"""Fair shares and limits as people set them: checked, and only what is given is changed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import IntegrityError
from django.db.models import Field, FloatField, QuerySet

from django_perfectqueue.exceptions import ConfigError
from django_perfectqueue.lib.checks import AWARE, LARGEST, TRUE_OR_FALSE, Check, number, text, whole
from django_perfectqueue.models import EVERYONE, MOST_BURST_TIME, FairShare, Limit, QueueShare
from django_perfectqueue.models.fields import ServerNow
from django_perfectqueue.store.database.transaction import (
    in_transaction,
    retry_transaction,
    with_retries,
)
from django_perfectqueue.store.lanes.shares import share_among

from .audit import VALUES, acting

R = TypeVar("R", FairShare, QueueShare, Limit)
P = TypeVar("P", FairShare, Limit)

# Of pauses whose time is over.
OVER = {"paused": True, "paused_until__lte": ServerNow()}
MOST = 1_000


def share_in_force(user: str, queue: str, *, using: str) -> FairShare:
    """
    Return the share that holds for a user in a queue, or where that is empty in all others.

    It may be the row of every queue, or of everyone; where there is none, it is a new one.
    """
    return shares_in_force([user], queue, using=using)[user]


def shares_in_force(users: Collection[str], queue: str, *, using: str) -> dict[str, FairShare]:
    """Return the same of each of these users."""
    rows = FairShare.objects.using(using).filter(user__in=[*users, EVERYONE], queue__in=[queue, ""])
    found = {(row.queue, row.user): row for row in with_retries(lambda: list(rows), using=using)}
    return {
        user: share_among(found, queue, user) or FairShare(user=user, queue=queue) for user in users
    }


def change_share(
    user: str, queue: str, given: Mapping[str, object], *, using: str, by: str = ""
) -> FairShare:
    """
    Change what is given of a share; one that is new has the rest of the share that held.

    Raise ConfigError.
    """

    def rest() -> dict[str, object]:
        held = share_in_force(user, queue, using=using)
        return {name: getattr(held, name) for name in VALUES[FairShare]}

    owner = {"user": user, "queue": queue}
    return change(FairShare, owner, given, rest, using=using, by=by)


def change(
    kind: type[R],
    owner: Mapping[str, object],
    given: Mapping[str, object],
    rest: Callable[[], Mapping[str, object]] = dict,
    *,
    using: str,
    by: str = "",
) -> R:
    """
    Change what is given of a row, or make one with the ``rest``; nobody else changes it meanwhile.

    Raise ConfigError.
    """
    values = checked(kind, given)

    def save() -> R:
        with in_transaction(using, apart=True), acting(by):
            row = locked(kind, owner, using=using) or kind(**owner, **rest())
            for name, value in values.items():
                setattr(row, name, value)
            if isinstance(row, Limit):
                check_limit(row, values)
            if values.get("paused_until") and not getattr(row, "paused", False):
                raise ConfigError("until is the end of a pause: give paused=True, too.")
            row.save(using=using)
            return row

    try:
        return with_retries(save, using=using)
    except IntegrityError:
        # Someone else has made it just now.
        return with_retries(save, using=using)


def check_limit(row: Limit, given: Mapping[str, object]) -> None:
    """Clear what belongs to no rate; raise ConfigError where a value says nothing or too much."""
    if row.pk is None and not given:
        raise ConfigError(f"There is no limit '{row.key}' yet: give max_running, rate or paused.")
    if row.rate is None:
        for name in ("period", "burst"):
            if given.get(name) is not None:
                raise ConfigError(f"A {name} needs a rate: give the rate, too.")
        row.period, row.burst = 1.0, None
    elif row.burst is not None:
        most = int(row.rate * MOST_BURST_TIME / row.period)
        if row.burst > most:
            raise ConfigError(
                f"The burst may be at most {most:,} at this rate, which is what may start in 366"
                f" days, not {row.burst:,}."
            )


def pause(paused: object, until: object, note: object) -> dict[str, object]:
    """Return the values of a row that say whether it is paused, until when and why."""
    return {"paused": paused, "paused_until": until, "note": note}


def pause_user(user: str, given: Mapping[str, object], *, using: str, by: str = "") -> None:
    """
    Pause a user in every queue, as pause() says.

    Raise ConfigError.
    """
    queues = shares_of(user, using=using).values_list("queue", flat=True)
    for queue in {"", *queues}:
        change_share(user, queue, given, using=using, by=by)


def unpause_user(user: str, *, by: str = "", using: str) -> bool:
    """Let a user go on in every queue; return whether it was paused by a share of its own."""
    paused = {"user": user, "paused": True}
    rows = shares_of(user, using=using).values("queue")
    return sum([end_pause(FairShare, paused | row, using=using, by=by) for row in rows]) > 0


def shares_of(user: str, *, using: str) -> QuerySet[FairShare]:
    """Return the shares that a user has of its own: that of every queue first."""
    return FairShare.objects.using(using).filter(user=user).order_by("queue")


def end_pauses(*, using: str) -> int:
    """End the pauses whose time is over by the clock of the server; return how many there were."""
    return end_over(FairShare, using=using) + end_over(Limit, using=using)


def end_over(kind: type[P], *, using: str) -> int:
    rows = kind._base_manager.using(using).filter(**OVER).values("pk")[:MOST]
    # Once it is locked it is asked again: its end may have been moved meanwhile.
    return sum([end_pause(kind, row | OVER, using=using) for row in rows])


@retry_transaction
def end_pause(kind: type[P], which: Mapping[str, object], *, using: str, by: str = "") -> bool:
    """
    Unpause the row that this finds, or remove a limit that then limits nothing; return whether
    there was one.
    """
    with in_transaction(using), acting(by):
        row = locked(kind, which, using=using)
        if isinstance(row, Limit) and row.max_running is None and row.rate is None:
            row.delete(using=using)
        elif row is not None:
            row.paused = False
            row.save(using=using)
        return row is not None


@retry_transaction
def remove(kind: type[R], owner: Mapping[str, object], *, using: str, by: str = "") -> bool:
    """Remove a share or a limit; return whether there was one."""
    with in_transaction(using), acting(by):
        row = locked(kind, owner, using=using)
        if row is not None:
            row.delete(using=using)
        return row is not None


def locked(kind: type[R], owner: Mapping[str, object], *, using: str) -> R | None:
    row: R | None = kind._base_manager.using(using).select_for_update().filter(**owner).first()
    return row


def checked(kind: type[R], given: Mapping[str, object]) -> dict[str, object]:
    """Return the given values of a row; raise ConfigError when one can't be."""
    fields = {field.name: field for field in kind._meta.concrete_fields}
    return {
        name: check_of(fields[name]).require(LABELS.get(name, f"The {name}"), value, ConfigError)
        for name, value in given.items()
        if value is not ...
    }


LABELS = {"paused_until": "until"}
CHECKS = {"paused": TRUE_OR_FALSE, "paused_until": AWARE.or_none(), "note": text(255)}


def check_of(field: Field[Any, Any]) -> Check:
    """Return the check of a column, by its type and its validators."""
    if field.name in CHECKS:
        return CHECKS[field.name]
    lows = [one.limit_value for one in field.validators if isinstance(one, MinValueValidator)]
    tops = [one.limit_value for one in field.validators if isinstance(one, MaxValueValidator)]
    least, most = max(lows), min([LARGEST, *tops])
    if isinstance(field, FloatField):
        return number(least, most)
    return whole(least, most).or_none()
