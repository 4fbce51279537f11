from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, TypeAlias

from django.core.management.base import CommandError, CommandParser, no_translations
from django.db.models import QuerySet
from django.utils import timezone

from django_perfectqueue.exceptions import ConfigError
from django_perfectqueue.fairness.audit import changes_of
from django_perfectqueue.fairness.edit import lift_pause
from django_perfectqueue.fairness.limits import (
    SCOPES,
    LimitName,
    next_at,
    owner,
    remove_limit,
    set_limit,
)
from django_perfectqueue.fairness.wording import limit_terms, rate_of
from django_perfectqueue.lib.checks import nearest
from django_perfectqueue.lib.durations import short_duration
from django_perfectqueue.lib.printable import printable
from django_perfectqueue.models import Limit, Meter
from django_perfectqueue.models.fields import ServerNow

from ..base import CommandOptions, at_least, or_dash
from ..queues.rule_command import (
    RuleCommand,
    changes_for_programs,
    edits,
    first_rows,
    person,
    rate,
)
from ..tasks.facts import Clock, Facts, iso, picked
from ..terminal.table import Column

if TYPE_CHECKING:
    from django_stubs_ext import WithAnnotations

ListedLimit: TypeAlias = "WithAnnotations[Limit, Clock]"


class Command(RuleCommand):
    summary = (
        "Shows or changes a limit: how many tasks may run at once, how many may start within a"
        " time, and whether they are paused; of the tasks that list its name, or of all of a queue,"
        " a type or a user. Only what is given is changed. Without a name it lists all limits, with"
        " what runs now."
    )
    queue_help = ""

    def add_options(self, parser: CommandParser) -> None:
        add = parser.add_argument
        add(
            "name",
            metavar="[SCOPE:]NAME",
            nargs="?",
            help="Such as smtp, queue:reports, type:report.draw or user:acme.",
        )
        self.add_cap(parser)
        choice = parser.add_mutually_exclusive_group()
        choice.add_argument(
            "--rate",
            type=rate,
            metavar="N/TIME",
            help="How many may start within a time, such as 10/min, 5/s or 100/90s.",
        )
        choice.add_argument("--no-rate", action="store_true", help="Any number may start.")
        add(
            "--burst",
            type=at_least(1),
            metavar="N",
            help="How many may start at once after a pause (default: as many as the rate).",
        )
        self.add_pause(parser)
        add("--remove", action="store_true", help="Take the limit away.")
        self.add_listing(parser)

    @no_translations
    def act(self, options: CommandOptions) -> None:
        changes = edits(options, "burst")
        if options["rate"]:
            changes["rate"], changes["period"] = options["rate"]
        if options["no_rate"]:
            changes["rate"] = None
        check_choice(options, changes)
        if options["name"] is None:
            self.list_limits(options["limit"])
            return
        target = parse_name(options["name"])
        key = f"{target['scope']}:{target['name']}"
        if options["remove"]:
            self.remove(target, key)
        elif changes:
            self.change(target, key, changes)
        else:
            self.show(target, key)

    def change(self, target: LimitName, key: str, changes: CommandOptions) -> None:
        if changes == {"paused": False}:
            self.unpause(target, key)
            return
        self.print_limit(set_limit(**target, **changes, using=self.queue.using, by=person()))

    def unpause(self, target: LimitName, key: str) -> None:
        if not self.limits().filter(**target).exists():
            raise no_limit(key)
        left = lift_pause(**target, using=self.queue.using, by=person())
        if left is not None:
            self.print_limit(left)
        else:
            self.print_removed(key, "Limit '%s' is removed: it was only a pause.")

    def print_limit(self, limit: Limit) -> None:
        self.answer(for_programs(limit), f"Limit '{limit.key}': {limit_terms(limit)}.")

    def remove(self, target: LimitName, key: str) -> None:
        if not remove_limit(**target, using=self.queue.using, by=person()):
            raise no_limit(key)
        self.print_removed(key, "Limit '%s' is removed.")

    def print_removed(self, key: str, sentence: str) -> None:
        self.answer({"limit": key, "removed": True}, sentence % key)

    def show(self, target: LimitName, key: str) -> None:
        row = self.limits().filter(**target).first()
        if row is None:
            raise no_limit(key)
        meters = self.meters([row])
        changes = changes_of(row, using=self.queue.using)
        if self.as_json:
            found = for_programs(row, meters.get(row.key))
            self.print_json({**found, "changes": list(changes_for_programs(changes))})
            return
        self.print_table(columns(meters), [row])
        self.print_changes(changes)

    def list_limits(self, limit: int) -> None:
        rows, more = first_rows(self.limits().order_by("scope", "name"), limit)
        meters = self.meters(rows)

        def facts(row: ListedLimit) -> Facts:
            return for_programs(row, meters.get(row.key))

        none = "There are no limits."
        self.print_listing(rows, facts, columns(meters), more=more, none=none)

    def limits(self) -> QuerySet[ListedLimit]:
        return Limit.objects.using(self.queue.using).annotate(clock=ServerNow())

    def meters(self, rows: list[ListedLimit]) -> dict[str, Meter]:
        found: dict[str, Meter] = {}
        for start in range(0, len(rows), 500):
            keys = [row.key for row in rows[start : start + 500]]
            found |= Meter.objects.using(self.queue.using).in_bulk(keys)
        return found


