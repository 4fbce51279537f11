from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Sequence

from django.core.management.base import CommandError, CommandParser

from django_perfectqueue.lib.durations import short_duration
from django_perfectqueue.models import Task

from ..base import CommandOptions, QueueCommand, at_least
from ..terminal.progress import Progress
from ..worker.burst import run_burst

Figures = dict[str, dict[str, float]]
PARTS = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}


class Command(QueueCommand):
    summary = (
        "Submits many tasks of one type to an empty queue, runs them with workers of its own, says"
        " how long that took, and deletes them. The handlers do what they always do."
    )
    queue_help = "Name of a queue that has no tasks (default: stress)."

    def add_options(self, parser: CommandParser) -> None:
        add = parser.add_argument
        add("type", metavar="TYPE", help="What handles them.")
        add("data", metavar="JSON", nargs="?", default="null", help="The data of each, as JSON.")
        add("--tasks", type=at_least(1), default=1000, metavar="N", help="How many (1000).")
        add("--users", type=at_least(1), default=10, metavar="N", help="Of how many users (10).")
        add("--processors", type=at_least(1), metavar="N", help="By default as in the settings.")
        add("--keep", action="store_true", help="Do not delete the tasks at the end.")

    def handle(self, *args: object, **options: object) -> None:
        super().handle(*args, **{**options, "queue": options["queue"] or "stress"})

    def act(self, options: CommandOptions) -> None:
        if self.queue.list().exists():
            raise CommandError(
                f"Queue '{self.queue.name}' has tasks; name one that has none with --queue."
            )
        try:
            submitted = self.submit(options)
            ran = self.run(options["processors"])
            self.report(submitted, ran)
        finally:
            if not options["keep"]:
                self.queue.clear()

    def submit(self, options: CommandOptions) -> float:
        """Submit the tasks; return how many seconds that took."""
        try:
            data = json.loads(options["data"])
        except ValueError as error:
            raise CommandError(f"The data are not JSON: {error}") from error
        count, users = options["tasks"], options["users"]
        progress = Progress(self.stderr, "%s tasks submitted", total=count)
        tasks = (
            {"key": str(number), "type": options["type"], "data": data, "user": number % users}
            for number in range(count)
        )
        began = time.monotonic()
        self.queue.submit_many(tasks, progress=lambda done: progress.show(done, done))
        progress.clear()
        return time.monotonic() - began

    def run(self, processors: int | None) -> float:
        """Run all that is due; return how many seconds that took."""
        began = time.monotonic()
        run_burst(self, verbosity=0, processors=processors)
        return time.monotonic() - began

    def report(self, submitted: float, ran: float) -> None:
        tasks = [*self.queue.list()]
        ended = Counter(str(task.status) for task in tasks)
        figures: Figures = {
            "submit": {"seconds": submitted, "per_second": len(tasks) / submitted},
            "run": {"seconds": ran, "per_second": len(tasks) / ran},
            "waited": parts([seconds for task in tasks if (seconds := waited(task)) is not None]),
            "took": parts([seconds for task in tasks if (seconds := took(task)) is not None]),
        }
        if self.as_json:
            self.print_json({"tasks": len(tasks), "ended": dict(ended), **figures})
            return
        statuses = ", ".join(f"{count} {status}" for status, count in sorted(ended.items()))
        self.say(f"{len(tasks)} tasks: {statuses}")
        for name, label in (("submit", "submitted in"), ("run", "run in")):
            rate = f"{figures[name]['per_second']:.0f} a second"
            self.say(f"  {label:<14}{short_duration(figures[name]['seconds'])}, {rate}")
        for name, label in (("waited", "waited"), ("took", "took")):
            texts = (f"{part} {short_duration(value)}" for part, value in figures[name].items())
            if figures[name]:
                self.say(f"  {label:<14}{', '.join(texts)}")


def waited(task: Task) -> float | None:
    return None if task.started_at is None else (task.started_at - task.created_at).total_seconds()


def took(task: Task) -> float | None:
    if task.started_at is None or task.ended_at is None:
        return None
    return (task.ended_at - task.started_at).total_seconds()


def parts(values: Sequence[float]) -> dict[str, float]:
    """Return percentiles by the nearest rank, and the largest; nothing for no values."""
    ranked = sorted(values)
    return {
        name: ranked[math.ceil(part * len(ranked)) - 1] for name, part in PARTS.items() if ranked
    }
