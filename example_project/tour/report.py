"""Show what each customer got, and where to look next."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from django.conf import settings
from reports.standings import Standing, end_of_contest

from django_perfectqueue.models import Status, Task
from django_perfectqueue.queue import Queue

from .prepare import NAME, PASSWORD
from .terminal import say, table

DEFECT = "birch/shop-2025-05.csv"
ON_PURPOSE = "That line is bad on purpose. "
FAILURES_SHOWN = 5

HEAD = [
    "",
    "files",
    "charts",
    "failed",
    "mean wait",
    "processor time",
    "weight",
    "share due",
    "share got",
]

CLOSING = """
Charts     {charts}
Look       python3 {manage} runserver
           http://127.0.0.1:8000/         every customer's charts
           http://127.0.0.1:8000/admin/perfectqueue/overview/
           the overview, and from there tasks, batches, schedules and users;
           log in as {name} with the password {password}
Go on      upload a file on that page, give a customer another weight under "Users",
           or run this again; a worker that stays: python3 {manage} pq_worker"""


def show(customers: Sequence[Standing], *, closing_key: str) -> int:
    """Return the exit code: 0 when every task has ended."""
    until = end_of_contest(customers)
    say("\nWhat each customer got\n")
    say(table([HEAD, *rows(customers, until)]))
    if until:
        say(contest(customers, until))
    say(failures([task for one in customers for task in one.failed]))
    say(callback(closing_key))
    left = sum(one.unfinished for one in customers)
    if left:
        say(f"\nLeft       {left} tasks have yet to end: see why in the admin, then run this again")
    say(closing())
    return 1 if left else 0


def rows(customers: Sequence[Standing], until: datetime | None) -> list[list[str]]:
    weights = sum(one.weight for one in customers if one.ran)
    total = sum(one.seconds(until) for one in customers)
    return [
        [
            str(one.customer),
            str(one.files),
            str(one.charts),
            str(len(one.failed)),
            f"{one.mean_wait:.1f} s",
            f"{one.seconds():.1f} s",
            f"{one.weight:g}",
            f"{one.weight / weights:.0%}" if one.ran else "-",
            f"{one.seconds(until) / total:.0%}" if total else "-",
        ]
        for one in customers
    ]


def callback(key: str) -> str:
    """Say what the batch's callback has counted."""
    closing = Queue()[key].metadata()
    if closing.status != Status.FINISHED:
        return "\nBatch      its callback has yet to run"
    return (
        f"\nBatch      all files have ended; its callback counted {closing.result['charts']} charts"
    )


def file_of(task: Task) -> str:
    """Return the name of the file whose task it is, or the key of a chart's task."""
    return str(task.data.get("file", task.key))


def failures(tasks: Sequence[Task]) -> str:
    return "".join(
        f"\nFailed     {file_of(task)}, {task.dead_letter.message}"
        f"\n           {ON_PURPOSE if file_of(task) == DEFECT else ''}"
        f"See it: python3 {MANAGE} pq_task show {task.key}"
        for task in tasks[:FAILURES_SHOWN]
    )


def contest(customers: Sequence[Standing], until: datetime) -> str:
    began = min(run.started_at for one in customers for run in one.ran)
    seconds = (until - began).total_seconds()
    return (
        f"\n  The shares are of the processor time in the first {seconds:.1f} s, while each of them"
        " had tasks waiting.\n  After that the others take up what is free."
    )


def closing() -> str:
    return CLOSING.format(
        charts=near(Path(settings.MEDIA_ROOT) / "charts"),
        manage=MANAGE,
        name=NAME,
        password=PASSWORD,
    )


def near(path: Path) -> str:
    """Return the shorter way to say where a file is."""
    return min(str(path), os.path.relpath(path), key=len)


MANAGE = near(Path(__file__).resolve().parent.parent / "manage.py")
