"""Run a worker until nothing is due, and show how far it is."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from reports.standings import Standing

from django_perfectqueue.models import Status
from django_perfectqueue.queue import Queue

from .errors import TourError
from .prepare import NAME, Batch
from .terminal import Panel, bar, say

MANAGE = Path(__file__).resolve().parent.parent / "manage.py"
PATIENCE = 10.0
APPROVED_AFTER = 1.0
APPROVAL = {"by": NAME, "answer": "approved"}
LINES_SHOWN = 15


def run(batch: Batch, *, processors: int) -> None:
    """
    Return when the worker has left, and nothing waits for an approval.

    Raise TourError when it has failed.
    """
    while True:
        with tempfile.TemporaryFile("w+") as log, worker(processors, log) as process:
            watch(process, batch)
            if process.returncode:
                raise TourError(f"pq_worker left with code {process.returncode}.\n{ending(log)}")
        if not approve(batch):
            return


def approve(batch: Batch) -> bool:
    """Send the approvals that tasks wait for, after a second; return whether there were any."""
    keys = [upload.summarise_key for upload in batch.uploads if upload.is_large]
    waiting = list(Queue().list().in_status(Status.BLOCKED).filter(key__in=keys))
    for task in waiting:
        say(f"\nWaiting    {task.data['file']} is large, and waits for an approval in the admin.")
        say("           The demo approves of it after a second.")
        time.sleep(APPROVED_AFTER)
        Queue()[task.key].signal("approval", APPROVAL, on_conflict="ignore")
    return bool(waiting)


@contextlib.contextmanager
def worker(processors: int, log: IO[str]) -> Iterator[subprocess.Popen[str]]:
    """Start a worker that gets no Ctrl-C of ours, and stop it when this block is left."""
    command = ["pq_worker", "--burst", "--processors", str(processors)]
    say(f"\nRunning    manage.py {' '.join(command)}\n")
    process = subprocess.Popen(
        [sys.executable, str(MANAGE), *command],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        stop(process)


def stop(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def watch(process: subprocess.Popen[str], batch: Batch) -> None:
    panel, started = Panel(), time.monotonic()
    pause = 0.25 if panel.live else 1.0
    while running(process, pause):
        panel.show(progress(batch.standings(), time.monotonic() - started, live=panel.live))
    panel.show(progress(batch.standings(), time.monotonic() - started, live=panel.live))


def running(process: subprocess.Popen[str], pause: float) -> bool:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(pause)
    return process.returncode is None


def progress(customers: Sequence[Standing], seconds: float, *, live: bool) -> list[str]:
    if live:
        return [in_bars(one) for one in customers]
    shown = "   ".join(f"{one.customer} {one.charts}/{one.files}" for one in customers)
    return [f"{seconds:5.1f} s   charts: {shown}"]


def in_bars(one: Standing) -> str:
    failed = f"   {len(one.failed)} failed" if one.failed else ""
    name = str(one.customer).ljust(20)
    return f"  {name}{bar(one.charts, one.files)} {one.charts:3}/{one.files} charts{failed}"


def ending(log: IO[str]) -> str:
    log.seek(0)
    return "".join(log.readlines()[-LINES_SHOWN:])
