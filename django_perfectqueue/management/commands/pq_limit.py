from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeAlias

from django.core.management.base import CommandError
from django.db.models import QuerySet
from django.utils import timezone

from django_perfectqueue.exceptions import ConfigError
from django_perfectqueue.fairness.audit import changes_of
from django_perfectqueue.fairness.edit import end_pause
from django_perfectqueue.fairness.limits import SCOPES, next_at, owner, remove_limit, set_limit
from django_perfectqueue.fairness.wording import limit_terms, paused_terms, rate_of
from django_perfectqueue.lib.checks import nearest
from django_perfectqueue.lib.durations import short_duration
from django_perfectqueue.models import Limit, Meter
from django_perfectqueue.models.fields import ServerNow

from ..base import CommandOptions, or_dash
from ..facts import PAUSED, Clock, Facts, iso, picked
from ..flags import PAUSE, person
from ..terminal import Column
from ..verbs import (
    LISTED,
    NounCommand,
    Subcommand,
    changed,
    changes_for_programs,
    first_rows,
    pause_terms,
)

if TYPE_CHECKING:
    from django_stubs_ext import WithAnnotations

ListedLimit: TypeAlias = "WithAnnotations[Limit, Clock]"
CHANGES = "--max-running --rate --at-once"


def list_limits(command: NounCommand, options: CommandOptions) -> None:
    """List all limits, with what runs now."""
    using = command.queue.using
    rows, more = first_rows(limits(using).order_by("scope", "name"), options["first"])
    meters = meters_of(rows, using)

    def facts(row: ListedLimit) -> Facts:
        return for_programs(row, meters.get(row.key))

    none = "There are no limits."
    command.print_listing(rows, facts, columns(meters), more=more, none=none)


def show(command: NounCommand, options: CommandOptions) -> None:
    """Show limits and who changed them."""
    using = command.queue.using
    for target, key in map(parse_name, options["names"]):
        row = limits(using).filter(**target).first()
        if row is None:
            raise no_limit(key, using)
        meters, changes = meters_of([row], using), changes_of(row, using=using)
        if command.as_json:
            found = for_programs(row, meters.get(row.key))
            command.print_json({**found, "changes": list(changes_for_programs(changes))})
        else:
            command.print_table(columns(meters), [row])
            command.print_changes(changes)


def change(command: NounCommand, options: CommandOptions) -> None:
    """Change only what is given."""
    changes = changed(options, CHANGES)
    if "at_once" in changes:
        changes["burst"] = changes.pop("at_once")
    if changes.get("rate"):
        changes["rate"], changes["period"] = changes["rate"]
    set_all(command, options, changes)


def pause(command: NounCommand, options: CommandOptions) -> None:
    """Start none of these tasks, until a time or until they are unpaused."""
    set_all(command, options, {"paused": True, **pause_terms(options)})


def set_all(command: NounCommand, options: CommandOptions, changes: CommandOptions) -> None:
    for target, _key in map(parse_name, options["names"]):
        row = set_limit(**target, **changes, using=command.queue.using, by=person())
        print_limit(command, row)


def unpause(command: NounCommand, options: CommandOptions) -> None:
    """End the pause."""
    using = command.queue.using
    for target, key in map(parse_name, options["names"]):
        if not end_pause(Limit, target, using=using, by=person()):
            raise no_limit(key, using)
        if left := limits(using).filter(**target).first():
            print_limit(command, left)
        else:
            print_deleted(command, key, "Limit '%s' is deleted: it was only a pause.")


def delete(command: NounCommand, options: CommandOptions) -> None:
    """Delete limits: nothing holds the tasks."""
    using = command.queue.using
    for target, key in map(parse_name, options["names"]):
        if not remove_limit(**target, using=using, by=person()):
            raise no_limit(key, using)
        print_deleted(command, key, "Limit '%s' is deleted.")


def print_limit(command: NounCommand, row: Limit) -> None:
    command.answer(for_programs(row), f"Limit '{row.key}': {limit_terms(row)}.")


def print_deleted(command: NounCommand, key: str, sentence: str) -> None:
    command.answer({"limit": key, "deleted": True}, sentence % key)


def limits(using: str) -> QuerySet[ListedLimit]:
    return Limit.objects.using(using).annotate(clock=ServerNow())


def meters_of(rows: list[ListedLimit], using: str) -> dict[str, Meter]:
    found: dict[str, Meter] = {}
    for start in range(0, len(rows), 500):
        keys = [row.key for row in rows[start : start + 500]]
        found |= Meter.objects.using(using).in_bulk(keys)
    return found


def columns(meters: dict[str, Meter]) -> list[Column[ListedLimit]]:
    return [
        Column[ListedLimit]("limit", lambda row: row.key, elastic=True),
        Column("running", lambda row: str(running(meters.get(row.key))), right=True),
        Column("at most", lambda row: or_dash(row.max_running), right=True),
        Column("rate", lambda row: rate_of(row) or "-"),
        Column("at once", lambda row: or_dash(row.burst), right=True),
        Column("next", lambda row: next_start(row, meters.get(row.key))),
        Column("", paused_terms, elastic=True),
    ]


def parse_name(text: str) -> tuple[dict[str, Any], str]:
    """
    Return the scope and the name of a limit from SCOPE:NAME, or a name alone; and its key.

    Raise ConfigError when it can't be one.
    """
    scope, colon, name = text.partition(":")
    if not colon:
        scope, name = "name", text
    elif scope not in SCOPES:
        raise ConfigError(
            (
                f"There is no scope '{scope}', but {', '.join(SCOPES)}. For a name with a colon say"
                f" name:{text}."
            )
            + nearest(scope, SCOPES)
        )
    return owner(scope, name), f"{scope}:{name}"


def no_limit(key: str, using: str) -> CommandError:
    keys = [row.key for row in limits(using)[:LISTED]]
    return CommandError(f"There is no limit '{key}'.{nearest(key, keys)}")


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
        **picked(row, "scope", "name", "max_running", "rate", "period", "burst", *PAUSED),
        "running": running(meter),
        "next_at": iso(at),
    }


class Command(NounCommand):
    summary = (
        "Shows and sets limits: how many tasks may run at once, how many may start within a time,"
        " and whether they are paused. A limit is of the tasks that list its name, or of all of a"
        " queue, a type or a user: queue:reports, type:report.draw, user:acme."
    )
    metavar = "[SCOPE:]NAME"
    name_help = "Such as smtp, queue:reports, type:report.draw or user:acme."
    examples = (
        "pq_limit list",
        "pq_limit set smtp --max-running 5 --rate 100/min",
        "pq_limit pause type:report.draw --unpause-at 18:00",
        "pq_limit unpause type:report.draw",
        "pq_limit delete smtp",
    )
    verbs = {
        "list": Subcommand(list_limits, flags="--first"),
        "show": Subcommand(show, "+"),
        "set": Subcommand(change, "+", terms=CHANGES),
        "pause": Subcommand(pause, "+", flags=PAUSE),
        "unpause": Subcommand(unpause, "+"),
        "delete": Subcommand(delete, "+"),
    }
