"""The hosts of a run: workers, and what a service manager does for them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks import processes
from benchmarks.cleanup import end_all
from benchmarks.database import Target
from tests.databases.lifetime import children, processes_with

from ..terms import FOLDER, HOST, Files, Terms
from .clock import Clock

MARK = "CHAOS_MARK"
CLIENT = "benchmarks.chaos.process"
RESTART_AFTER = 0.2


class Host:
    """
    A worker with its service manager, which starts another one when it has ended.

    ``wanted`` says whether one is to run. What an earlier worker has left behind goes on
    by itself; ``orphans`` counts such workers' launchers no more.
    """

    def __init__(self, name: str, mark: str, target: Target, files: Files, terms: Terms) -> None:
        self.name = name
        self.mark = f"{MARK}={mark}-{name}"
        self.target = target
        self.files = files
        self.home = files.home(name)
        self.home.mkdir()
        (self.home / "sockets").mkdir()
        self.log = self.home / "worker.log"
        self.seats = self.home / "processors"
        self.seats.touch()
        self.clock = Clock(files.clock(name))
        self.options = {
            "ALIVE_TIME": terms.alive_time,
            "IDLE_TRANSACTION_LIMIT": terms.alive_time / 2,
            "POLL_INTERVAL": terms.poll_interval,
            "TASK_HEARTBEAT_INTERVAL": 0.5,
            "CHILD_HEARTBEAT_INTERVAL": 0.5,
            "CHILD_KILL_INTERVAL": 0.5,
            "CHILD_FORK_FREQUENCY_LIMIT": 0.2,
            "DETACH_WAIT": 1.0,
            "PROCESSORS": terms.processors,
            "NOTIFY": str(self.home / "sockets"),
        }
        self.configure()
        self.command = ["pq_worker", *(f"--queue={queue}" for queue in terms.queues)]
        self.wanted = False
        self.launcher: subprocess.Popen[bytes] | None = None
        self.ended_at = 0.0

    def configure(self, **changes: Any) -> None:
        """Write its settings, for the next worker or generation to read."""
        self.options.update(changes)
        file = self.home / "options.new"
        file.write_text(json.dumps(self.options))
        file.replace(self.files.options(self.name))

    @property
    def environment(self) -> dict[str, str]:
        name, _, value = self.mark.partition("=")
        return {
            **os.environ,
            **self.target.environment(),
            name: value,
            HOST: self.name,
            FOLDER: str(self.files.folder),
            "DJANGO_SETTINGS_MODULE": "benchmarks.chaos.settings",
        }

    def start(self) -> None:
        self.wanted = True
        command = [sys.executable, "-m", "django", *self.command, "--verbosity", "0"]
        self.launcher = processes.start(command, self.environment, self.log)

    def keep(self) -> None:
        """Start the worker anew where it has ended and should not have."""
        if self.launcher is None or self.launcher.poll() is None:
            return
        if not self.ended_at:
            self.ended_at = time.monotonic()
        if self.wanted and time.monotonic() >= self.ended_at + RESTART_AFTER:
            self.ended_at = 0.0
            self.start()

    def has_ended(self) -> bool:
        return self.launcher is None or self.launcher.poll() is not None

    def pids(self) -> list[int]:
        return processes_with(self.mark)

    def launchers(self) -> list[int]:
        return [self.launcher.pid] if self.launcher and not self.has_ended() else []

    def supervisors(self) -> list[int]:
        """Return the supervisors of the worker that the service manager knows."""
        return [pid for launcher in self.launchers() for pid in children(launcher)]

    def processors(self) -> list[int]:
        """Return all processors that live, also those of workers that are leaving."""
        reported = {int(line) for line in self.seats.read_text().split()}
        return sorted(reported.intersection(self.pids()))

    def current_processors(self) -> list[int]:
        """Return those of the newest worker."""
        ours = {pid for supervisor in self.supervisors() for pid in children(supervisor)}
        return [pid for pid in self.processors() if pid in ours]

    def helpers(self) -> list[int]:
        """Return what supervisors have started besides processors."""
        below = [pid for supervisor in self.supervisors() for pid in children(supervisor)]
        reported = set(self.processors())
        return [pid for pid in below if pid not in reported]

    def send(self, signum: int) -> None:
        """Signal the worker as a service manager does: by its launcher."""
        if self.launcher is not None and not self.has_ended():
            self.launcher.send_signal(signum)


class Fleet:
    """
    The hosts, and the clients, each of which is replaced when it dies while they are ``wanted``.
    """

    def __init__(self, hosts: Iterable[Host], terms: Terms, log: Path) -> None:
        self.hosts = {host.name: host for host in hosts}
        self.terms = terms
        self.log = log
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self.wanted = False

    def __iter__(self) -> Any:
        return iter(self.hosts.values())

    def clients(self) -> list[int]:
        """Return the pids of the clients that live."""
        return [one.pid for one in self.processes.values() if one.poll() is None]

    def keep(self) -> None:
        for host in self:
            host.keep()
        for number in range(self.terms.clients if self.wanted else 0):
            process = self.processes.get(number)
            if process is None or process.poll() is not None:
                terms = json.dumps(self.terms.as_json())
                command = [sys.executable, "-m", CLIENT, f"client-{number}", terms]
                self.processes[number] = processes.start(command, os.environ, self.log)

    def dismiss(self) -> None:
        """Ask the clients to stop."""
        self.wanted = False
        processes.signal_all(self.clients(), signal.SIGTERM)

    def stop(self) -> None:
        """Stop all workers, for good."""
        for host in self:
            host.wanted = False
            host.send(signal.SIGTERM)

    def have_ended(self) -> bool:
        return all(host.has_ended() for host in self) and not any(host.pids() for host in self)

    def end(self) -> None:
        """Kill whatever is left."""
        self.wanted = False
        processes.signal_all(self.clients(), signal.SIGKILL)
        for process in self.processes.values():
            process.wait()
        for host in self:
            host.wanted = False
            end_all(host.mark)
            if host.launcher is not None:
                host.launcher.wait()
