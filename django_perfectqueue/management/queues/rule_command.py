"""What the commands share that show and change shares and limits."""

from __future__ import annotations

import getpass
import os
import re
import socket
from argparse import SUPPRESS, ArgumentTypeError
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from typing import TypeVar

from django.core.management.base import CommandParser
from django.db.models import Model, QuerySet

from django_perfectqueue.fairness.wording import difference
from django_perfectqueue.lib.durations import seconds_in
from django_perfectqueue.models import Change

from ..base import CommandOptions, QueueCommand, at_least
from ..terminal.table import Column
from ..terminal.text import local

M = TypeVar("M", bound=Model)
SHOWN = 10
LISTED = 100
RATE = re.compile(r"(\d{1,15})/(.+)")
NUMBER = re.compile(r"\d+(\.\d+)?")
UNITS = {
    "s": ("s", "sec", "second"),
    "m": ("m", "min", "minute"),
    "h": ("h", "hour"),
    "d": ("d", "day"),
}


class RuleCommand(QueueCommand):
    """A command that lists, shows or changes rows of one kind."""

    def add_pause(self, parser: CommandParser) -> None:
        choice = parser.add_mutually_exclusive_group()
        choice.add_argument(
            "--pause", dest="paused", action="store_true", default=None, help="Start none."
        )
        choice.add_argument(
            "--unpause",
            dest="paused",
            action="store_false",
            default=None,
            help="Take a pause back.",
        )

    def add_cap(self, parser: CommandParser) -> None:
        choice = parser.add_mutually_exclusive_group()
        choice.add_argument(
            "--max-running",
            type=at_least(0),
            metavar="N",
            help="How many tasks may run at once; 0: none.",
        )
        choice.add_argument("--no-cap", action="store_true", help="Any number may run at once.")

    def add_listing(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--limit",
            type=at_least(0),
            default=LISTED,
            metavar="N",
            help="Of a list: how many (100); 0: all.",
        )

    def print_listing(
        self,
        rows: list[M],
        facts: Callable[[M], Mapping[str, object]],
        columns: Sequence[Column[M]],
        *,
        more: bool,
        none: str,
    ) -> None:
        """Print rows, and that there are ``more``; or ``none`` for people where there are none."""
        if self.as_json:
            for row in rows:
                self.print_json(facts(row))
            return
        if not rows:
            self.say(none)
        self.print_table(columns, rows)
        if more:
            self.say("There are more: --limit 0 lists all.")

    def print_changes(self, changes: QuerySet[Change]) -> None:
        if latest := list(changes[:SHOWN]):
            self.stdout.write("")
            columns = [
                Column[Change]("changed", lambda one: local(one.at)),
                Column[Change]("by", lambda one: one.by or "-", elastic=True),
                Column("what", difference),
            ]
            self.print_table(columns, latest)


class VerbCommand(RuleCommand):
    """A command whose first word says what to do, list by default, each with its own options."""

    name_help: str

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        shared = [action for action in parser._actions if action.dest != "help"]
        verbs = parser.add_subparsers(dest="verb", metavar="VERB", title="what to do")
        parser.set_defaults(verb="list", limit=LISTED)

        def add(verb: str, text: str, *, named: bool = True) -> CommandParser:
            own: CommandParser = verbs.add_parser(verb, help=text, description=text)
            if named:
                own.add_argument("name", metavar="NAME", help=str(self.name_help))
            # They may also stand after the word; what is given before it counts unless they do.
            for action in shared:
                again = copy(action)
                again.default = SUPPRESS
                own._add_action(again)
            return own

        self.add_verbs(add)

    def add_options(self, parser: CommandParser) -> None:
        return

    def add_verbs(self, add: Callable[..., CommandParser]) -> None:
        raise NotImplementedError


def edits(options: CommandOptions, *names: str) -> CommandOptions:
    """Return what a person has said of these, and of the cap."""
    said = {name: options[name] for name in (*names, "paused") if options[name] is not None}
    if options["no_cap"] or options["max_running"] is not None:
        said["max_running"] = options["max_running"]
    return said


def first_rows(rows: QuerySet[M], limit: int) -> tuple[list[M], bool]:
    """Return the first rows, and whether there are more."""
    found = list(rows[: limit + 1] if limit else rows)
    return (found[:limit], True) if limit and len(found) > limit else (found, False)


def changes_for_programs(changes: QuerySet[Change]) -> Iterator[dict[str, object]]:
    for one in changes[:SHOWN]:
        yield {
            "at": one.at.isoformat(),
            "by": one.by or None,
            "before": one.before,
            "after": one.after,
        }


def person() -> str:
    """Return who runs this command, and on which host."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = str(os.getuid())
    return f"{name}@{socket.gethostname()}"


def rate(text: str) -> tuple[int, float]:
    """
    Return how many, and within how many seconds, from a text such as "10/min" or "10/60".

    Raise ArgumentTypeError for anything else.
    """
    found = RATE.fullmatch(text)
    if not found or not int(found[1]):
        raise no_rate(text)
    return int(found[1]), seconds(found[2], text)


def seconds(period: str, text: str) -> float:
    if NUMBER.fullmatch(period):
        return float(period)
    for unit, words in UNITS.items():
        if period in words:
            period = f"1{unit}"
    found = seconds_in(period)
    if found is None:
        raise no_rate(text)
    return found


def no_rate(text: str) -> ArgumentTypeError:
    return ArgumentTypeError(
        f"must be so many per time, such as 10/min, 5/s, 100/h or 10/90s, not {text!r}"
    )
