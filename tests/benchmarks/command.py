"""A benchmark's command in a process of its own."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path

from ..databases import die_with_parent
from ..databases.lifetime import processes_with
from ..waiting import wait_until

ROOT = Path(__file__).resolve().parent.parent.parent
MARK = "PERFECTQUEUE_TEST_BENCHMARK"


class Command:
    """For a test case: ``self.folder`` is its own, and what it starts is ended with it."""

    module = "benchmarks"
    always = ()
    """Arguments that each call begins with."""

    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.results = self.folder / "results.jsonl"
        self.name = uuid.uuid4().hex

    def start(self, *arguments):
        process = subprocess.Popen(
            [sys.executable, "-m", self.module, *map(str, (*self.always, *arguments))],
            cwd=ROOT,
            env={**os.environ, MARK: self.name},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=die_with_parent(),
        )
        self.addCleanup(self.end, process)
        return process

    def end(self, process):
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.communicate()

    def processes(self):
        """Return the ids of what was started and is still running."""
        return processes_with(f"{MARK}={self.name}")

    def run_command(self, *arguments):
        """Return the exit code, what it printed and what it complained of."""
        process = self.start(*arguments)
        printed, complained = process.communicate(timeout=240)
        return process.returncode, printed, complained

    def assert_nothing_is_left(self):
        wait_until(lambda: not self.processes(), within=30)
