"""The database server is killed while tasks run, and comes back."""

import json
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from unittest import TestCase

from django.db import connection

from ..databases import UnavailableError, die_with_parent, environment_for, server_like
from ..waiting import wait_until

TASKS = 400
SETTINGS = "tests.chaos.settings"


class ServerKilledTests(TestCase):
    def setUp(self):
        stack = ExitStack()
        self.addCleanup(stack.close)
        self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        self.log = self.folder / "log"
        self.log.touch()
        try:
            self.server = stack.enter_context(server_like(connection, durable=True))
        except UnavailableError as error:
            self.skipTest(str(error))
        self.environment = {
            **environment_for(self.server),
            "DJANGO_SETTINGS_MODULE": SETTINGS,
            "CHAOS_LOG": str(self.log),
        }
        self.manage("migrate", "--verbosity", "0")

    def test_every_task_finishes_and_none_that_had_finished_runs_again(self):
        """
        The server dies twice without warning, in the middle of the work.

        What was seen finished before a kill is not begun after it.
        """
        self.submit()
        worker = self.start_worker()
        closed = {}
        try:
            for _time in range(2):
                self.wait_for_progress()
                finished = self.finished()
                closed.update({key: n for key, n in self.began().items() if key in finished})
                self.server.kill()
                self.server.start()
            wait_until(self.all_have_finished, within=90)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.output()}") from None
        finally:
            self.stop(worker)

        self.assertGreater(len(closed), 0)
        self.assertEqual({key: self.began()[key] for key in closed}, closed)
        self.assertEqual(worker.returncode, 0, self.output())
        self.assertEqual(set(self.began()), {f"k{number}" for number in range(TASKS)})
        self.assertEqual(self.list("waiting") + self.list("running"), [])
        self.assertNotIn("Traceback", self.output())

    def all_have_finished(self):
        return len(self.finished()) == TASKS

    def manage(self, *arguments, text=None):
        done = subprocess.run(
            [sys.executable, "-m", "django", *arguments],
            env=self.environment,
            input=text,
            capture_output=True,
            text=True,
            timeout=120,
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def submit(self):
        lines = (
            json.dumps(
                {"key": f"k{n}", "type": "steady", "user": f"u{n % 7}", "data": {"seconds": 0.03}}
            )
            + "\n"
            for n in range(TASKS)
        )
        self.manage("pq_submit", "--file", "-", text="".join(lines))

    def start_worker(self):
        with (self.folder / "output").open("w") as output:
            return subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "django",
                    "pq_worker",
                    "tests.chaos.handlers.ChaosDispatch",
                    "--processors",
                    "2",
                ],
                env=self.environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                preexec_fn=die_with_parent(),
            )

    def stop(self, worker):
        worker.send_signal(signal.SIGTERM)
        try:
            worker.wait(30)
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait()
            raise

    def wait_for_progress(self):
        enough = min(TASKS, sum(self.began().values()) + 30)

        def enough_has_begun():
            return sum(self.began().values()) >= enough

        wait_until(enough_has_begun, within=60)

    def lines(self, word):
        found = (line.split() for line in self.log.read_text().splitlines())
        return [key for said, key, _pid in found if said == word]

    def began(self):
        return Counter(self.lines("began"))

    def finished(self):
        return set(self.list("finished"))

    def list(self, status):
        told = self.manage("pq_list", "--status", status, "--limit", "1000", "--json")
        return [json.loads(line)["key"] for line in told.splitlines()]

    def output(self):
        return (self.folder / "output").read_text()
