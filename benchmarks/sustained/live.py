"""One run on one database, in a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from benchmarks import probe, processes
from benchmarks.database import CONNECTIONS, Link, Target, connect
from benchmarks.environment import Live
from benchmarks.measures.latency import LONGEST, SHORTEST
from benchmarks.peers.perfectqueue import Load
from benchmarks.report import percentile

from .report import is_pinned

PORTION = 500
BACKLOG = 5_000
BUSY = 0.8
"""The part of each interval in which there is work; in the rest tasks come one by one."""
STEP = 0.005
LOOK_EVERY = 0.25
LONE = 1_000_000_000
USERS = 50
NAP = 0.02
LATER = timedelta(seconds=5)
KINDS = {"nothing": 990, "nap": 2, "fail": 3, "note": 2, "later": 2, "cancel": 1}
NOTED = ("nothing", "nap", "note")
"""Those that the probe hears of, once each."""

SIZES = {
    "postgresql": "SELECT sum(pg_table_size(relid)), sum(pg_indexes_size(relid))"
    " FROM pg_stat_user_tables",
    "mariadb": "SELECT sum(data_length), sum(index_length) FROM information_schema.tables"
    " WHERE table_schema = database()",
}
DEAD = {
    "postgresql": "SELECT sum(n_dead_tup) FROM pg_stat_user_tables",
    "mariadb": "SELECT count FROM information_schema.innodb_metrics"
    " WHERE name = 'trx_rseg_history_len'",
}
OPEN = {
    "postgresql": ("BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT txid_current()"),
    "mariadb": (
        "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
        "START TRANSACTION WITH CONSISTENT SNAPSHOT",
    ),
    "sqlite": ("BEGIN", "SELECT count(*) FROM sqlite_master"),
}
# Statements that only a janitor runs, while it purges.
JANITORS = """
SELECT pid FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND (
    query LIKE 'DELETE FROM "perfectqueue_task"%'
    OR query LIKE '%"perfectqueue_batchmember" AS "member"%'
    OR query LIKE '%"ended_at" <= %ORDER BY "id"%'
)
"""


class Sustained(Load):
    """A retention that lets the tables become steady soon."""

    dispatch = "benchmarks.workers.perfectqueue.SustainedDispatch"

    def __init__(self, target: Target, job: Any, folder: Path) -> None:
        super().__init__(target, job, folder)
        keep = job.retention
        self.options = {"RETENTION": {"*": keep, "failed": keep}, "USAGE_TIME": keep}
        self.constants = {"PURGE_INTERVAL": keep / 6}


class Run(Live):
    """``samples`` of the job is a file, so that a run that is cut short leaves what it saw."""

    load_kind = Sustained

    def __init__(self, job: dict[str, Any], folder: Path) -> None:
        super().__init__(job, folder)
        self.probe = self.environment.probe
        self.coming = portions(PORTION, self.job.seed)
        self.chance = random.Random(self.job.seed)
        self.submitted = self.noted = self.lone = 0
        self.janitors: set[int] = set()

    def measured(self) -> dict[str, Any]:
        """Work and rest so many times; return a sample of each, and what became of the tasks."""
        job, environment = self.job, self.environment
        environment.prepare(job.processors)
        samples: list[dict[str, float]] = []
        with (
            contextlib.closing(connect(environment.target)) as self.link,
            environment.workers(job.processors) as self.workers,
            contextlib.ExitStack() as pin,
        ):
            self.send_lone()
            began = time.monotonic()
            for number in range(job.intervals):
                if not is_pinned(number, job.intervals):
                    pin.close()
                elif not is_pinned(number - 1, job.intervals):
                    pin.enter_context(snapshot(environment.target))
                samples.append({"at": time.monotonic() - began, **self.interval()})
                with open(job.samples, "a") as file:
                    print(json.dumps(samples[-1]), file=file)
            self.wait(lambda: not self.load.pending(), "The end of all tasks")
        return {"samples": samples, "submitted": self.submitted}

    def interval(self) -> dict[str, float]:
        """Work for most of an interval, then submit single tasks until its end."""
        began = look = time.monotonic()
        before = self.probe.count()
        while (now := time.monotonic()) < began + self.job.seconds * BUSY:
            self.feed()
            if now >= look:
                look = now + LOOK_EVERY
                self.look_for_janitors()
        found = {
            "rate": (self.probe.count() - before) / (now - began),
            **self.resources(),
        }
        self.wait(lambda: self.probe.count() >= self.noted, "The last of the tasks")
        waits = [self.send_lone()]
        while time.monotonic() < began + self.job.seconds:
            time.sleep(self.chance.uniform(SHORTEST, LONGEST))
            waits.append(self.send_lone())
        # Every task that is noted has begun, so no record is lost.
        os.truncate(self.probe.path, 0)
        self.noted = 0
        return {**found, "wait": percentile(waits, 0.5), "waits": float(len(waits))}

    def feed(self) -> None:
        """Submit the next tasks, unless so many wait that no processor will lack one."""
        self.environment.require(self.workers)
        if self.noted - self.probe.count() > BACKLOG:
            time.sleep(STEP)
            return
        portion = next(self.coming)
        self.load.queue.submit_many(portion.tasks)
        for key in portion.cancelled:
            self.load.queue[key].cancel_request()
        self.submitted += len(portion.tasks)
        self.noted += portion.noted

    def send_lone(self) -> float:
        """Submit a task while nothing else waits; return the milliseconds until it began."""
        self.lone += 1
        index, before = LONE + self.lone, self.probe.count()
        sent = time.monotonic_ns()
        self.load.queue.submit(f"lone-{index}", "nothing", {"i": index}, user="lone")
        self.noted += 1

        def begun() -> list[int]:
            self.environment.require(self.workers)
            with self.probe.path.open("rb") as file:
                file.seek(before * probe.RECORD.size)
                data = file.read()
            starts = map(probe.Start._make, probe.RECORD.iter_unpack(data))
            return [start.at for start in starts if start.task == index]

        self.wait(lambda: bool(begun()), "A lone task")
        [at] = begun()
        return (at - sent) / 1e6

    def look_for_janitors(self) -> None:
        """Note the server's processes of connections that purge; only PostgreSQL has such."""
        if self.link.kind == "postgresql":
            self.janitors.update(pid for (pid,) in self.link.run(JANITORS))

    def resources(self) -> dict[str, float]:
        """Return what is used, and how many rows there are, by name."""
        link, pids = self.link, self.workers.pids
        family = processes.family(pids)
        data, indexes, dead = sizes(self.environment.target, link)
        found = {
            "processes": float(len(family)),
            "memory_mib": processes.memory(pids),
            "files": float(sum(processes.entries(pid, "fd") for pid in family)),
            "threads": float(sum(processes.entries(pid, "task") for pid in family)),
            "data_mib": data / 2**20,
            "indexes_mib": indexes / 2**20,
            "dead": dead,
            "rows_task": float(link.value("SELECT count(*) FROM perfectqueue_task")),
        }
        if link.kind in CONNECTIONS:
            found["connections"] = float(len(link.run(CONNECTIONS[link.kind])))
            found["server"] = self.environment.server_time()
        if self.janitors:
            found["purge"] = processes.processor_time(self.janitors)
        return found


