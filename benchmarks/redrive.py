"""
A million dead letters that are put back in line, while workers are killed and others drain beside
it: ``python -m benchmarks.redrive``.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from benchmarks.command import EPILOG, Record, RunCommand, count, run
from benchmarks.environment import Live
from benchmarks.peers.base import manage
from benchmarks.peers.perfectqueue import DISPATCH, Load

LEAST = 0.8
USERS = 1_000
PROCESSORS = 2
ROUNDS = 3
DEAD, BULK = "dead", "bulk"
FASTEST = 1e6


class Bulk(Load):
    """
    This package, with dead letters in a queue that no worker serves.

    A worker of its own runs the operation, so that those that drain have all their processors.
    """

    options = {"RETENTION": {"*": None}, "MAX_CRASHES": 50, "RETRY_WAIT": 0.05}

    def workers(self, processes: int) -> list[list[str]]:
        return [
            manage("pq_worker", DISPATCH, "--queue", queue, "--processors", each, "--verbosity", 0)
            for queue, each in (("default", processes), (BULK, 1))
        ]

    def add_letters(self, count: int) -> None:
        """Let one task fail, and copy its rows."""
        from django_perfectqueue.models import DeadLetter, Task
        from django_perfectqueue.queue import Queue

        Queue(DEAD).submit("letter-0", self.type, {"i": 0})
        task = Queue(DEAD).poll()
        assert task is not None
        task.fail()
        user = self.numbered("user", f"(series.n % {USERS})")
        texts = {"key": self.numbered("key"), "user": user}
        self.copy(Task._meta.db_table, count - 1, texts)
        letters = DeadLetter._meta.db_table
        names = self.columns(letters)
        taken = ", ".join(map(self.quoted, names))
        given = ", ".join(
            "t.id" if name == "task_id" else f"one.{self.quoted(name)}" for name in names
        )
        self.link.run(
            f"INSERT INTO {letters} ({taken}) SELECT {given} FROM {Task._meta.db_table} AS t"
            f" CROSS JOIN (SELECT * FROM {letters} LIMIT 1) AS one WHERE t.id <> one.task_id"
        )


class Run(Live):
    """The job has how many dead letters there are, kills, and tasks of a drain beside it."""

    load_kind = Bulk
    patience = 3_600.0

    def measured(self) -> dict[str, Any]:
        self.environment.prepare(PROCESSORS)
        self.load.add_letters(self.job.letters)
        self.environment.checkpoint()
        self.environment.analyze()
        rounds = [self.compared(number) for number in range(ROUNDS)]
        beside = median(beside / alone for alone, beside in rounds)
        return {"rounds": rounds, "beside": beside, **self.killed()}

    def compared(self, number: int) -> tuple[float, float]:
        """Return the rate of a drain without and with an operation beside it."""
        alone = self.drained(2 * number * self.job.tasks)
        operation = self.begin(rate=None)
        beside = self.drained((2 * number + 1) * self.job.tasks)
        operation.cancel_request()
        return alone, beside

    def begin(self, rate: float | None) -> Any:
        from django_perfectqueue.bulk import Operation, Selection, submit_bulk

        terms = {} if rate is None else {"rate": rate}
        operation = Operation(
            verb="retry",
            selection=Selection(queue=DEAD),
            by="benchmark",
            **terms,  # type: ignore[arg-type]
        )
        return submit_bulk(operation, queue=BULK, using="default")

    def drained(self, before: int) -> float:
        """Return how many of the tasks a second ran, from the first to the last."""
        tasks = self.job.tasks
        self.load.submit_many(range(before, before + tasks))
        with self.environment.workers(PROCESSORS):
            self.wait(lambda: self.environment.probe.count() > before, "The first task")
            began = time.monotonic()
            self.wait(lambda: self.environment.probe.count() >= before + tasks, "The last task")
            return tasks / (time.monotonic() - began)

    def killed(self) -> dict[str, Any]:
        """Put back what is left, and kill the workers with their processors again and again."""
        from django_perfectqueue.models import DeadLetter, Ticket

        letters = DeadLetter.objects.filter(task__queue=DEAD)
        left, put_back = letters.count(), Ticket.objects.filter(task__queue=DEAD).count()
        operation, began = self.begin(FASTEST), time.monotonic()
        for kill in range(1, self.job.kills + 1):
            some = kill * left // (self.job.kills + 1)
            with self.environment.workers(PROCESSORS):
                self.wait(lambda some=some: self.done(operation) >= some, "A part of it")  # type: ignore[misc]
        with self.environment.workers(PROCESSORS):
            self.wait(lambda: operation.metadata().status == "finished", "The end of it")
        seconds = time.monotonic() - began
        found = self.audited()
        whole = (
            operation.metadata().result == {"retried": left}
            and found == {"letters": 0, "live": left + put_back, "twice": 0}
            and operation.metadata().attempt > self.job.kills
        )
        attempts = operation.metadata().attempt
        return {"left": left, "seconds": seconds, "attempts": attempts, **found, "whole": whole}

    def done(self, operation: Any) -> int:
        time.sleep(0.1)
        return int(operation.metadata().data["done"].get("retried", 0))

    def audited(self) -> dict[str, int]:
        """
        Return what is left, what waits, and how many tasks someone put back more than once.

        The last is of the newest 100,000 changes, which are kept; a task of a chunk done twice
        would be refused, too, and stand in the result of the operation.
        """
        from django.db.models import Count

        from django_perfectqueue.models import Change, DeadLetter, Ticket

        rows = Change.objects.filter(kind=Change.Kind.TASK, queue=DEAD).order_by()
        names = rows.aggregate(all=Count("pk"), distinct=Count("name", distinct=True))
        return {
            "letters": DeadLetter.objects.filter(task__queue=DEAD).count(),
            "live": Ticket.objects.filter(task__queue=DEAD).count(),
            "twice": names["all"] - names["distinct"],
        }


class Redrive(RunCommand):
    name = "redrive"
    about = "Retry many dead letters in bulk: is each put back once, and who else waits?"
    epilog = (
        EPILOG
        + """
After each kill of the workers the operation goes on when its lease has run out, within a minute.
It ends with 1 where a task was put back twice or never, or where a drain beside the operation was
slower than 0.8 of the same drain before it, in the median of three rounds.
"""
    )
    part = "benchmarks.redrive:Run.run"
    databases = ("postgresql",)

    def add_options(self, option: Callable[..., Any]) -> None:
        option("--letters", type=count, default=1_000_000, help="dead letters; %(default)s")
        option("--kills", type=count, default=3, help="how often to kill the workers; %(default)s")
        option("--tasks", type=count, default=100_000, help="to drain beside it; %(default)s")

    def patience(self, terms: Record) -> float:
        return 7_200.0

    def summary(self, record: Record) -> str:
        whole = "each once" if record["whole"] else "NOT each once"
        return f"{record['left']:,} put back, {whole}; {record['beside']:.2f} beside it"

    def wrong(self, record: Record) -> Sequence[str]:
        found = {"a task put back twice or never": not record["whole"]}
        found["a slow drain beside it"] = record["beside"] < LEAST
        return [name for name, is_so in found.items() if is_so]

    def table(self, run: Record) -> str:
        return json.dumps(run)


if __name__ == "__main__":
    run(Redrive())
