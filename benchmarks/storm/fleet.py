"""The workers of a storm, and its clients, each of which is replaced when it dies."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from benchmarks import processes
from benchmarks.chaos.fleet import Fleet
from benchmarks.chaos.fleet import Host as ChaosHost
from benchmarks.cleanup import end_all

from .scenario import BULK, SHARED

MARK = "STORM_CLIENT"


class Host(ChaosHost):
    settings = "benchmarks.storm.settings"
    dispatch = "benchmarks.storm.handlers.StormDispatch"
    command = ("pq_worker", dispatch, "--queue", SHARED, "--queue", BULK)


class Crowd(Fleet):
    """
    ``environment`` is that of each client, and ``command`` what starts it, but for its
    number. No more are started once they are to stop.
    """

    def __init__(
        self,
        hosts: Iterable[ChaosHost],
        *,
        clients: int,
        command: list[str],
        environment: Mapping[str, str],
        log: Path,
    ) -> None:
        super().__init__(hosts)
        self.log = log
        self.command = command
        self.environment = environment
        self.numbers = range(clients)
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self.codes: list[int] = []
        self.wanted = False

    def clients(self) -> list[int]:
        """Return the pids of the clients that live."""
        return [one.pid for one in self.processes.values() if one.poll() is None]

    def keep(self) -> None:
        super().keep()
        for number in self.numbers if self.wanted else ():
            process = self.processes.get(number)
            if process is not None and process.poll() is None:
                continue
            if process is not None:
                self.codes.append(process.returncode)
            self.processes[number] = self.start(number)

    def start(self, number: int) -> subprocess.Popen[bytes]:
        module, *arguments = self.command
        command = [sys.executable, "-m", module, f"client-{number}", *arguments]
        return processes.start(command, self.environment, self.log)

    def dismiss(self) -> None:
        """Ask the clients to stop."""
        self.wanted = False
        for pid in self.clients():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)

    def end(self) -> None:
        self.wanted = False
        super().end()
        end_all(f"{MARK}={self.environment[MARK]}")
        for process in self.processes.values():
            process.wait()