@contextlib.contextmanager
def snapshot(target: Target) -> Any:
    link = connect(target)
    for statement in OPEN[target.kind]:
        link.run(statement)
    try:
        yield
    finally:
        link.close()


def sizes(target: Target, link: Link) -> tuple[float, float, float]:
    """
    Return the bytes of tables and of indexes, and what the database keeps of changed rows:
    dead rows, InnoDB's undo logs, or the MiB of SQLite's WAL, in whose file both are one.
    """
    if target.kind in SIZES:
        [(data, indexes)] = link.run(SIZES[target.kind])
        return float(data), float(indexes), float(link.value(DEAD[target.kind]))
    file, log = Path(target.name), Path(f"{target.name}-wal")
    return float(file.stat().st_size), 0.0, log.stat().st_size / 2**20


# What is submitted: mostly tasks that do nothing, and a few of every other kind


@dataclass(frozen=True)
class Portion:
    """What to submit now, which of it to cancel at once, and of how many the probe will hear."""

    tasks: list[dict[str, Any]]
    cancelled: list[str]
    noted: int


def portions(size: int, seed: int) -> Iterator[Portion]:
    """Yield for ever so many tasks."""
    chance = random.Random(seed)
    number = 0
    while True:
        kinds = chance.choices(list(KINDS), list(KINDS.values()), k=size)
        named = [(kind, index) for index, kind in enumerate(kinds, start=number)]
        number += size
        yield Portion(
            [task_of(kind, index, f"user-{chance.randrange(USERS)}") for kind, index in named],
            [f"{kind}-{index}" for kind, index in named if kind == "cancel"],
            sum(kind in NOTED for kind in kinds),
        )


def task_of(kind: str, index: int, user: str) -> dict[str, Any]:
    task = {"key": f"{kind}-{index}", "type": kind, "data": {"i": index}, "user": user}
    if kind == "nap":
        task["data"] = {"i": index, "seconds": NAP}
    if kind in ("later", "cancel"):
        task |= {"type": "later", "run_at": LATER}
    return task
