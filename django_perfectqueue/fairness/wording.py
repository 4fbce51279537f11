"""Shares, limits and their changes in words, the same for every door."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db.models import DateTimeField, Field
from django.utils.dateparse import parse_datetime
from django.utils.timezone import localtime
from django.utils.translation import gettext as _

from django_perfectqueue.lib.durations import per
from django_perfectqueue.lib.printable import printable
from django_perfectqueue.models import (
    EVERYONE,
    Change,
    FairShare,
    Limit,
    Pausable,
    QueueShare,
    Schedule,
)

from .declared import digest
from .limits import MEMBERS

NOTHING = "-"
KINDS = {
    Change.Kind.SHARE: FairShare,
    Change.Kind.QUEUE: QueueShare,
    Change.Kind.LIMIT: Limit,
    Change.Kind.SCHEDULE: Schedule,
}


def rate_of(limit: Limit) -> str:
    """Return how many tasks may start in which time; an empty text where there is no rate."""
    return "" if limit.rate is None else per(limit.rate, limit.period)


def pause_terms(rule: Pausable) -> str:
    """Return until when a rule is paused, by whom and why, as far as that is known."""
    return describe_pause(rule.paused_until, rule.paused_by, rule.note)


def describe_pause(until: datetime | None, by: str, note: str) -> str:
    words = [_("until %s") % time_shown(until)] if until else []
    words += [_("by %s") % by] if by else []
    return printable(": ".join(filter(None, [", ".join(words), note])))


def time_shown(at: datetime) -> str:
    """Return a time to the minute, in the current time zone; of today without the day."""
    local = localtime(at)
    return f"{local:%H:%M}" if local.date() == localtime().date() else f"{local:%Y-%m-%d %H:%M}"


def paused_terms(rule: Pausable) -> str:
    """Return that a rule is paused, and the terms; an empty text where it is not."""
    if not rule.paused:
        return ""
    return ", ".join(filter(None, [_("paused"), pause_terms(rule)]))


def origin_of(limit: Limit) -> str:
    """Return whether code declares a limit, and whether it was changed since."""
    if not limit.declared_in:
        return ""
    changed = digest(limit) != limit.declared_in
    return _("declared in code, changed since") if changed else _("declared in code")


def members_of(limit: Limit) -> str:
    """Return which names of a family run most, and how many tasks of each."""
    shown = [
        f"{meter.key.partition(':')[2]} ({meter.running})" for meter in limit.members[:MEMBERS]
    ]
    return printable(", ".join([*shown, *["…"] * (len(limit.members) > MEMBERS)]))


def limit_terms(limit: Limit) -> str:
    """Return what a limit limits."""
    parts = []
    if limit.max_running is not None:
        parts.append(_("at most %s running") % limit.max_running)
    if limit.rate is not None:
        parts.append(rate_of(limit))
    if limit.burst is not None:
        parts.append(_("up to %s at once") % limit.burst)
    if limit.paused:
        parts.append(paused_terms(limit))
    return ", ".join(parts) or _("no limit")


def share_terms(share: FairShare) -> str:
    """Return what a share entitles to."""
    parts = [weight_of(share.weight)]
    if share.max_running is not None:
        parts.append(_("at most %s running") % share.max_running)
    if share.paused:
        parts.append(paused_terms(share))
    return ", ".join(parts)


def weight_of(weight: float) -> str:
    return _("weight %s") % f"{weight:g}"


def user_of(name: str) -> str:
    """Return of whom a share with this user is."""
    if name == EVERYONE:
        return _("everyone else")
    return _("user '%s'") % name if name else _("tasks without a user")


def queue_of(name: str) -> str:
    return _("queue '%s'") % name if name else _("every queue")


def difference(change: Change) -> str:
    """Return what a change of a share or a limit has changed."""
    if change.after is None:
        return _("removed")
    values = changed_values(change)
    return ": ".join(filter(None, ["" if change.before else _("added"), values]))


def changed_values(change: Change) -> str:
    """Return what a row had and has, for each of its fields that differs."""
    kind = KINDS[Change.Kind(change.kind)]
    fields = {field.name: field for field in kind._meta.concrete_fields}
    after = {name: value for name, value in (change.after or {}).items() if name in fields}
    before = change.before or {name: getattr(kind(), name) for name in after}
    return ", ".join(
        f"{fields[name].verbose_name} "
        + (
            f"{shown(fields[name], before.get(name))} → {shown(fields[name], value)}"
            if change.before
            else shown(fields[name], value)
        )
        for name, value in after.items()
        if value != before.get(name)
    )


def shown(field: Field[Any, Any], value: object) -> str:
    if value is None:
        return NOTHING
    if isinstance(field, DateTimeField) and (at := parse_datetime(str(value))):
        return localtime(at).isoformat(" ", "seconds")
    if isinstance(value, bool):
        return _("yes") if value else _("no")
    return f"{value:g}" if isinstance(value, float) else str(value)
