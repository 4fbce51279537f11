"""Every option of the commands: a flag has one meaning, one word for its value and one help."""

from __future__ import annotations

import argparse
import contextlib
import getpass
import json
import os
import re
import socket
from argparse import SUPPRESS, ArgumentTypeError
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from django_perfectqueue.fairness.report import WAITING, WINDOWS
from django_perfectqueue.health.checks import seconds
from django_perfectqueue.lib.checks import LARGEST, whole
from django_perfectqueue.lib.durations import rate_in, seconds_in, time_to_come
from django_perfectqueue.models import Schedule, Status
from django_perfectqueue.payload.codecs import JSON
from django_perfectqueue.queue import ARGUMENTS

from .terminal import NUMBER, is_id, point

# The values of options: each type of argparse raises ArgumentTypeError, and says what it wants.


# What stands for no value: of a span that there is none, of a count that it is unbounded.
EMPTY = ("none", "all")


def kind(what: str, read: Callable[[str], object]) -> Callable[[str], Any]:
    """Return a type of option: ``read`` returns None, or raises ValueError, for what is not so."""

    def value(text: str) -> object:
        with contextlib.suppress(ValueError, OverflowError):
            if (found := read(text)) is not None:
                return found
        raise ArgumentTypeError(f"must be {what}, not {text!r}")

    return value


def at_least(least: int) -> Callable[[str], int]:
    """Return a type of option: a whole number that is not smaller."""
    check = whole(least, LARGEST)
    return kind(check.what, lambda text: int(text) if check.holds(int(text)) else None)


def or_none(kind: Callable[[str], object]) -> Callable[[str], object]:
    """Return a type of option that may also be ``none``."""
    return lambda text: None if text in EMPTY else kind(text)


def span(text: str) -> float | str:
    """Return a span as the API takes it: seconds, or a text such as 15m."""
    return float(text) if NUMBER.fullmatch(text) else text


def merge_patch(text: str) -> JSON:
    """Return the value of an option; null is none, since that stands for no patch."""
    try:
        patch: JSON = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ArgumentTypeError(f"must be JSON: {error}") from error
    if patch is None:
        raise ArgumentTypeError("must say what to change: null changes nothing")
    return patch


def address(text: str) -> tuple[str, int] | None:
    """Return the host and the port that were written as "8001" or "0.0.0.0:8001"."""
    host, _colon, port = text.rpartition(":")
    is_port = port.isascii() and port.isdigit() and 1 <= int(port) <= 65535
    return (host.strip("[]") or "127.0.0.1", int(port)) if is_port else None


def pair(text: str) -> tuple[str, str] | None:
    old, _equals, new = text.partition("=")
    return (old, new) if old and new else None


number = kind("a number", float)
moment = kind(
    "unix seconds up to year 9999, ISO 8601 with an offset, or a span such as 5m30s",
    lambda text: point("It", text),
)
some_time = kind("a span such as 90s, 5m30s or 1d12h", seconds_in)


def person() -> str:
    """Return who runs this command, and on which host."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = str(os.getuid())
    return f"{name}@{socket.gethostname()}"


Parser = argparse._ActionsContainer
Words = Mapping[str, Any]

SHORT = {"--user": "-u", "--time": "-t", "--file": "-f"}
ROW = re.compile(r"^(\S+) ?(\S*)\s+((?:.*)(?:\n +.*)*)$", re.MULTILINE)
TEXT = """
--after ID            Start after the task with this id.
--all                 All tasks that the verb is for; also with other filters.
--any-type            Also tasks of types for which there is no handler.
--at-once N           How many may start at once after a pause (default: as many as the rate).
--at-most SPAN        With --debounce: start at the latest this long after the first submit.
--atomic              Store all tasks of a file or none.
--backoff WAITS       The wait before each further attempt: 30s, or one after the other 10s,1m,5m
                      (default: as its handler says).
--batch BATCH         Only tasks of this batch, by its name.
--burst               Stop when no task is due.
--by ORDER            What is first: who received most (received), or of whom most is waiting.
--catch-up N          How many missed ticks to submit besides the latest (0), or all.
--concurrency N       How many tasks a processor runs at once, if it is thread or async.
--cron EXPRESSION     Five fields, six with seconds first, or a nickname such as @daily.
--data                Show what was submitted, too.
--database ALIAS      Alias of the database (default: DATABASE).
--deadline SPAN       A tick that is later than this is dropped.
--debounce SPAN       Merge submits of a key into one task, which starts this long after the last.
--delay SPAN          Submit the task this long after its tick.
--drain WORKER        A worker (host:pid), or all of a host, that end their tasks and take no more.
--dry-run             Print what would be done, and do nothing.
--ends-at TIME        The last tick is not after this.
--every SPAN          An interval: 90s, 15m, 1d12h.
--exec COMMAND        Run this program for every task, of whatever type: 'prog arg'. It gets the
                      data as JSON on its standard input, and the key as its last argument.
