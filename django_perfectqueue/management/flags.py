"""Every option that more than one verb takes: a flag has one meaning, one metavar and one help."""

from __future__ import annotations

import argparse
from argparse import SUPPRESS
from collections.abc import Mapping, Sequence
from typing import Any

from django_perfectqueue.fairness.report import WINDOWS
from django_perfectqueue.models import Schedule, Status

from .values import (
    at_least,
    merge_patch,
    number,
    or_none,
    rate,
    some_seconds,
    span,
    task_id,
)

Parser = argparse._ActionsContainer
Words = Mapping[str, Any]

SWITCH: Words = {"action": "store_true"}
SHORT = {"--user": "-u"}
FLAGS: Mapping[str, Words] = {
    "--after": {"type": task_id, "metavar": "ID", "help": "Go on behind the task with this id."},
    "--all": {**SWITCH, "help": "All tasks to which it can be done; also with other filters."},
    "--any-type": {**SWITCH, "help": "Also tasks of types for which there is no handler."},
    "--batch": {"metavar": "BATCH", "help": "Only tasks of this batch, by its name."},
    "--at-once": {
        "type": or_none(at_least(1)),
        "metavar": "N",
        "help": "How many may start at once after a pause (default: as many as the rate).",
    },
    "--catch-up": {
        "type": or_none(int),
        "metavar": "N",
        "help": "How many missed ticks are made up beside the latest (0), or all.",
    },
    "--cron": {
        "metavar": "EXPRESSION",
        "help": "Five fields, six with seconds first, or a nickname such as @daily.",
    },
    "--data": {**SWITCH, "help": "Show what was submitted, too."},
    "--database": {"metavar": "ALIAS", "help": "Alias of the database (default: DATABASE)."},
    "--day": {
        "metavar": "DAY",
        "help": "A day in UTC such as 2026-11-22 (today), or all for all time.",
    },
    "--deadline": {
        "type": or_none(span),
        "metavar": "SPAN",
        "help": "A tick that is later than this is dropped.",
    },
    "--delay": {
        "type": or_none(span),
        "metavar": "SPAN",
        "help": "Submit the task this long after its tick.",
    },
    "--dry-run": {**SWITCH, "help": "Say what would be done, and do nothing."},
    "--ends-at": {"metavar": "TIME", "help": "The last tick is not after this."},
    "--every": {
        "type": or_none(span),
        "metavar": "SPAN",
        "help": "An interval: 90s, 15m, 1d12h.",
    },
    "--expires-after": {
        "type": or_none(span),
        "metavar": "SPAN",
        "help": "A task that has not started this long after its submit expires.",
    },
    "--first": {
        "type": at_least(0),
        "metavar": "N",
        "help": "Only the first N; 0: all (lists: 100, shares: 20, reasons: 10).",
    },
    "--force": {**SWITCH, "help": "Also of workers that were seen within the last 30 seconds."},
    "--group": {
        "metavar": "GROUP",
        "help": "Only tasks that ended for this reason: an error such as builtins.ValueError.",
    },
    "--jitter": {
        "type": or_none(span),
        "metavar": "SPAN",
        "help": "A random delay of at most this is added to --delay.",
    },
    "--json": {**SWITCH, "help": "Print JSON for programs, one object a line."},
    "--key-prefix": {"metavar": "PREFIX", "help": "Only tasks whose keys begin so."},
    "--limit": {
        "action": "append",
        "dest": "limits",
        "metavar": "NAME",
        "help": "Name of a limit that the task counts against; may be repeated.",
    },
    "--log": {
        "choices": ("last", "all", "none"),
        "default": "last",
        "help": "What to show of the logs: of the last attempt the last lines, all, or none.",
    },
    "--max-running": {
        "type": or_none(at_least(0)),
        "metavar": "N",
        "help": "How many tasks may run at once; 0: none may; none: no cap.",
    },
    "--no-data": {**SWITCH, "help": "Leave out the data, the result and the context."},
    "--no-user": {**SWITCH, "help": "The tasks without a user."},
    "--note": {"default": "", "metavar": "TEXT", "help": "Why."},
    "--older-than": {
        "metavar": "SPAN",
        "help": "Delete what ended this long ago, such as 7d, instead of the retention.",
    },
    "--oldest": {
        "type": some_seconds,
        "metavar": "SECONDS",
        "help": "For how long the oldest task may have been due.",
    },
    "--oldest-first": {**SWITCH, "help": "The oldest first, not the newest."},
    "--over": {
        "choices": list(WINDOWS),
        "default": "hour",
        "help": "Over which time: the last minute, hour or day (hour).",
    },
    "--overlap": {
        "metavar": "POLICY",
        "help": (
            f"While the task before has not ended: {', '.join(Schedule.Overlap.values)};"
            " of a backfill allow or queue."
        ),
    },
    "--patch": {
        "type": merge_patch,
        "metavar": "JSON",
        "help": "Change the data by a JSON merge patch (RFC 7386): null takes a member away.",
    },
    "--pause-after": {
        "type": or_none(int),
        "metavar": "N",
        "help": "Pause it after this many failed tasks in a row.",
    },
    "--priority": {
        "type": int,
        "metavar": "N",
        "help": "Larger goes first among the tasks of the same user (0).",
    },
    "--queue": {
        "metavar": "QUEUE",
        "help": (
            "Name of the queue (default: DEFAULT_QUEUE; of lists of batches, shares, workers and"
            " figures: all). Workers and checks take several."
        ),
    },
    "--rate": {
        "type": or_none(rate),
        "metavar": "N/TIME",
        "help": (
            "How many within a time, such as 10/min, 5/s or 100/90s. Tasks that are chosen by"
            " filters are then steered by a task of the queue."
        ),
    },
    "--remaining": {
        "type": or_none(int),
        "metavar": "N",
        "help": "How many more tasks it submits.",
    },
    "--run-in": {
        "metavar": "QUEUE",
        "help": "Have a task of this queue do it (default: the queue of the tasks).",
    },
    "--since": {
        "metavar": "TIME",
        "help": "From this time on: 2h (ago), 10:00 or ISO 8601.",
    },
    "--starts-at": {"metavar": "TIME", "help": "The first tick is not before this."},
    "--status": {
        "choices": Status.values,
        "metavar": "STATUS",
        "help": f"Only tasks of this status: {', '.join(Status.values)}.",
    },
    "--tag": {
        "action": "append",
        "dest": "tags",
        "metavar": "TAG",
        "help": "A tag of the task; may be repeated.",
    },
    "--tasks": {**SWITCH, "help": "Show the processors, and the tasks that they run."},
    "--time-limit": {
        "type": or_none(span),
        "metavar": "SPAN",
        "help": "How long an attempt may run: 90s, 5m30s (default: as its handler says).",
    },
    "--timezone": {"metavar": "ZONE", "help": "The zone of --cron (default: TIME_ZONE)."},
    "--to": {"metavar": "QUEUE", "help": "Move the tasks to this queue."},
    "--type": {
        "metavar": "TYPE",
        "help": "Only tasks of this type; report.* is every type that begins so.",
    },
    "--until": {
        "metavar": "TIME",
        "help": "Up to this time: 2h (ago), 10:00 or ISO 8601 (default: now).",
    },
    "--user": {"metavar": "USER", "help": "The user for whom the tasks run."},
    "--watch": {
        "type": at_least(1),
        "nargs": "?",
        "const": 2,
        "metavar": "SECONDS",
        "help": "Show it again, every 2 seconds or as many as are given, until Ctrl-C.",
    },
    "--weight": {
        "type": number,
        "metavar": "W",
        "help": "Twice the weight gets twice the processor time while users compete.",
    },
    "--with-dependents": {
        **SWITCH,
        "help": "Also all tasks that wait for these, directly or not.",
    },
    "--yes": {**SWITCH, "help": "Do not ask; needed where there is no terminal."},
}

FILTERS = (
    *("--queue", "--status", "--type", "--user", "--group", "--tag", "--key-prefix", "--batch"),
    *("--since", "--until", "--first"),
)
"""What tasks must have, all of it."""
MANY = ("--dry-run", "--yes")
"""Of what changes many."""
TERMS = (
    *("--cron", "--every", "--timezone", "--user", "--queue", "--priority", "--limit"),
    *("--time-limit", "--expires-after", "--starts-at", "--ends-at", "--remaining", "--delay"),
    *("--jitter", "--overlap", "--catch-up", "--deadline", "--pause-after"),
)
"""The terms of a schedule."""


def add_flags(
    parser: Parser, flags: Sequence[str], *, given_only: bool = False, **changes: object
) -> None:
    """Add options of these names; with ``given_only`` those that are not given are left out."""
    for flag in flags:
        words = {**FLAGS[flag], **changes}
        if given_only:
            words["default"] = SUPPRESS
        parser.add_argument(*filter(None, [SHORT.get(flag)]), flag, **words)
