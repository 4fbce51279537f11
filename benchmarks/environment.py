"""What every measure needs: the peer, its workers, and the probe."""

from __future__ import annotations

import abc
import contextlib
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from benchmarks import probe, processes
from benchmarks.cleanup import WORKERS, end_all
from benchmarks.database import Target, connect, this_target
from benchmarks.peers.base import Peer
from benchmarks.servers import Site

STEP = 0.005


class StuckError(Exception):
    """What was waited for did not come; the message holds the end of the worker's log."""


def holds(condition: Callable[[], bool], within: float, step: float) -> bool:
    """Wait until it holds; return whether it does in so many seconds."""
    deadline = time.monotonic() + within
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(step)
    return True


class Workers:
    def __init__(self, processes: list[subprocess.Popen[bytes]]) -> None:
        self.pids = [process.pid for process in processes]
        self.processes = processes

    def processor_time(self) -> float:
        return processes.processor_time(self.pids)

    def have_ended(self) -> bool:
        return all(process.poll() is not None for process in self.processes)


class Environment:
    """``tasks`` is what a peer of size 1 drains with one process."""

    def __init__(self, peer: Peer, target: Target, folder: Path, *, tasks: int = 0) -> None:
        self.peer = peer
        self.target = target
        self.folder = folder
        self.tasks = tasks
        self.probe = probe.Reader(Path(os.environ[probe.VARIABLE]))

    def prepare(self, processes: int) -> None:
        """Make the peer's tables and settings, for a worker of so many processes."""
        self.peer.enter(processes)
        self.peer.prepare()

    def checkpoint(self) -> None:
        """Have PostgreSQL write now what it would otherwise write during the measure."""
        if self.target.kind == "postgresql":
            with contextlib.closing(connect(self.target)) as link:
                link.run("CHECKPOINT")

    def analyze(self) -> None:
        """Have the server know now how many rows there are, as it would in a while."""
        with contextlib.closing(connect(self.target)) as link:
            if self.target.kind == "postgresql":
                link.run("ANALYZE")
            elif self.target.kind == "mariadb":
                for (table,) in link.run("SHOW TABLES"):
                    link.run(f"ANALYZE TABLE `{table}`")

    @contextlib.contextmanager
    def workers(self, count: int) -> Iterator[Workers]:
        """Start the peer's workers, and kill them on leaving."""
        mark = uuid.uuid4().hex
        environment = {**os.environ, WORKERS: mark}
        started: list[subprocess.Popen[bytes]] = []
        try:
            for command in self.peer.workers(count):
                started.append(processes.start(command, environment, self.log))
            yield Workers(started)
        finally:
            end_all(f"{WORKERS}={mark}")
            for process in started:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    @property
    def log(self) -> Path:
        return self.folder / "worker.log"

    def wait_for(self, condition: Callable[[], bool], within: float, what: str) -> None:
        """Return when it holds; raise StuckError when it does not in so many seconds."""
        if not holds(condition, within, STEP):
            raise StuckError(f"{what} did not come within {within:g} s.\n{self.end_of_log()}")

    def wait_for_first(self, workers: Workers) -> None:
        def begun() -> bool:
            if self.probe.count() == 0:
                self.require(workers)
            return self.probe.count() > 0

        self.wait_for(begun, 60, "The first task")

    def require(self, workers: Workers) -> None:
        """Raise StuckError where the workers have ended."""
        if workers.have_ended():
            raise StuckError(f"The workers have ended by themselves.\n{self.end_of_log()}")

    def end_of_log(self) -> str:
        if not self.log.exists():
            return ""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])

    def server_us(self, since: float, tasks: int) -> dict[str, float]:
        """Return what the server used per task since then, where there is a server."""
        if not self.target.server:
            return {}
        return {"server_us": (self.server_time() - since) / tasks * 1e6}

    def server_time(self) -> float:
        return processes.processor_time([self.target.server]) if self.target.server else 0.0


class Live(abc.ABC):
    """
    A run on a real worker and a real database, in a process of its own.

    ``load`` is made of ``load_kind``, and ``job`` has the terms as its attributes.
    """

    load_kind: Any
    patience = 120.0

    def __init__(self, job: dict[str, Any], folder: Path) -> None:
        target = this_target()
        self.job = SimpleNamespace(**job)
        self.load = self.load_kind(target, self.job, folder)
        self.environment = Environment(self.load, target, folder)

    @abc.abstractmethod
    def measured(self) -> dict[str, Any]:
        """Run it, and return its figures."""

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        self.environment.wait_for(condition, self.patience, what)

    def end(self, workers: Workers) -> None:
        workers.processes[0].terminate()
        self.wait(workers.have_ended, "The end of the worker")

    @classmethod
    def run(cls, job: dict[str, Any], folder: Path) -> dict[str, Any]:
        """Run it on a server of its own."""
        with Site(job["database"]) as site, site.fresh() as target:
            os.environ.update({**site.environment(), **target.environment()})
            return {**cls(job, folder).measured(), "version": site.version()}
