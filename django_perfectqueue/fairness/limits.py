"""
The door to limits: see and change how many tasks may run at once, or start within a time.

A limit is known by its scope and its name. A change is recorded, with who made it where
``by`` says so, and holds once it is committed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from copy import copy
from datetime import datetime
from types import EllipsisType
from typing import Any, Literal, get_args

from asgiref.sync import sync_to_async
from django.db.models import Q
from django.utils.translation import gettext as _

from django_perfectqueue import store
from django_perfectqueue.exceptions import ConfigError
from django_perfectqueue.lib.checks import choice, named
from django_perfectqueue.models import FAMILY, Limit, Meter
from django_perfectqueue.payload.inputs import QUEUE_LENGTH
from django_perfectqueue.store.arithmetic.rate_limit import is_too_far, opens_at
from django_perfectqueue.store.database.transaction import database
from django_perfectqueue.store.lanes.apply import span_of
from django_perfectqueue.store.limits.meters import of_keys, scopes_and_names

from . import edit

Scope = Literal["name", "queue", "type", "user"]
# Of a family so many names that run are shown, and so many read.
MEMBERS, MEMBERS_READ = 5, 1_000
SCOPES: tuple[str, ...] = get_args(Scope)
LENGTH: int = Limit._meta.get_field("name").max_length  # type: ignore[assignment]


def limit(name: str, *, scope: Scope = "name", using: str | None = None) -> Limit | None:
    """
    Return a limit, or None if it does not exist.

    Raise ConfigError for names that can't be.
    """
    using = using or database()
    rows = Limit.objects.using(using).filter(**owner(scope, name))
    return store.database.with_retries(rows.first, using=using)


def set_limit(
    name: str,
    *,
    scope: Scope = "name",
    max_running: int | EllipsisType | None = ...,
    rate: int | EllipsisType | None = ...,
    period: float | EllipsisType = ...,
    burst: int | EllipsisType | None = ...,
    paused: bool | EllipsisType = ...,
    until: datetime | EllipsisType | None = ...,
    note: str | EllipsisType = ...,
    by: str = "",
    using: str | None = None,
) -> Limit:
    """
    Set a limit, or change the one there is; only what is given is changed.

    ``rate`` tasks may start in each ``period`` of seconds, up to ``burst`` of them at once.
    A name that ends in ``*`` makes a family: each name that begins so has this limit for itself,
    but not one with a limit of its own, or with a longer family.
    One that is paused goes on at the time ``until``, or without one when it is unpaused;
    ``note`` says why it is. Raise ConfigError when a value can't be.
    """
    given = {
        "max_running": max_running,
        "rate": rate,
        "period": period,
        "burst": burst,
        **edit.pause(paused, until, note),
    }
    return edit.change(Limit, owner(scope, name), given, by=by, using=using or database())


def remove_limit(
    name: str, *, scope: Scope = "name", by: str = "", using: str | None = None
) -> bool:
    """Take a limit away; return whether there was one."""
    return edit.remove(Limit, owner(scope, name), by=by, using=using or database())


def in_force(keys: Collection[str], *, using: str) -> dict[str, Limit]:
    """
    Return which limit holds for each of these keys, such as ``user:ann``, where there is one:
    its own, or that of the longest family. Each has the ``meter`` of the key.
    """
    scopes, names = scopes_and_names(keys)
    rows = Limit.objects.using(using).filter(Q(name__in=names) | Q(ending=FAMILY), scope__in=scopes)
    meters = Meter.objects.using(using)

    def read() -> dict[str, Limit]:
        found = of_keys(keys, {row.key: row for row in rows.all()})
        counted = meters.in_bulk(list(found))
        held = {key: copy(row) for key, row in found.items()}
        for key, row in held.items():
            row.meter = counted.get(key) or Meter()
        return held

    return store.database.with_retries(read, using=using)


def with_meters(rows: Iterable[Limit], *, using: str) -> list[Limit]:
    """
    Give limits their ``meter``; a family the sum of what runs, and ``members``, the meters of its
    names of which most run, at most MEMBERS, and one more where there are others.
    """
    found = list(rows)
    meters = Meter.objects.using(using)
    counted = meters.in_bulk([row.key for row in found])
    for row in found:
        row.meter = counted.get(row.key) or Meter()
        if row.is_family:
            # The first ones by name, where many run: no index sorts them by what runs.
            some = meters.filter(key__range=span_of(row.key), running__gt=0)[:MEMBERS_READ]
            running = sorted(some, key=lambda meter: (-meter.running, meter.key))
            of_others = in_force([meter.key for meter in running], using=using) if running else {}
            own = [meter for meter in running if of_others[meter.key].pk == row.pk]
            row.members = own[: MEMBERS + 1]
            row.meter = Meter(running=sum(meter.running for meter in own))
    return found


def next_at(row: Limit, now: datetime) -> datetime | None:
    """Return when the rate lets the next task start by its meter; None where it lets it now."""
    metered = row.meter.next_at
    if not row.rate or metered is None:
        return None
    interval, burst = row.period / row.rate, row.burst or row.rate
    if is_too_far((metered - now).total_seconds(), interval, burst):
        return None
    at = opens_at(metered, interval, burst)
    return at if at > now else None


def owner(scope: str, name: str) -> dict[str, Any]:
    """Return scope and name as a row has them; raise ConfigError."""
    choice(*SCOPES).require("The scope", scope, ConfigError)
    named(LENGTH).require(f"The {scope} of a limit", name, ConfigError)
    if reason := unfit(scope, name):
        raise ConfigError(reason)
    return {"scope": scope, "name": name}


def unfit(scope: str, name: str) -> str:
    """Return why no limit can have this name, or nothing."""
    if scope == "name" and "," in name:
        return _("The name of a limit must not hold a comma.")
    if scope == "queue" and len(name) > QUEUE_LENGTH:
        return _("The name of a queue has at most %s characters.") % QUEUE_LENGTH
    return ""


alimit = sync_to_async(limit)
aset_limit = sync_to_async(set_limit)
aremove_limit = sync_to_async(remove_limit)
