"""Fair shares and limits as people set them: checked, and only what is given is changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import IntegrityError
from django.db.models import BooleanField, Field, FloatField

from django_perfectqueue.exceptions import ConfigError
from django_perfectqueue.lib.checks import LARGEST, TRUE_OR_FALSE, Check, number, whole
from django_perfectqueue.models import (
    EVERYONE,
    MOST_BURST_TIME,
    FairShare,
    Limit,
    QueueShare,
)
from django_perfectqueue.store.database.transaction import (
    in_transaction,
    retry_transaction,
    with_retries,
)
from django_perfectqueue.store.lanes.shares import places

from .audit import acting

R = TypeVar("R", FairShare, QueueShare, Limit)
P = TypeVar("P", FairShare, Limit)


def share_in_force(user: str, queue: str, *, using: str) -> FairShare:
    """
    Return the share that holds for a user in a queue, or where that is empty in all others.

    It may be the row of every queue, or of everyone; where there is none, it is a new one.
    """
    rows = FairShare.objects.using(using).filter(user__in=[user, EVERYONE], queue__in=[queue, ""])
    found = {(row.queue, row.user): row for row in with_retries(lambda: list(rows), using=using)}
    held = (found[place] for place in places(queue, user) if place in found)
    return next(held, FairShare(user=user, queue=queue))


def change_share(
    user: str, queue: str, given: Mapping[str, object], *, using: str, by: str = ""
) -> FairShare:
    """
    Change what is given of a share; one that is new has the rest of the share that held.

    Raise ConfigError.
    """

    def rest() -> dict[str, object]:
        held = share_in_force(user, queue, using=using)
        return {name: getattr(held, name) for name in ("weight", "max_running", "paused")}

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
                raise ConfigError(f"A {name} says nothing without a rate: give the rate, too.")
        row.period, row.burst = 1.0, None
    elif row.burst is not None:
        most = int(row.rate * MOST_BURST_TIME / row.period)
        if row.burst > most:
            raise ConfigError(
                f"The burst may be at most {most:,} at this rate, which is what may start in 366"
                f" days, not {row.burst:,}."
            )


@retry_transaction
def lift_pause(scope: str, name: str, *, using: str, by: str = "") -> Limit | None:
    """Unpause a limit; remove it, and return None, where it then limits nothing."""
    with in_transaction(using), acting(by):
        row = locked(Limit, {"scope": scope, "name": name}, using=using)
        if row is None:
            return None
        row.paused = False
        if row.max_running is None and row.rate is None:
            row.delete(using=using)
            return None
        row.save(using=using)
        return row


@retry_transaction
def set_paused(
    kind: type[P], owner: Mapping[str, object], paused: bool, *, using: str, by: str = ""
) -> bool:
    """Pause a share or a limit that there is, or let it go on; return whether it was otherwise."""
    with in_transaction(using), acting(by):
        row = locked(kind, owner, using=using)
        if row is None or row.paused is paused:
            return False
        row.paused = paused
        row.save(using=using)
        return True


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
        name: check_of(fields[name]).require(f"The {name}", value, ConfigError)
        for name, value in given.items()
        if value is not ...
    }


def check_of(field: Field[Any, Any]) -> Check:
    """Return the check of a column, by its type and its validators."""
    if isinstance(field, BooleanField):
        return TRUE_OR_FALSE
    lows = [one.limit_value for one in field.validators if isinstance(one, MinValueValidator)]
    tops = [one.limit_value for one in field.validators if isinstance(one, MaxValueValidator)]
    least, most = max(lows), min([LARGEST, *tops])
    if isinstance(field, FloatField):
        return number(least, most)
    return whole(least, most).or_none()
