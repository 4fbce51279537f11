from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from functools import partial
from typing import Any

from django.core.management.base import CommandError
from django.db.models import QuerySet
from django.utils import timezone

from django_perfectqueue.exceptions import ConfigError
from django_perfectqueue.fairness import edit, limits, wording
from django_perfectqueue.lib.checks import nearest
from django_perfectqueue.lib.durations import short_duration
from django_perfectqueue.models import Limit, Meter
from django_perfectqueue.models.fields import ServerNow

from ..base import CommandOptions, or_dash
from ..facts import PAUSED, Facts, iso, picked
from ..flags import PAUSE, person
from ..terminal import Column
from ..verbs import LISTED, NounCommand, Subcommand, changed, pause_terms

CHANGES = "--max-running --rate --at-once"


def list_limits(command: NounCommand, options: CommandOptions) -> None:
    """List all limits, with what runs now."""
    rows = rows_of(command).order_by("scope", "name")
    none, prepare = "There are no limits.", partial(with_meters, using=command.queue.using)
    command.print_listing(rows, for_programs, COLUMNS, none=none, prepare=prepare)


def show(command: NounCommand, options: CommandOptions) -> None:
    """Show limits and who changed them."""
    for row in with_meters(list(named(command)), using=command.queue.using):
        draw = partial(command.print_table, COLUMNS, [row])
        command.print_rule(row, for_programs(row), draw)


def change(command: NounCommand, options: CommandOptions) -> None:
    """Change only what is given."""
    changes = changed(options, CHANGES)
    if "at_once" in changes:
        changes["burst"] = changes.pop("at_once")
    if changes.get("rate"):
        changes["rate"], changes["period"] = changes["rate"]
    set_all(command, changes)


def pause(command: NounCommand, options: CommandOptions) -> None:
    """Pause these tasks until a time, or until they are unpaused."""
    set_all(command, {"paused": True, **pause_terms(options)})


def set_all(command: NounCommand, changes: CommandOptions) -> None:
    for target in map(target_of, command.options["names"]):
        row = limits.set_limit(**target, **changes, using=command.queue.using, by=person())
        print_limit(command, row)


def unpause(command: NounCommand, options: CommandOptions) -> None:
    """End the pause."""
    using = command.queue.using
    for row in named(command):
        edit.end_pause(Limit, limits.owner(row.scope, row.name), using=using, by=person())
        if left := rows_of(command).filter(pk=row.pk).first():
            print_limit(command, left)
        else:
            print_deleted(command, row, "Limit '%s' is deleted: it was only a pause.")


def delete(command: NounCommand, options: CommandOptions) -> None:
    """Delete limits; their tasks may start."""
    for row in named(command):
        target = limits.owner(row.scope, row.name)
        limits.remove_limit(**target, using=command.queue.using, by=person())
        print_deleted(command, row, "Limit '%s' is deleted.")


def print_limit(command: NounCommand, row: Limit) -> None:
    command.answer(for_programs(row), f"Limit '{row.key}': {wording.limit_terms(row)}.")


def print_deleted(command: NounCommand, row: Limit, sentence: str) -> None:
    command.answer({"limit": row.key, "deleted": True}, sentence % row.key)


def rows_of(command: NounCommand) -> QuerySet[Limit]:
    return Limit.objects.using(command.queue.using).annotate(clock=ServerNow())  # type: ignore[no-redef]


def named(command: NounCommand) -> Iterator[Limit]:
    """Yield the limits of the names; raise CommandError for a name that none has."""
    rows = rows_of(command)
    for target in map(target_of, command.options["names"]):
        row = rows.filter(**target).first()
        if row is None:
            key = "{scope}:{name}".format(**target)
            near = nearest(key, [one.key for one in rows[:LISTED]])
            raise CommandError(f"There is no limit '{key}'.{near}")
        yield row


def with_meters(rows: list[Limit], *, using: str) -> list[Limit]:
    meters = Meter.objects.using(using).in_bulk([row.key for row in rows])
    for row in rows:
        row.meter = meters.get(row.key)
    return rows


def target_of(text: str) -> dict[str, Any]:
    """
    Return the scope and the name of a limit from SCOPE:NAME, or a name alone.

    Raise ConfigError when it can't be one.
    """
    scope, colon, name = text.partition(":")
    if not colon:
        return limits.owner("name", text)
    if scope not in limits.SCOPES:
        raise ConfigError(
            f"There is no scope '{scope}', but {', '.join(limits.SCOPES)}. For a name with a colon"
            f" say name:{text}.{nearest(scope, limits.SCOPES)}"
        )
    return limits.owner(scope, name)


def running(row: Limit) -> int:
    return row.meter.running if row.meter else 0


def next_at(row: Limit, now: datetime) -> datetime | None:
    return limits.next_at(row, row.meter.next_at if row.meter else None, now)


def next_start(row: Limit) -> str:
    """Return when the next task may start."""
    if row.paused or row.max_running == 0:
        return "-"
    if row.max_running is not None and running(row) >= row.max_running:
        return "when one ends"
    if row.rate is None:
        return "-"
    at = next_at(row, row.clock)
    return f"in {short_duration((at - row.clock).total_seconds())}" if at else "now"


def for_programs(row: Limit) -> Facts:
    return {
        "limit": row.key,
        **picked(row, "scope", "name", "max_running", "rate", "period", "burst", *PAUSED),
        "running": running(row),
        "next_at": iso(next_at(row, timezone.now())),
    }


COLUMNS: list[Column[Limit]] = [
    Column("limit", lambda row: row.key, elastic=True),
    Column("running", lambda row: str(running(row)), right=True),
    Column("at most", lambda row: or_dash(row.max_running), right=True),
    Column("rate", lambda row: wording.rate_of(row) or "-"),
    Column("at once", lambda row: or_dash(row.burst), right=True),
    Column("next", next_start),
    Column("", wording.paused_terms, elastic=True),
]


class Command(NounCommand):
    help = (
        "Shows and sets limits: how many tasks may run at once, how many may start within a time, "
        "and whether they are paused. A limit holds for the tasks that list its name, or for all "
        "tasks of a queue, a type or a user: queue:reports, type:report.draw, user:acme."
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
