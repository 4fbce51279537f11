"""The options that say the terms of a schedule."""

from __future__ import annotations

from argparse import SUPPRESS
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, cast

from django.core.management.base import CommandError, CommandParser
from django.utils import timezone

from django_perfectqueue.exceptions import InvalidScheduleError, InvalidTaskError
from django_perfectqueue.lib.durations import LONGEST, seconds_in
from django_perfectqueue.models import Schedule
from django_perfectqueue.schedules import Terms
from django_perfectqueue.schedules.terms import CHECKS

from ..base import CommandOptions
from ..terminal.text import NUMBER, point

EMPTY = ("none", "all")
"""What stands for no value: of a span that there is none, of a count that it is unbounded."""


def add_terms(parser: CommandParser) -> None:
    """Add the options that say when, what and by which rules; what is not given is left out."""

    def add(*names: str, type: Callable[[str], object] = str, **words: Any) -> None:  # noqa: A002
        parser.add_argument(*names, default=SUPPRESS, type=type, **words)

    add(
        "--cron",
        metavar="EXPRESSION",
        help="Five fields, six with seconds first, or a nickname such as @daily.",
    )
    add("--every", type=span, metavar="SPAN", help="An interval: 90s, 15m, 1d12h.")
    add("--timezone", metavar="ZONE", help="In which cron is read (default: TIME_ZONE).")
    add("-u", "--user", help="For whom its tasks run: their fair share pays.")
    add("--queue", metavar="QUEUE", help="Name of the queue (default: DEFAULT_QUEUE).")
    add("--priority", type=int, metavar="N", help="Larger goes first among its user's (0).")
    add(
        "--limit",
        action="append",
        dest="limits",
        metavar="NAME",
        help="A limit that its tasks keep to; may be repeated.",
    )
    add("--time-limit", type=span, metavar="SPAN", help="For how long an attempt may run.")
    add(
        "--expires-after",
        type=span,
        metavar="SPAN",
        help="A task that has not started by then is not started any more.",
    )
    add("--starts-at", metavar="TIME", help="The first tick is not before this.")
    add("--ends-at", metavar="TIME", help="The last tick is not after this.")
    add("--remaining", type=count, metavar="N", help="How many more tasks it submits.")
    add("--delay", type=span, metavar="SPAN", help="So long after its tick a task is submitted.")
    add("--jitter", type=span, metavar="SPAN", help="Up to so much is added to that.")
    add(
        "--overlap",
        metavar="POLICY",
        help=f"While the task before has yet to end: {', '.join(Schedule.Overlap.values)}.",
    )
    add(
        "--catch-up",
        type=count,
        metavar="N",
        help="How many missed ticks are made up beside the latest (0), or all.",
    )
    add("--deadline", type=span, metavar="SPAN", help="A tick that is later is dropped.")
    add(
        "--pause-after",
        type=count,
        metavar="N",
        help="After so many failed tasks in a row it is paused.",
    )


def span(text: str) -> float | str | None:
    """Return a span as the API takes it: seconds, a text such as 15m, or None for "none"."""
    if text in EMPTY:
        return None
    return float(text) if NUMBER.fullmatch(text) else text


def count(text: str) -> int | None:
    return None if text in EMPTY else int(text)


def given_terms(options: CommandOptions) -> Terms:
    """Return the terms that were given."""
    terms = {name: options[name] for name in CHECKS if name in options}
    for name in ("starts_at", "ends_at"):
        if name in terms:
            terms[name] = None if terms[name] in EMPTY else time(name, terms[name])
    return cast("Terms", terms)


def time(name: str, text: str) -> datetime | str | None:
    try:
        return point(name, text)
    except InvalidTaskError as error:
        raise InvalidScheduleError(str(error)) from error


def past(name: str, text: str | None) -> datetime:
    """Return a time; a span is so long ago, and nothing is now."""
    if text is None:
        return timezone.now()
    if (seconds := seconds_in(text)) is not None:
        # A span that is longer begins before any tick all the same.
        return timezone.now() - timedelta(seconds=min(seconds, LONGEST))
    found = time(name, text)
    if not isinstance(found, datetime):
        raise CommandError(f"{name} needs a time.")
    return found
