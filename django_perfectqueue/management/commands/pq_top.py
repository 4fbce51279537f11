from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict

from django.core.management.base import CommandParser
from django.db import Error

from django_perfectqueue.health.queues import Overview, QueueFigures, overview
from django_perfectqueue.lib.durations import short_duration
from django_perfectqueue.lib.printable import printable
from django_perfectqueue.models import Worker
from django_perfectqueue.store.records.counts import COUNTED

from ..base import CommandOptions, QueueCommand, at_least, diagnosis
from ..terminal.table import Column
from ..terminal.text import or_more

OPEN, CLOSE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
"""Take another screen and hide the cursor; and back."""
HOME, REST = "\x1b[H", "\x1b[J"


class Command(QueueCommand):
    summary = "Shows all queues and workers as they are, and again every few seconds until Ctrl-C."
    queue_help = ""

    def add_options(self, parser: CommandParser) -> None:
        parser.add_argument("--once", action="store_true", help="Show them once, and end.")
        parser.add_argument(
            "--interval",
            type=at_least(1),
            default=2,
            metavar="SECONDS",
            help="Seconds between two looks (2).",
        )

    def act(self, options: CommandOptions) -> None:
        if options["once"]:
            self.show(self.look())
            return
        try:
            with self.screen():
                while True:
                    self.show(self.look_or_say_why())
                    time.sleep(options["interval"])
        except KeyboardInterrupt:
            return

    @property
    def is_live(self) -> bool:
        return self.stdout.isatty() and not self.as_json

    @contextmanager
    def screen(self) -> Iterator[None]:
        """On a terminal take a screen of its own, and leave the other as it was."""
        if not self.is_live:
            yield
            return
        self.stdout.write(OPEN, ending="")
        try:
            yield
        finally:
            self.stdout.write(CLOSE, ending="")
            self.stdout.flush()

    def look_or_say_why(self) -> list[str]:
        """Return the lines; where the database is away, why, since the next look may find it."""
        try:
            return self.look()
        except Error as error:
            return [self.style.ERROR(printable(diagnosis(self.queue.using, error)))]

    def look(self) -> list[str]:
        found = overview(using=self.queue.using)
        if self.as_json:
            for queue in found.queues:
                self.print_json(facts(queue, found))
            return []
        return [
            *self.heading(found),
            "",
            *self.table(queue_columns(), found.queues),
            "",
            *self.table(worker_columns(), found.workers),
        ]

    def heading(self, found: Overview) -> Iterator[str]:
        at = found.now.astimezone().strftime("%H:%M:%S")
        running = sum(queue.running for queue in found.queues)
        rate = sum(queue.finished_a_minute for queue in found.queues)
        yield f"{at}  {running:,} running, {rate:,.1f} finished a minute"
        if found.is_well:
            yield self.style.SUCCESS("All queues are served, and none is late.")
        else:
            yield self.style.ERROR(trouble(found))

    def show(self, lines: list[str]) -> None:
        if not self.is_live:
            if lines:
                self.stdout.write("\n".join([*lines, ""]))
        else:
            # Each line wipes its rest, so that nothing flickers; more than fit would scroll.
            fitting = lines[: shutil.get_terminal_size().lines - 1]
            screen = "".join(f"{line}\x1b[K\n" for line in fitting)
            self.stdout.write(f"{HOME}{screen}{REST}", ending="")
        self.stdout.flush()


def facts(queue: QueueFigures, found: Overview) -> dict[str, object]:
    """Return what is known of a queue, for programs."""
    known = {"drained_in": queue.drained_in, "is_well": queue.is_well}
    return {"at": found.now.isoformat(), **asdict(queue), **known}


def trouble(found: Overview) -> str:
    """Return which queues need attention, and how many schedules."""
    late = found.late_schedules
    parts = [f"Queues that need attention: {', '.join(found.unwell)}."] if found.unwell else []
    parts += [f"Schedules that are late: {late:,}."] if late else []
    return printable(" ".join(parts))


def marks(queue: QueueFigures) -> str:
    """Return what is wrong with a queue, or that it is paused."""
    found = [f"no handler for {type_}" for type_ in queue.unknown_types]
    found += ["no worker"] if queue.is_unserved else []
    found += ["late"] if queue.is_late else []
    found += ["paused"] if queue.paused else []
    return ", ".join(found)


def queue_columns() -> list[Column[QueueFigures]]:
    def number(title: str, name: str) -> Column[QueueFigures]:
        return Column(title, lambda one: f"{getattr(one, name):,}", right=True)

    def moving(title: str, *, spare: bool = False) -> Column[QueueFigures]:
        def cell(one: QueueFigures) -> str:
            return or_more(getattr(one, title), more=one.is_bounded)

        return Column(title, cell, right=True, spare=spare)

    def span(title: str, name: str) -> Column[QueueFigures]:
        def cell(one: QueueFigures) -> str:
            seconds = getattr(one, name)
            return short_duration(seconds) if seconds else "-"

        return Column(title, cell, right=True)

    return [
        Column("queue", lambda one: one.name, elastic=True),
        Column("waiting", waiting, right=True),
        span("oldest", "oldest"),
        moving("running"),
        moving("retrying", spare=True),
        moving("scheduled", spare=True),
        moving("blocked"),
        number("failed/h", "failed_last_hour"),
        Column("finished/min", lambda one: f"{one.finished_a_minute:,.1f}", right=True),
        Column("growth/min", growth, right=True),
        span("drained in", "drained_in"),
        number("workers", "workers"),
        Column("", marks, elastic=True),
    ]


def growth(queue: QueueFigures) -> str:
    found = queue.growth_a_minute
    return "-" if found is None else f"{found:+,.0f}"


def waiting(queue: QueueFigures) -> str:
    return or_more(min(queue.waiting, COUNTED), more=queue.waiting > COUNTED)


def worker_columns() -> list[Column[Worker]]:
    def busy(worker: Worker) -> str:
        count = sum(bool(state["tasks"]) for state in worker.states)
        return f"{count}/{worker.processors}"

    return [
        Column("worker", str, elastic=True),
        Column("generation", lambda one: str(one.generation), right=True, spare=True),
        Column("version", lambda one: one.version, spare=True),
        Column("busy", busy, right=True),
        Column("queues", lambda one: ", ".join(one.queues), elastic=True),
    ]
