from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any, cast

from django.core.management.base import CommandError, no_translations

from django_perfectqueue.exceptions import InvalidScheduleError, InvalidTaskError
from django_perfectqueue.inspection.schedules import in_words, problems_of, statuses_of
from django_perfectqueue.lib.printable import on_one_line, printable
from django_perfectqueue.models import Schedule
from django_perfectqueue.payload.names import JSON
from django_perfectqueue.schedules import ScheduleHandle, Schedules, Terms
from django_perfectqueue.schedules.terms import CHECKS

from ..base import CommandOptions
from ..flags import MANY, TERMS
from ..schedule_facts import data_of, fields, for_programs, shown, tick_of
from ..terminal.table import Column
from ..terminal.text import point
from ..values import EMPTY, past, person
from ..verbs import NounCommand, Verb, first_rows

NEXT = 5
LAST = 10


def do(word: str, help_text: str, **words: Any) -> Verb:
    """Return the verb that a method of the command does."""

    def call(command: Command, options: CommandOptions) -> None:
        getattr(command, f"do_{word}")(options)

    return Verb(call=call, help=help_text, **words)


class Command(NounCommand):
    summary = "Shows and changes schedules, whose tasks are submitted again and again."
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
        "list": do("list", "List them all.", flags=("--first",)),
        "show": do("show", "Show them, with their next ticks and last tasks.", names="+"),
        "put": do(
            "put",
            "Store one, or change the one of this name into this one.",
            names="1",
            values=(
                ("type", {"metavar": "TYPE", "help": "What handles its tasks."}),
                ("data", {"metavar": "JSON", "nargs": "?", "help": "Their data, as JSON."}),
            ),
            terms=TERMS,
            submits=True,
        ),
        "change": do("change", "Change only what is given.", names="1", terms=TERMS, submits=True),
        "pause": do(
            "pause", "Submit nothing until they are unpaused.", names="+", flags=("--note",)
        ),
        "unpause": do("unpause", "End the pause: go on with the first tick from now.", names="+"),
        "run": do("run", "Submit their tasks now.", names="+", submits=True),
        "backfill": do(
            "backfill",
            "Submit the tasks of past ticks that have none.",
            names="1",
            flags=("--until", "--overlap", *MANY),
            required=("--since",),
            submits=True,
        ),
        "delete": do("delete", "Delete them; the tasks that they submitted stay.", names="+"),
        "check": do("check", "Exit with 1 where one is broken or late, and say why."),
    }

    def act(self, options: CommandOptions) -> None:
        self.schedules = Schedules(using=self.queue.using)
        super().act(options)

    def do_list(self, options: CommandOptions) -> None:
        rows, more = first_rows(self.schedules.list(), options["first"])
        statuses = statuses_of(rows, using=self.queue.using)

        def facts(row: Schedule) -> dict[str, object]:
            return for_programs(row, statuses.get(row.last_task_id or 0, ""))

        columns = [
            Column[Schedule]("schedule", lambda row: row.name, elastic=True),
            Column("type", lambda row: row.type, elastic=True, spare=True),
            Column("when", in_words, elastic=True),
            Column("next", lambda row: shown(row.due_at)),
            Column("last", lambda row: shown(row.last_at), spare=True),
            Column("status", lambda row: statuses.get(row.last_task_id or 0, "-")),
            Column("", remark, elastic=True),
        ]
        self.print_listing(rows, facts, columns, more=more, none="There are no schedules.")

    def do_show(self, options: CommandOptions) -> None:
        for name in options["names"]:
            self.show(self.schedules[name])

    def show(self, schedule: ScheduleHandle) -> None:
        row, ticks, tasks = schedule.row(), schedule.next(NEXT), schedule.last(LAST)
        if self.as_json:
            last = [{"key": one.key, "id": one.pk, "status": one.status} for one in tasks]
            ahead = [tick.isoformat() for tick in ticks]
            statuses = statuses_of([row], using=self.queue.using)
            facts = for_programs(row, statuses.get(row.last_task_id or 0, ""))
            self.print_json({**facts, "next": ahead, "last": last, **data_of(row)})
            return
        title = f"Schedule '{row.name}'"
        self.print_title(title)
        for label, text in fields(row):
            self.print_field(label, on_one_line(text))
        self.print_block("next", [shown(tick) for tick in ticks])
        self.print_block("last", [f"{tick_of(one)}  {one.status}" for one in tasks])
        for name, value in data_of(row).items():
            self.print_field(name, printable(json.dumps(value, ensure_ascii=False)))

    def do_put(self, options: CommandOptions) -> None:
        if not options.get("cron") and not options.get("every"):
            raise CommandError(
                "Give a cron expression or an interval: --cron '30 3 * * *' or --every 15m."
            )
        schedule = self.schedules.put(
            options["names"],
            options["type"],
            data_from(options["data"]),
            by=person(),
            **given_terms(options),
        )
        self.report(schedule, "stored", "Schedule '%s' is stored.")

    def do_change(self, options: CommandOptions) -> None:
        schedule, terms = self.schedules[options["names"]], given_terms(options)
        if not terms:
            raise CommandError("Say what to change.")
        schedule.change(by=person(), **terms)
        self.report(schedule, "changed", "Schedule '%s' is changed.")

    def do_pause(self, options: CommandOptions) -> None:
        for schedule in self.named(options):
            schedule.pause(options["note"], by=person())
            self.report(schedule, "paused", "Schedule '%s' is paused.")

    def do_unpause(self, options: CommandOptions) -> None:
        for schedule in self.named(options):
            schedule.unpause(by=person())
            self.report(schedule, "unpaused", "Schedule '%s' goes on.")

    def do_run(self, options: CommandOptions) -> None:
        for schedule in self.named(options):
            task = schedule.trigger(by=person())
            facts = {"name": schedule.name, "done": "run", "queue": task.queue.name}
            self.answer({**facts, "key": task.key}, f"Task '{task.key}' is submitted.")

    def named(self, options: CommandOptions) -> list[ScheduleHandle]:
        return [self.schedules[name] for name in options["names"]]

    def do_backfill(self, options: CommandOptions) -> None:
        since, until = past("since", options["since"]), past("until", options["until"])
        if until <= since:
            raise CommandError("--until must be after --since.")
        schedule, dry_run = self.schedules[options["names"]], options["dry_run"]
        overlap: Any = options["overlap"] or "allow"
        if overlap not in ("allow", "queue"):
            raise CommandError(f"--overlap of a backfill is allow or queue, not '{overlap}'.")
        if not dry_run and not options["yes"]:
            ticks = schedule.backfill(since, until, dry_run=True)
            self.confirm(submitted(ticks, "would be"))
        ticks = schedule.backfill(since, until, overlap=overlap, dry_run=dry_run, by=person())
        if self.as_json:
            facts = {"name": schedule.name, "dry_run": dry_run}
            self.print_json({**facts, "ticks": [tick.isoformat() for tick in ticks]})
            return
        self.say(submitted(ticks, "would be" if dry_run else "is" if len(ticks) == 1 else "are"))
        for tick in ticks:
            self.say(f"  {shown(tick)}")

    def do_delete(self, options: CommandOptions) -> None:
        for schedule in self.named(options):
            schedule.delete(by=person())
            facts = {"name": schedule.name, "done": "deleted"}
            self.answer(facts, f"Schedule '{schedule.name}' is deleted.")

    def do_check(self, options: CommandOptions) -> None:
        found = list(problems_of(using=self.queue.using))
        if self.as_json:
            for row, sentence in found:
                self.print_json({**for_programs(row), "sentence": sentence})
        if found:
            raise CommandError("\n".join(sentence for _row, sentence in found))
        if not self.as_json:
            self.say("No schedule is broken or late.")

    @no_translations
    def report(self, schedule: ScheduleHandle, word: str, sentence: str) -> None:
        """Say what was done, and when the next tasks come."""
        row, ticks = schedule.row(), schedule.next(NEXT)
        if self.as_json:
            ahead = [tick.isoformat() for tick in ticks]
            self.print_json({**for_programs(row), "done": word, "next": ahead})
        elif self.verbosity:
            self.say(sentence % row.name)
            self.print_field("when", on_one_line(in_words(row)))
            if row.paused:
                self.print_field("paused", on_one_line(row.note) or "yes")
            self.print_block("next", [shown(tick) for tick in ticks])

    def print_block(self, name: str, values: Sequence[str]) -> None:
        for number, value in enumerate(values or ["-"]):
            self.print_field("" if number else name, value)


def submitted(ticks: Sequence[datetime], done: str) -> str:
    return f"{len(ticks)} {'task' if len(ticks) == 1 else 'tasks'} {done} submitted."


def given_terms(options: CommandOptions) -> Terms:
    """Return the terms that were given."""
    terms = {name: options[name] for name in CHECKS if name in options}
    for name in ("starts_at", "ends_at"):
        if name in terms:
            terms[name] = None if terms[name] in EMPTY else time_of(name, terms[name])
    return cast("Terms", terms)


def time_of(name: str, text: str) -> datetime | str | None:
    try:
        return point(name, text)
    except InvalidTaskError as error:
        raise InvalidScheduleError(str(error)) from error


def data_from(text: str | None) -> JSON:
    try:
        return None if text is None else json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CommandError(f"The data is not JSON: {error}") from error


def remark(row: Schedule) -> str:
    return row.problem or (f"{row.state}: {row.note}" if row.note else row.state)
