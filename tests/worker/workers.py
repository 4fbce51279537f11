"""Workers as they run in production: processes of their own, and real signals."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

from django.db import connection
from django.test import TransactionTestCase

from django_perfectqueue.queue import Queue

from ..databases import die_with_parent, environment_for
from ..databases.lifetime import children, is_alive, processes_with
from ..waiting import LONG, wait_until
from .templates import CAN_FORK, fork_worker

ROOT = Path(__file__).resolve().parent.parent.parent
MARK = "PERFECTQUEUE_TEST_WORKER"

QUICK = {
    "POLL_INTERVAL": 0.05,
    "TASK_HEARTBEAT_INTERVAL": 0.1,
    "CHILD_HEARTBEAT_INTERVAL": 0.1,
    "CHILD_KILL_INTERVAL": 0.2,
    "CHILD_FORK_FREQUENCY_LIMIT": 0.05,
    # The clock of a machine that stood still goes on later; no lease ends by that.
    "ALIVE_TIME": 1e6,
}


class Worker:
    """
    One command that runs tasks, with settings that a test would not like to wait for.

    It is forked from a process that has imported everything, unless it is to start ``afresh``,
    has an environment of its own, which Python may read at its start, or runs ``within`` a program.
    """

    def __init__(
        self,
        folder,
        *arguments,
        database=connection,
        stdin=subprocess.DEVNULL,
        environment=None,
        output=None,
        command="pq_worker",
        within=(),
        afresh=False,
        **settings,
    ):
        self.name = uuid.uuid4().hex
        self.settings = folder / f"{self.name}.json"
        self.printed = folder / f"{self.name}.out"
        self.complained = folder / f"{self.name}.err"
        self.configure(**settings)
        self.environment = {
            **environment_for(database),
            "DJANGO_SETTINGS_MODULE": "tests.worker.settings",
            "PERFECTQUEUE_TEST_SETTINGS": str(self.settings),
            MARK: self.name,
            **(environment or {}),
        }
        with open(self.printed, "w") as out, open(self.complained, "w") as err:
            files = [out, err] if output is None else [output, output]
            if afresh or within or environment or not CAN_FORK:
                self.process = self.start([*within], [command, *arguments], stdin, *files)
            else:
                self.process = self.fork([command, *arguments], stdin, *files)

    def start(self, within, arguments, stdin, out, err):
        """Start it as a service manager does."""
        return subprocess.Popen(
            [*within, sys.executable, "-m", "django", *arguments],
            cwd=ROOT,
            env=self.environment,
            stdin=stdin,
            stdout=out,
            stderr=err,
            preexec_fn=die_with_parent(),
        )

    def fork(self, arguments, stdin, *files):
        """Have a process that has imported everything fork it."""
        with open(os.devnull) as nothing:
            given = [nothing if stdin == subprocess.DEVNULL else stdin, *files]
            numbers = [one if isinstance(one, int) else one.fileno() for one in given]
            return fork_worker(arguments, self.environment, numbers)

    def configure(self, **settings):
        """Write its settings, which it reads when it starts and when it restarts."""
        self.settings.write_text(json.dumps({**QUICK, **settings}))

    @property
    def supervisor(self):
        [pid] = children(self.process.pid)
        return pid

    @property
    def output(self):
        return self.printed.read_text()

    @property
    def errors(self):
        return self.complained.read_text()

    def processors(self):
        """Return the ids of all processors that were started so far."""
        return [int(pid) for pid in re.findall(r"Processor \d+ started, pid (\d+)", self.output)]

    def helper(self):
        """Return the id of the process of listener and janitor, once it is there."""

        found = []

        def is_there():
            others = set(children(self.supervisor)) - set(self.processors())
            # A processor that has just begun is reported a moment later.
            time.sleep(0.05)
            found[:] = others - set(self.processors())
            return len(others) == len(found) == 1

        wait_until(is_there)
        return found[0]

    def ready(self):
        """Wait until it takes tasks."""
        wait_until(lambda: self.processors() or self.process.poll() is not None)
        if self.process.poll() is not None:
            raise AssertionError(f"It has ended:\n{self.errors}")
        return self

    def send(self, signum):
        self.process.send_signal(signum)

    def wait(self, within=LONG):
        """Wait for it to end; return its exit code."""
        return self.process.wait(within)

    def alive(self):
        return processes_with(f"{MARK}={self.name}")

    def end(self):
        """End whatever is left of it, and what that starts meanwhile."""

        def ended():
            for pid in self.alive():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return not self.alive()

        wait_until(ended)
        self.process.wait()


class WorkerTestCase(TransactionTestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.diary = self.folder / "diary"
        self.gate = self.folder / "gate"
        self.workers = []

    def worker(self, *arguments, **settings):
        worker = Worker(self.folder, *arguments, **settings)
        self.workers.append(worker)
        self.addCleanup(worker.end)
        return worker

    def burst(self, *arguments, **settings):
        """Run a worker until nothing is due."""
        worker = self.worker("--burst", *arguments, **settings)
        self.assertEqual(worker.wait(60), 0, worker.errors)
        return worker

    def submit(self, key, type="wait", *, data=None, **options):
        """Submit a task that writes to the diary, and waits for the gate if it waits at all."""
        given = {"diary": str(self.diary), "until": str(self.gate), **(data or {})}
        return Queue().submit(key, type, given, **options)

    def open_gate(self):
        self.gate.touch()

    def notes(self, word):
        """Return (key, pid) of each line in the diary that begins with this word."""
        lines = self.diary.read_text().splitlines(keepends=True) if self.diary.exists() else []
        # The last one may still be written.
        split = [line.split() for line in lines if line.endswith("\n")]
        return [(key, int(pid)) for first, key, pid in split if first == word]

    def wait_for_note(self, word, count=1, *, within=60):
        """Wait for so many lines; return the last one's process."""

        def noted():
            return len(self.notes(word)) >= count

        self.wait_until(noted, within=within)
        return self.notes(word)[-1][1]

    def wait_until(self, condition, *, within=LONG):
        """Wait for a condition to hold; fail with what the workers have printed."""
        try:
            wait_until(condition, within=within)
        except AssertionError as error:
            said = [text for worker in self.workers for text in (worker.output, worker.errors)]
            noted = self.diary.read_text() if self.diary.exists() else ""
            raise AssertionError("\n".join([str(error), *said, noted])) from None

    def status(self, key):
        return Queue()[key].metadata().status

    def wait_for_status(self, key, status):
        def reached():
            return self.status(key) == status

        self.wait_until(reached)

    def assert_gone(self, worker):
        wait_until(lambda: not worker.alive())


__all__ = ["Worker", "WorkerTestCase", "is_alive"]
