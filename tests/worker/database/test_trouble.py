import contextlib
import json
import signal
import subprocess
import sys
import unittest

from django.db import connection
from django.test import tag

from ...databases import SQLite, UnavailableError, environment_for, server_like
from ...databases.server import DATABASE
from ...waiting import wait_until
from ..workers import ROOT, Worker, WorkerTestCase


@tag("thorough")
class DatabaseRestartTests(WorkerTestCase):
    """The database server is killed and comes back: the worker waits, and loses nothing."""

    def setUp(self):
        super().setUp()
        try:
            self.server = server_like(connection, durable=True)
            self.server.require()
        except UnavailableError as error:
            raise unittest.SkipTest(str(error)) from error
        if isinstance(self.server, SQLite):
            self.skipTest("There is no server to kill.")
        self.addCleanup(self.server.remove)
        self.server.start()
        self.manage("migrate", "--verbosity", "0")

    def manage(self, *arguments):
        command = [sys.executable, "-m", "django", *arguments]
        environment = environment_for(self.server)
        subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True)

    def worker(self, *arguments, **settings):
        worker = Worker(self.folder, *arguments, database=self.server, **settings)
        self.addCleanup(worker.end)
        return worker

    def submit(self, key, type="wait", **data):
        given = {"diary": str(self.diary), "until": str(self.gate), **data}
        self.manage("pq_submit", key, type, json.dumps(given))

    def finished(self):
        """Return how many tasks have finished; none where the server does not answer."""
        with (
            contextlib.suppress(Exception),
            contextlib.closing(self.server.connect(DATABASE)) as link,
        ):
            cursor = link.cursor()
            cursor.execute("SELECT COUNT(*) FROM perfectqueue_task WHERE outcome = 'finished'")
            return cursor.fetchone()[0]
        return 0

    def test_an_idle_worker_can_be_stopped_while_the_server_is_away(self):
        worker = self.worker().ready()
        self.submit("k0", "note")
        wait_until(lambda: self.finished() == 1)
        self.server.kill()
        wait_until(lambda: "The database is away" in worker.errors)
        worker.send(signal.SIGTERM)
        self.assertEqual(worker.wait(30), 0, worker.errors)
        self.assertNotIn("Traceback", worker.errors)

    def test_a_server_that_is_away_from_the_start_is_reported_in_one_line(self):
        self.server.kill()
        worker = self.worker()
        self.assertEqual(worker.wait(), 1)
        self.assertIn("Can't reach the database 'default'", worker.errors)
        self.assertNotIn("Traceback", worker.errors)


class PatchedTests(WorkerTestCase):
    def test_a_python_that_gevent_has_patched_is_reported(self):
        """
        Its waitpid() knows no child of the supervisor, which ended with a traceback.
        """
        worker = self.worker(PATCHED=True)
        self.assertEqual(worker.wait(), 1)
        self.assertIn("gevent has replaced parts of Python", worker.errors)
        self.assertNotIn("Traceback", worker.errors)


class UnmigratedTests(WorkerTestCase):
    def test_a_database_without_tables_is_reported_with_what_helps(self):
        try:
            server = server_like(connection)
            server.require()
        except UnavailableError as error:
            raise unittest.SkipTest(str(error)) from error
        self.addCleanup(server.remove)
        server.start()
        worker = Worker(self.folder, database=server)
        self.addCleanup(worker.end)
        self.assertEqual(worker.wait(), 1)
        self.assertIn("Run: manage.py migrate", worker.errors)
        self.assertNotIn("Traceback", worker.errors)
