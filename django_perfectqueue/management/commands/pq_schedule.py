from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, cast

from django.core.management.base import CommandError, no_translations
from django.utils import timezone
from django.utils.timezone import localtime

from django_perfectqueue.bulk.selection import time_of
from django_perfectqueue.inspection.schedules import in_words, standing, with_statuses
from django_perfectqueue.inspection.task import waits_in_words
from django_perfectqueue.lib.printable import on_one_line
from django_perfectqueue.models import Schedule
from django_perfectqueue.schedules import ScheduleHandle, Schedules, Terms
from django_perfectqueue.schedules.terms import CHECKS

from ..base import CommandOptions
from ..facts import content
from ..flags import MANY, TERMS, person
from ..terminal import Column, for_programs, parsed, plural, unseen
from ..verbs import NounCommand, Subcommand

SPANS = ("time_limit", "expires_after", "delay", "jitter", "deadline")


def clock(moment: datetime | None) -> str:
    return localtime(moment).isoformat(" ", "seconds") if moment else "-"


def of_model(name: str) -> Column[Schedule]:
    """Return the column of a field under its label."""
    field: Any = Schedule._meta.get_field(name)

    def shown(row: Schedule) -> object:
        value = getattr(row, name)
        if isinstance(value, datetime):
            return clock(value)
        if value is None and name == "catch_up":
            return "all"
        return timedelta(seconds=value) if value and name in SPANS else value

    return Column(field.verbose_name, name, shown=shown)


# What there is to be said of a schedule, without its ticks and data: a page has what is set.
FACTS: list[Column[Schedule]] = [
    Column("state", "state"),
    Column("why", "why", lambda row: standing(row, timezone.now())),
    *map(of_model, ("problem", "paused_by", "note", "type")),
    Column("when", "when", in_words),
    *map(of_model, ("cron", "queue", "user")),
    Column("limits", "limits", lambda row: row.limits.split(",") if row.limits else []),
    Column("tags", "tags"),
    Column("sequence", "sequence"),
    Column("max attempts", "max_attempts"),
    Column("backoff", "backoff", lambda row: waits_in_words(row.backoff)),
    *map(of_model, ("priority", "time_limit", "expires_after", "starts_at", "ends_at")),
    *map(of_model, ("remaining", "delay", "jitter", "overlap")),
    *map(of_model, ("catch_up", "deadline", "pause_after", "last_at", "fired")),
    *map(of_model, ("skipped_overlap", "skipped_late", "failures")),
    *unseen("name", "origin", "every", "timezone", "paused"),
    *unseen("next_at", "due_at", "pending", "last_status"),
]


NEXT = 5
LAST = 10


def schedules_of(command: NounCommand) -> Schedules:
    return Schedules(using=command.queue.using)


def named(command: NounCommand) -> list[ScheduleHandle]:
    return [schedules_of(command)[name] for name in command.options["names"]]


def do_list(command: NounCommand, options: CommandOptions) -> None:
    """List them all."""
    rows, prepare = schedules_of(command).list(), partial(with_statuses, using=command.queue.using)
    command.print_listing(rows, COLUMNS, none="There are no schedules.", prepare=prepare)


def do_show(command: NounCommand, options: CommandOptions) -> None:
    """Show them, with their next ticks and last tasks."""
    for schedule in named(command):
        row, ticks, tasks = schedule.row(), schedule.next(NEXT), schedule.last(LAST)
        data = content("data", row.payload)
        if command.as_json:
            last = [{"key": one.key, "id": one.pk, "status": one.status} for one in tasks]
            facts = for_programs(COLUMNS, *with_statuses([row], using=command.queue.using))
            command.print_json({**facts, "next": ticks, "last": last, **data})
            continue
        command.print_title(f"Schedule '{row.name}'")
        command.print_fields((str(one.title), one.seen(row) or None) for one in FACTS if one.title)
        print_block(command, "next", map(clock, ticks))
        last_ticks = [f"{one.key.rpartition('@')[2]}  {one.status}" for one in tasks]
        print_block(command, "last", last_ticks)
        for name, value in data.items():
            command.print_field(name, json.dumps(value, ensure_ascii=False))


def do_put(command: NounCommand, options: CommandOptions) -> None:
    """Store one, or replace the terms of the one with this name."""
    if not options.get("cron") and not options.get("every"):
        raise CommandError(
            "Give a cron expression or an interval: --cron '30 3 * * *' or --every 15m."
        )
    schedule = schedules_of(command).put(
        options["names"],
        options["type"],
        None if options["data"] is None else parsed(options["data"]),
        by=person(),
        **given_terms(options),
    )
    report(command, schedule, "stored")


def do_change(command: NounCommand, options: CommandOptions) -> None:
    """Change only what is given."""
    schedule, terms = schedules_of(command)[options["names"]], given_terms(options)
    if not terms:
        raise CommandError("Say what to change.")
    schedule.change(by=person(), **terms)
    report(command, schedule, "changed")


def do_pause(command: NounCommand, options: CommandOptions) -> None:
    """Submit nothing until they are unpaused."""
    do_each(command, "paused", lambda schedule: schedule.pause(options["note"], by=person()))