def check_choice(options: CommandOptions, changes: CommandOptions) -> None:
    """Raise CommandError unless the options say one thing."""
    if options["name"] is None and (changes or options["remove"]):
        raise CommandError("Say which limit: its name, or a scope and a name.")
    if changes and options["remove"]:
        raise CommandError("--remove takes the limit away: it can't be changed as well.")


def columns(meters: dict[str, Meter]) -> list[Column[ListedLimit]]:
    return [
        Column[ListedLimit]("limit", lambda row: row.key, elastic=True),
        Column("running", lambda row: str(running(meters.get(row.key))), right=True),
        Column("at most", lambda row: or_dash(row.max_running), right=True),
        Column("rate", lambda row: rate_of(row) or "-"),
        Column("burst", lambda row: or_dash(row.burst), right=True),
        Column("next", lambda row: next_start(row, meters.get(row.key))),
        Column("", lambda row: "paused" if row.paused else ""),
    ]


def parse_name(text: str) -> LimitName:
    """
    Return the scope and the name of a limit from SCOPE:NAME, or a name alone.

    Raise ConfigError when it can't be one.
    """
    scope, colon, name = text.partition(":")
    if not colon:
        return owner("name", text)
    if scope not in SCOPES:
        raise ConfigError(
            (
                f"There is no scope '{scope}', but {', '.join(SCOPES)}. For a name with a colon say"
                f" name:{text}."
            )
            + nearest(scope, SCOPES)
        )
    return owner(scope, name)


def no_limit(key: str) -> CommandError:
    return CommandError(printable(f"There is no limit '{key}'. pq_limit lists those there are."))


def running(meter: Meter | None) -> int:
    return meter.running if meter else 0


def metered(meter: Meter | None) -> datetime | None:
    return meter.next_at if meter else None


def next_start(row: ListedLimit, meter: Meter | None) -> str:
    """Return when the next task may start."""
    if row.paused or row.max_running == 0:
        return "-"
    if meter and row.max_running is not None and meter.running >= row.max_running:
        return "when one ends"
    if row.rate is None:
        return "-"
    at = next_at(row, metered(meter), row.clock)
    return f"in {short_duration((at - row.clock).total_seconds())}" if at else "now"


def for_programs(row: Limit, meter: Meter | None = None) -> Facts:
    at = next_at(row, metered(meter), timezone.now())
    return {
        "limit": row.key,
        **picked(row, "scope", "name", "max_running", "rate", "period", "burst", "paused"),
        "running": running(meter),
        "next_at": iso(at),
    }
