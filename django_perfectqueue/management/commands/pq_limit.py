from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import partial

from django.core.management.base import CommandError
from django.db.models import QuerySet

from django_perfectqueue.exceptions import ConfigError
from django_perfectqueue.fairness import edit, limits, wording
from django_perfectqueue.lib.checks import nearest
from django_perfectqueue.lib.durations import short_duration
from django_perfectqueue.models import Limit
from django_perfectqueue.models.fields import ServerNow

from ..base import CommandOptions
from ..flags import PAUSE
from ..terminal import Column, Facts, for_programs, unseen
from ..verbs import LISTED, PAUSED, NounCommand, RuleCommand, Subcommand

CHANGES = "--max-running --rate --at-once"


def list_limits(command: NounCommand, options: CommandOptions) -> None:
    """List all limits, with what runs now."""
    rows = rows_of(command).order_by("scope", "name")
    prepare = partial(limits.with_meters, using=command.queue.using)
    command.print_listing(rows, COLUMNS, none="There are no limits.", prepare=prepare)


def show(command: Command, options: CommandOptions) -> None:
    """Show limits, or the families that hold for the names, and who changed them."""
    for row in limits.with_meters(named(command, own=False), using=command.queue.using):
        draw = partial(command.print_table, COLUMNS, [row])
        command.print_rule(row, for_programs(COLUMNS, row), draw)


def change(command: Command, options: CommandOptions) -> None:
    """Change only what is given."""
    changes = command.changed(CHANGES)
    if "at_once" in changes:
        changes["burst"] = changes.pop("at_once")
    if changes.get("rate"):
        changes["rate"], changes["period"] = changes["rate"]
    command.do(partial(limits.set_limit, **changes))


def pause(command: Command, options: CommandOptions) -> None:
    """Pause these tasks until a time, or until they are unpaused."""
    # A queue, a type or a user may be paused that has no limit.
    list(named(command, own=False, scopes=("name",)))
    command.do(partial(limits.set_limit, paused=True, **command.pause_terms))


def unpause(command: Command, options: CommandOptions) -> None:
    """End the pause; a limit that was no more than that is deleted."""
    list(named(command))  # Raises for a name that none has.
    command.do(lambda using, by, **owner: edit.end_pause(Limit, owner, using=using, by=by))


def delete(command: Command, options: CommandOptions) -> None:
    """Delete limits; their tasks may start."""
    list(named(command))  # Raises for a name that none has.
    command.do(limits.remove_limit)


def rows_of(command: NounCommand) -> QuerySet[Limit]:
    return Limit.objects.using(command.queue.using).annotate(clock=ServerNow())  # type: ignore[no-redef]


def named(
    command: Command, *, own: bool = True, scopes: Collection[str] = limits.SCOPES
) -> Iterator[Limit]:
    """
    Yield the limits of the names, or unless ``own`` those that hold for them; raise CommandError
    for a name that none has.
    """
    rows = rows_of(command)
    for owner in filter(lambda one: one["scope"] in scopes, command.owners()):
        key = Limit(**owner).key
        held = limits.in_force([key], using=command.queue.using).get(key)
        row = rows.filter(pk=held.pk).first() if held else None
        if row is None or (own and row.key != key):
            near = nearest(key, [one.key for one in rows[:LISTED]])
            raise CommandError(f"There is no limit '{key}'.{near}")
        yield row


def owner_of(text: str) -> CommandOptions:
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


def next_start(row: Limit) -> str:
    """Return when the next task may start; each name of a family has its own time."""
    if row.is_family or row.paused or row.max_running == 0:
        return "-"
    if row.max_running is not None and row.meter.running >= row.max_running:
        return "when one ends"
    if row.rate is None:
        return "-"
    at = limits.next_at(row, row.clock)
    return f"in {short_duration((at - row.clock).total_seconds())}" if at else "now"


def remarks(row: Limit) -> str:
    """Return whether it is paused or declared in code, and which names of a family run most."""
    found = (wording.paused_terms(row), wording.members_of(row), wording.origin_of(row))
    return ", ".join(filter(None, found))


COLUMNS: list[Column[Limit]] = [
    Column("limit", "limit", lambda row: row.key, elastic=True),
    Column("running", "running", lambda row: row.meter.running, right=True),
    Column("at most", "max_running", right=True),
    Column("rate", "rate", shown=lambda row: wording.rate_of(row) or "-"),
    Column("at once", "burst", right=True),
    Column("next", "next_at", lambda row: limits.next_at(row, row.clock), next_start),
    Column("", "origin", wording.origin_of, remarks, elastic=True),
    Column(None, "members", lambda row: {one.key: one.running for one in row.members}),
    *unseen("scope", "name", "period", *PAUSED),
]


class Command(RuleCommand):
    help = (
        "Shows and sets limits: how many tasks may run at once, how many may start within a time, "
        "and whether they are paused. A limit holds for the tasks that list its name, or for all "
        "tasks of a queue, a type or a user: queue:reports, type:report.draw, user:acme. One that "
        "ends in * is a family: each name that begins so has the limit for itself."
    )
    metavar = "[SCOPE:]NAME"
    name_help = "Such as smtp, queue:reports, type:report.draw or user:acme."
    examples = (
        "pq_limit list",
        "pq_limit set smtp --max-running 5 --rate 100/min",
        "pq_limit set 'name:stripe:*' 'user:*' --max-running 2",
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

    def owners(self) -> Iterator[CommandOptions]:
        return map(owner_of, self.options["names"])

    def held(self, owner: CommandOptions) -> tuple[Facts, str]:
        rows = limits.with_meters(list(rows_of(self).filter(**owner)), using=self.queue.using)
        for row in rows:
            terms = wording.limit_terms(row)
            return for_programs(COLUMNS, row), f"Limit '{row.key}': {terms}."
        key = Limit(**owner).key
        return {"limit": key, "deleted": True}, f"There is no limit '{key}' any more."