--expect TIME         When it should start: among tasks of equal priority the earliest goes first.
--expires TIME        Expire at this time: a span, unix seconds, or ISO 8601 with an offset.
--expires-after SPAN  A task that has not started this long after its submit expires.
--file FILE           Submit the tasks of this file, one JSON object a line with {arguments}; - is
                      standard input. Each thousand is stored at once.
--first N             Only the first N; 0: all. Lists show 100.
--force               Also of workers that were seen within the last 30 seconds.
--from-database ALIAS The database that has its table (default: the one of this queue).
--from-step NAME      Begin each copy at this step; what was kept before it is kept in the copy.
--group GROUP         Only tasks that ended for this reason: an error such as builtins.ValueError.
--headroom N          So many processors, or such a part of them, take short tasks only.
--health-port [HOST:]PORT
                      Answer /live and /ready over HTTP there (default host: 127.0.0.1).
--in SPAN             Start after this delay: 5m30s.
--jitter SPAN         A random delay of at most this is added to --delay.
--json                Print JSON for programs, one object a line.
--key-prefix PREFIX   Only tasks with keys that begin with this.
--leading             With --debounce: start the first at once, and one more for the others.
--limit NAME          Name of a limit that the task counts against; may be repeated.
--log WHICH           Of the logs show the last lines of the last attempt, all, or none (last).
--map OLD=NEW         The name of a type here; may be repeated.
--max-age SECONDS     Replace a processor of this age, between two tasks.
--max-attempts N      How many attempts may end in an error (default: as its handler says).
--max-memory MIB      Replace a processor that uses this much memory, between two tasks.
--max-requests N      Replace a processor after this many tasks.
--max-running N       How many tasks may run at once; 0: none may; none: no cap.
--no-data             Leave out the data, the result and the context.
--no-user             The tasks without a user.
--note TEXT           Why.
--older-than SPAN     Delete what ended this long ago, such as 7d, instead of the retention.
--oldest SECONDS      How long the oldest task may have been due.
--oldest-first        The oldest first, not the newest.
--on-conflict ACTION  When the key is taken: raise an error (the default), ignore this task, or
                      replace the other one unless it is running.
--over WINDOW         Over which time: the last minute, hour or day (hour).
--overlap POLICY      While the task before has not ended: {overlaps}; of a backfill allow or
                      queue.
--patch JSON          Change the data by a JSON merge patch (RFC 7386): null removes a member.
--pause-after N       Pause it after this many failed tasks in a row.
--pid-file PATH       Write the worker's pid there, and start no second one with the same file.
--poll-interval SECONDS
                      How often to look for tasks when there were none.
--prefetch N          How many tasks to take in advance.
--priority N          Larger goes first among the tasks of the same user (0).
--processor-type TYPE How each processor runs tasks: process, thread or async.
--processors N        How many processes.
--queue QUEUE         Name of the queue (default: DEFAULT_QUEUE; of figures all).
--queue-order ORDER   How to go through several queues: fair (by weight and time), ordered (the
                      first is served first), round_robin or shuffled.
--rate N/TIME         How many within a time, such as 10/min, 5/s or 100/90s. For tasks that
                      filters choose, a task of the queue does the work.
--reload              Restart when the code changes. For development.
--remaining N         How many more tasks it submits.
--run-in QUEUE        Have a task of this queue do it (default: the queue of the tasks).
--sequence NAME       The sequence in which it runs after the one before.
--since TIME          From this time on: 2h (ago), 10:00 or ISO 8601.
--starts-at TIME      The first tick is not before this.
--status STATUS       Only tasks of this status: {statuses}.
--table NAME          The name of its table (default: the usual one).
--tag TAG             A tag of the task; may be repeated.
--tasks               Show the processors, and the tasks that they run.
--time TIME           Start at this time: a span, unix seconds, or ISO 8601 with an offset.
--time-limit SPAN     How long an attempt may run: 90s, 5m30s (default: as its handler says).
--timezone ZONE       The zone of --cron (default: TIME_ZONE).
--to QUEUE            Move the tasks to this queue.
--type TYPE           Only tasks of this type; report.* is every type that begins so.
--undrain WORKER      Have these take tasks again.
--unpause-at TIME     The pause ends by itself then: 1h (from now), 18:00 or ISO 8601.
--unique UNTIL        Free the key before the task is deleted: waiting, as soon as it starts; live,
                      when it has ended.
--unique-for SPAN     Free the key so long after the submit.
--until TIME          Up to this time: 2h (ago), 10:00 or ISO 8601 (default: now).
--user USER           The user for whom the tasks run.
--wait-for-database SECONDS
                      At the start, wait at most this long for a database that can't be reached or
                      is not migrated.
--weight W            Twice the weight gets twice the processor time while users compete.
--with-dependents     Also all tasks that wait for these, directly or not.
--yes                 Do not ask; needed where there is no terminal.
answer JSON           What the signal carries, as JSON (default: who sends it).
data JSON             The data of the task, as JSON; of a Django @task its arguments:
                      {{"kwargs": {{"name": "Ann"}}}}.
