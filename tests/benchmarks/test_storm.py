"""A short storm has nothing to be found."""

import json
import os
import signal
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from django.db import OperationalError, connection
from django.test import TransactionTestCase, tag

from django_perfectqueue.models import Task

from ..databases.environment import kind_of
from ..databases.lifetime import processes_with
from ..waiting import wait_until
from .command import ROOT, Command


def setUpModule():
    if not (ROOT / "benchmarks").is_dir():
        raise unittest.SkipTest("The benchmarks are not beside the tests.")


class ClientTests(TransactionTestCase):
    def test_what_is_rolled_back_with_a_lost_savepoint_is_not_said_to_be_stored(self):
        from benchmarks.chaos.audit.history import read_events
        from benchmarks.chaos.terms import FOLDER, HOST, Terms
        from benchmarks.chaos.workload.client import Client

        client = Client(Terms(kind_of(connection), 1.0), "client-1")
        with (
            tempfile.TemporaryDirectory() as folder,
            mock.patch.dict(os.environ, {FOLDER: folder, HOST: "client"}),
        ):
            client.submit_in_savepoint()
            lost = OperationalError("The server is gone.")
            with mock.patch.object(connection, "savepoint_rollback", side_effect=lost):
                client.submit_in_savepoint()
            calls = read_events(Path(folder, "events"), 0.0)["calls"]
        self.assertEqual([call.answer for call in calls], ["done", "undone"])
        [kept] = Task.objects.all()
        self.assertEqual(kept.key, calls[0].given["tasks"][0]["key"])


@tag("thorough")
class CommandTests(Command, unittest.TestCase):
    """One short storm on each database."""

    module = "benchmarks.chaos"

    def setUp(self):
        super().setUp()
        self.database = kind_of(connection)
        self.always = ("--storm", "--output", self.results, "--databases", self.database)
        if self.database not in ("sqlite", "postgresql", "mariadb"):
            self.skipTest(f"The benchmarks cannot start {self.database}.")

    def test_an_interrupted_storm_leaves_nothing_running(self):
        process = self.start("--minutes", "5", "--clients", "2")

        def is_at_work():
            ours = set(self.processes())
            return len(ours.intersection(processes_with("CHAOS_HOST=host-a"))) > 4

        wait_until(is_at_work, within=120)
        process.send_signal(signal.SIGINT)
        _, complained = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130, complained)
        self.assert_nothing_is_left()

    def test_a_storm_of_seconds_has_nothing_to_be_found(self):
        process = self.start("--minutes", "0.1", "--clients", "4")
        printed, complained = process.communicate(timeout=300)
        self.assertEqual(process.returncode, 0, f"{complained}\n{printed}")
        found, _head = map(json.loads, self.results.read_text().splitlines())
        self.assertEqual(found["violations"], [])
        self.assertGreater(found["tasks"], 10)
        self.assert_nothing_is_left()
