"""Cron expressions of other queues, which don't all read alike."""

from __future__ import annotations

from django.utils.translation import gettext as _

from django_perfectqueue.exceptions import InvalidScheduleError
from django_perfectqueue.store.arithmetic.ticks import zone_of


class OtherwiseReadError(ValueError):
    """A cron expression that would come at other times here."""


def check_days(cron: str, *, both: bool) -> str:
    """
    Return a cron expression whose days mean the same here; raise OtherwiseReadError if not.

    Here, as in Debian's cron, a day of the month and one of the week must both match where one
    of them begins with ``*``, else one is enough. ``both`` says that there both always must.
    """
    fields = cron.split()
    if len(fields) not in (5, 6):
        return cron
    month, week = fields[-3], fields[-1]
    if "*" in (month, week):
        return cron
    if (month.startswith("*") or week.startswith("*")) != both:
        detail = _("'%s' has a day of the month and one of the week, which are joined otherwise")
        raise OtherwiseReadError(detail % cron)
    return cron


def seconds_first(cron: str) -> str:
    """Return an expression of croniter's, whose sixth field is that of the seconds."""
    fields = cron.split()
    return " ".join([fields[5], *fields[:5]]) if len(fields) == 6 else cron


def without_zone(text: str) -> tuple[str, str]:
    """Return a cron expression and the time zone that may follow it."""
    cron, _space, last = text.strip().rpartition(" ")
    if not cron or not last[:1].isalpha() or not ("/" in last or last == "UTC"):
        return text.strip(), ""
    try:
        zone_of(last)
    except InvalidScheduleError:
        return text.strip(), ""
    return cron, last