dispatch DISPATCH     Dotted path of a Dispatch. Otherwise the setting DISPATCH, or all handlers in
                      the tasks modules of the installed apps.
key KEY               Its name in the queue.
name USER             Only this user.
priority N            Larger goes first among the tasks of the same user.
signal NAME           The name of the signal.
type TYPE             What handles the task.
"""
# What argparse is to make of the values that are no plain texts.
TYPES: Mapping[str, Callable[[str], object]] = {
    "--after": kind("the id of a task", lambda text: int(text) if is_id(text) else None),
    "--headroom": kind(
        "a whole number, or a part below 1",
        lambda text: int(text) if text.isdecimal() else float(text),
    ),
    "--health-port": kind("a port from 1 to 65535, or HOST:PORT", address),
    "--map": kind("OLD=NEW", pair),
    "--max-running": or_none(at_least(0)),
    "--oldest": kind("a number of seconds", seconds),
    "--patch": merge_patch,
    "--rate": or_none(kind("so many per time, such as 10/min, 5/s, 100/h or 10/90s", rate_in)),
    "--unpause-at": kind("a time to come, such as 1h, 18:00 or ISO 8601", time_to_come),
    "--weight": number,
    "--in --older-than": some_time,
    "--expect --expires --time": moment,
    "--ends-at --starts-at": or_none(moment),
    "--max-age --poll-interval": float,
    "--priority priority": int,
    "--first --prefetch": at_least(0),
    "--concurrency --max-attempts --max-memory --max-requests --processors": at_least(1),
    "--wait-for-database": at_least(1),
    "--at-once": or_none(at_least(1)),
    "--catch-up --pause-after --remaining": or_none(int),
    "--at-most --deadline --debounce --delay --every --expires-after": or_none(span),
    "--jitter --time-limit --unique-for": or_none(span),
}
WORDS: Mapping[str, Words] = {
    "--by": {"choices": ("received", WAITING), "default": "received"},
    "--expect": {"dest": "expected_at"},
    "--expires": {"dest": "expires_at"},
    "--in": {"dest": "run_at"},
    "--leading": {"default": None},
    "--limit": {"action": "append", "dest": "limits"},
    "--log": {"choices": ("last", "all", "none"), "default": "last"},
    "--map": {"action": "append", "default": []},
    "--note": {"default": ""},
    "--on-conflict": {"choices": ("raise", "ignore", "replace"), "default": "raise"},
    "--over": {"choices": list(WINDOWS), "default": "hour"},
    "--status": {"choices": Status.values},
    "--tag": {"action": "append", "dest": "tags"},
    "--time": {"dest": "run_at"},
    "--unique": {"choices": ("waiting", "live")},
}

# What tasks must have, all of it.
FILTERS = (
    "--queue --status --type --user --group --tag --key-prefix --batch --since --until --first"
)
# Of what changes many.
MANY = "--dry-run --yes"
# Of a pause.
PAUSE = "--unpause-at --note"
# The terms of a schedule.
TERMS = (
    "--cron --every --timezone --user --queue --priority --limit --time-limit --expires-after"
    " --tag --sequence --max-attempts --backoff"
    " --starts-at --ends-at --remaining --delay --jitter --overlap --catch-up --deadline"
    " --pause-after"
)


def table() -> Iterator[tuple[str, Words]]:
    """Yield each flag of the text with what argparse needs to know."""
    named = {
        "arguments": ", ".join(ARGUMENTS),
        "overlaps": ", ".join(Schedule.Overlap.values),
        "statuses": ", ".join(Status.values),
    }
    types = {flag: {"type": kind} for flags, kind in TYPES.items() for flag in flags.split()}
    for flag, metavar, text in ROW.findall(TEXT):
        value = {"metavar": metavar} if metavar else {"action": "store_true"}
        known = {**types.get(flag, {}), **WORDS.get(flag, {})}
        yield flag, {**value, "help": " ".join(text.split()).format(**named), **known}


FLAGS = dict(table())


def add_flags(parser: Parser, flags: str, *, given_only: bool = False) -> None:
    """
    Add options of these names; with ``given_only`` those that are not given are left out.

    One that ends with ``!`` must be given, one with ``+`` may be given more than once. One
    without dashes stands by its place; with ``?`` it may be left out.
    """
    for named in flags.split():
        flag = named.rstrip("!+?")
        words = dict(FLAGS[flag])
        if named.endswith("!"):
            words["required"] = True
        if named.endswith("+"):
            words |= {"action": "append", "dest": f"{flag[2:]}s"}
            words["help"] += " May be repeated."
        if named.endswith("?"):
            words["nargs"] = "?"
        if given_only:
            words["default"] = SUPPRESS
        parser.add_argument(*filter(None, [SHORT.get(flag)]), flag, **words)
