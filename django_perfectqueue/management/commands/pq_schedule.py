from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from django.core.management.base import CommandError, CommandParser, no_translations

from django_perfectqueue.inspection.schedules import in_words, problems_of, statuses_of
from django_perfectqueue.lib.printable import on_one_line, printable
from django_perfectqueue.models import Schedule
from django_perfectqueue.payload.names import JSON
from django_perfectqueue.schedules import ScheduleHandle, Schedules

from ..base import CommandOptions
from ..queues.rule_command import VerbCommand, first_rows, person
from ..schedules.facts import data_of, fields, for_programs, shown, tick_of
from ..schedules.terms import add_terms, given_terms, past
from ..terminal.table import Column

NEXT = 5
LAST = 10


class Command(VerbCommand):
    summary = (
        "Shows and steers schedules, whose tasks are submitted again and again: list (also without"
        " a word), show, put, change, pause, unpause, run, backfill, delete, check. Exits with 1 on"
        " any error; check does so where a schedule is broken or late."
    )
    queue_help = ""
    label_width = 16
    name_help = "Name of the schedule."

    def add_verbs(self, add: Callable[..., CommandParser]) -> None:
        self.add_listing(add("list", "List them all.", named=False))
        add("show", "Show one, with its next ticks and its last tasks.")
        put = add("put", "Store one, or change the one of this name into this one.")
        put.add_argument("type", metavar="TYPE", help="What handles its tasks.")
        put.add_argument("data", metavar="JSON", nargs="?", help="Their data, as JSON.")
        add_terms(put)
        add_terms(add("change", "Change only what is given."))
        pause = add("pause", "Submit nothing until it is unpaused.")
        pause.add_argument("--note", default="", metavar="TEXT", help="Why.")
        add("unpause", "Go on with the first tick from now.")
        add("run", "Submit its task now.")
        backfill = add("backfill", "Submit the tasks of past ticks that have none.")
        times = "A span ago, unix seconds, or ISO 8601 with an offset."
        backfill.add_argument("--since", required=True, metavar="TIME", help=times)
        backfill.add_argument("--until", metavar="TIME", help=times + " Default: now.")
        backfill.add_argument(
            "--overlap",
            choices=("allow", "queue"),
            default="allow",
            help="Let all run at once (allow), or one after another (queue).",
        )
        backfill.add_argument(
            "--dry-run", action="store_true", help="Only say which ticks these are."
        )
        add("delete", "Delete it; the tasks that it has submitted stay.")
        add("check", "Say which are broken or late.", named=False)

    def act(self, options: CommandOptions) -> None:
        self.schedules = Schedules(using=self.queue.using)
        getattr(self, f"do_{options['verb']}")(options)

    @no_translations
    def do_list(self, options: CommandOptions) -> None:
        rows, more = first_rows(self.schedules.list(), options["limit"])
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

    @no_translations
    def do_show(self, options: CommandOptions) -> None:
        schedule = self.schedules[options["name"]]
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
            options["name"],
            options["type"],
            data_from(options["data"]),
            by=person(),
            **given_terms(options),
        )
        self.report(schedule, "stored", "Schedule '%s' is stored.")

    def do_change(self, options: CommandOptions) -> None:
        schedule, terms = self.schedules[options["name"]], given_terms(options)
        if not terms:
            raise CommandError("Say what to change.")
        schedule.change(by=person(), **terms)
        self.report(schedule, "changed", "Schedule '%s' is changed.")

    def do_pause(self, options: CommandOptions) -> None:
        schedule = self.schedules[options["name"]]
        schedule.pause(options["note"], by=person())
        self.report(schedule, "paused", "Schedule '%s' is paused.")

    def do_unpause(self, options: CommandOptions) -> None:
        schedule = self.schedules[options["name"]]
        schedule.unpause(by=person())
        self.report(schedule, "unpaused", "Schedule '%s' goes on.")

    def do_run(self, options: CommandOptions) -> None:
        task = self.schedules[options["name"]].trigger(by=person())
        facts = {"name": options["name"], "done": "run", "queue": task.queue.name}
        self.answer({**facts, "key": task.key}, f"Task '{task.key}' is submitted.")

    def do_backfill(self, options: CommandOptions) -> None:
        since, until = past("since", options["since"]), past("until", options["until"])
        if until <= since:
            raise CommandError("--until must be after --since.")
        schedule, dry_run = self.schedules[options["name"]], options["dry_run"]
        overlap = options["overlap"]
        ticks = schedule.backfill(since, until, overlap=overlap, dry_run=dry_run, by=person())
        if self.as_json:
            facts = {"name": schedule.name, "dry_run": dry_run}
            self.print_json({**facts, "ticks": [tick.isoformat() for tick in ticks]})
            return
        tasks = "task" if len(ticks) == 1 else "tasks"
        done = "would be" if dry_run else "is" if len(ticks) == 1 else "are"
        self.say(f"{len(ticks)} {tasks} {done} submitted.")
        for tick in ticks:
            self.say(f"  {shown(tick)}")

    def do_delete(self, options: CommandOptions) -> None:
        self.schedules[options["name"]].delete(by=person())
        facts = {"name": options["name"], "done": "deleted"}
        self.answer(facts, f"Schedule '{options['name']}' is deleted.")

    @no_translations
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


def data_from(text: str | None) -> JSON:
    try:
        return None if text is None else json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CommandError(f"The data is not JSON: {error}") from error


def remark(row: Schedule) -> str:
    return row.problem or (f"{row.state}: {row.note}" if row.note else row.state)