def do_unpause(command: NounCommand, options: CommandOptions) -> None:
    """End the pause; the next tick is the first one from now."""
    do_each(command, "unpaused", lambda schedule: schedule.unpause(by=person()))


def do_each(command: NounCommand, word: str, act: Callable[[ScheduleHandle], object]) -> None:
    for schedule in named(command):
        act(schedule)
        report(command, schedule, word)


def do_run(command: NounCommand, options: CommandOptions) -> None:
    """Submit their tasks now."""
    for schedule in named(command):
        task = schedule.trigger(by=person())
        facts = {"name": schedule.name, "done": "run", "queue": task.queue.name}
        command.answer({**facts, "key": task.key}, f"Task '{task.key}' is submitted.")


def do_backfill(command: NounCommand, options: CommandOptions) -> None:
    """Submit the tasks of past ticks that have none."""
    since, until = time_of(options["since"]), time_of(options["until"] or "0s")
    if until <= since:
        raise CommandError("--until must be after --since.")
    schedule, dry_run = schedules_of(command)[options["names"]], options["dry_run"]
    overlap: Any = options["overlap"] or "allow"
    if overlap not in ("allow", "queue"):
        raise CommandError(f"--overlap of a backfill is allow or queue, not '{overlap}'.")
    if not dry_run and not options["yes"]:
        ticks = schedule.backfill(since, until, dry_run=True)
        command.confirm(submitted(ticks, "would be"))
    ticks = schedule.backfill(since, until, overlap=overlap, dry_run=dry_run, by=person())
    if command.as_json:
        command.print_json({"name": schedule.name, "dry_run": dry_run, "ticks": ticks})
        return
    command.say(submitted(ticks, "would be" if dry_run else "is" if len(ticks) == 1 else "are"))
    for tick in ticks:
        command.say(f"  {clock(tick)}")


def do_delete(command: NounCommand, options: CommandOptions) -> None:
    """Delete them; the tasks that they submitted stay."""
    for schedule in named(command):
        schedule.delete(by=person())
        facts = {"name": schedule.name, "done": "deleted"}
        command.answer(facts, f"Schedule '{schedule.name}' is deleted.")


@no_translations
def report(command: NounCommand, schedule: ScheduleHandle, word: str) -> None:
    """Say what was done, and when the next tasks come."""
    row, ticks = schedule.row(), schedule.next(NEXT)
    if command.as_json:
        command.print_json({**for_programs(FACTS, row), "done": word, "next": ticks})
    elif command.verbosity:
        command.say(f"Schedule '{row.name}' is {word}.")
        command.print_field("when", on_one_line(in_words(row)))
        if row.paused:
            command.print_field("paused", on_one_line(row.note) or "yes")
        print_block(command, "next", map(clock, ticks))


def print_block(command: NounCommand, name: str, values: Iterable[str]) -> None:
    for number, value in enumerate([*values] or ["-"]):
        command.print_field("" if number else name, value)


def submitted(ticks: Sequence[datetime], done: str) -> str:
    return f"{plural(len(ticks), 'task')} {done} submitted."


def given_terms(options: CommandOptions) -> Terms:
    """Return the terms that were given."""
    return cast("Terms", {name: options[name] for name in CHECKS if name in options})


def remark(row: Schedule) -> str:
    return row.problem or (f"{row.state}: {row.note}" if row.note else row.state)


COLUMNS: list[Column[Schedule]] = [
    Column("schedule", shown=lambda row: row.name, elastic=True),
    Column("type", shown=lambda row: row.type, elastic=True, spare=True),
    Column("when", shown=in_words, elastic=True),
    Column("next", shown=lambda row: clock(row.due_at)),
    Column("last", shown=lambda row: clock(row.last_at), spare=True),
    Column("status", "last_status"),
    Column("", shown=remark, elastic=True),
    *(replace(column, title=None) for column in FACTS),
]


class Command(NounCommand):
    help = "Shows and changes schedules, which submit tasks repeatedly."
    label_width = 16
    name_help = "Name of the schedule."
    examples = (
        "pq_schedule list",
        "pq_schedule put nightly reports.draw '{\"all\": true}' --cron '30 3 * * *'",
        "pq_schedule change nightly --overlap queue_one",
        "pq_schedule pause nightly --note 'until the import is done'",
        "pq_schedule backfill nightly --since 7d --dry-run",
    )
    verbs = {
        "list": Subcommand(do_list, flags="--first"),
        "show": Subcommand(do_show, "+"),
        "put": Subcommand(do_put, "1", flags="type data?", terms=TERMS, submits=True),
        "change": Subcommand(do_change, "1", terms=TERMS, submits=True),
        "pause": Subcommand(do_pause, "+", flags="--note"),
        "unpause": Subcommand(do_unpause, "+"),
        "run": Subcommand(do_run, "+", submits=True),
        "backfill": Subcommand(
            do_backfill, "1", flags=f"--until --overlap {MANY} --since!", submits=True
        ),
        "delete": Subcommand(do_delete, "+"),
    }
