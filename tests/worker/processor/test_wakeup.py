"""How soon a worker that has nothing to do begins, and what it costs until then."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import unittest

from django.db import connection
from django.test import override_settings, tag

from django_perfectqueue.checks.servers import check_server_settings
from django_perfectqueue.queue import Queue

from ...databases import SQLite, UnavailableError, environment_for, server_like
from ...databases.server import DATABASE
from ...fleet.case import moved_to
from ...waiting import wait_until
from ..pooler import Pooler
from ..workers import ROOT, Worker, WorkerTestCase

FAR = 600.0
SOON = 30.0
"""What was not notified is found after 33 s at the soonest."""
AT_ONCE = 3.0
"""A processor that was not woken sees after 3.5 s at the soonest that it was to be."""


class WakeupCase(WorkerTestCase):
    """Workers whose POLL_INTERVAL is so long that what comes soon was notified."""

    def idle_worker(self, *arguments, **settings):
        """Return a worker that has run a task, and then waits."""
        terms = {"POLL_INTERVAL": FAR, "LOG": str(self.log), "LOG_LEVEL": "DEBUG", **settings}
        worker = self.worker(*arguments, **terms).ready()
        worker.helper()
        self.submit("first", "note")
        self.wait_for_note("ran")
        self.wait_for_rest()
        return worker

    def looks(self):
        return self.log.read_text().count("looks for tasks")

    def wait_for_rest(self):
        """Wait until no processor has looked for tasks for half a second."""
        known = []

        def at_rest():
            known.append(self.looks())
            return len(known) > 25 and known[-1] == known[-25]

        wait_until(at_rest)

    @property
    def log(self):
        return self.folder / "log"

    def seconds_until_it_ran(self, key, **options):
        count = len(self.notes("ran"))
        began = time.monotonic()
        self.submit(key, "note", **options)
        self.wait_for_note("ran", count + 1)
        return time.monotonic() - began


class WakeupTests(WakeupCase):
    def test_a_task_starts_long_before_the_next_poll(self):
        self.idle_worker()
        seconds = [self.seconds_until_it_ran(f"k{number}") for number in range(3)]
        self.assertLess(max(seconds), SOON)
        # Each of them would be late; on a machine at work one may be.
        self.assertLess(min(seconds), AT_ONCE)

    def test_a_lone_task_wakes_two_processors_of_eight_at_most(self):
        self.idle_worker(PROCESSORS=8)
        before = self.looks()
        self.assertLess(self.seconds_until_it_ran("k0"), SOON)
        self.wait_for_rest()
        woken = self.looks() - before
        self.assertIn(woken, (1, 2))

    def test_many_tasks_wake_one_processor_after_another(self):
        self.idle_worker(PROCESSORS=4, TASK_PREFETCH=0)
        for number in range(4):
            self.submit(f"k{number}")
        self.wait_for_note("start", 4)
        self.assertEqual(len({pid for _key, pid in self.notes("start")}), 4)

    def test_many_tasks_of_one_ring_wake_one_after_another(self):
        self.idle_worker(PROCESSORS=4, TASK_PREFETCH=0)
        data = {"diary": str(self.diary), "until": str(self.gate)}
        Queue().submit_many({"key": f"k{n}", "type": "wait", "data": data} for n in range(4))
        self.wait_for_note("start", 4)
        self.assertEqual(len({pid for _key, pid in self.notes("start")}), 4)

    def test_a_task_for_later_starts_when_its_time_has_come(self):
        """
        It was scheduled after the worker looked, and before it would have looked again.
        """
        self.idle_worker()
        with override_settings(PERFECTQUEUE={"POLL_INTERVAL": FAR}):
            seconds = self.seconds_until_it_ran("k0", run_at=1.5)
        self.assertGreaterEqual(seconds, 1.4)
        self.assertLess(seconds, 1.5 + SOON)

    def test_a_task_for_later_that_was_there_before_starts_in_time(self):
        self.submit("k0", "note", run_at=3.0)
        due = time.monotonic() + 3.0
        worker = self.worker(POLL_INTERVAL=FAR).ready()
        could = max(due, time.monotonic())
        self.wait_for_note("ran")
        self.assertLess(time.monotonic(), could + SOON, worker.errors)

    def test_a_listener_that_is_killed_is_replaced(self):
        worker = self.idle_worker()
        os.kill(worker.helper(), signal.SIGKILL)
        wait_until(lambda: "The helper died" in self.log.read_text())
        worker.helper()
        self.wait_for_rest()
        self.assertLess(self.seconds_until_it_ran("k0"), SOON)

    def test_without_the_bell_it_polls(self):
        self.idle_worker(NOTIFY=False, POLL_INTERVAL=0.2)
        with override_settings(PERFECTQUEUE={"NOTIFY": False}):
            self.assertLess(self.seconds_until_it_ran("k0"), SOON)

    def test_where_no_socket_can_be_made_it_says_so_and_polls(self):
        if connection.vendor == "postgresql":
            self.skipTest("PostgreSQL needs no socket.")
        self.idle_worker(NOTIFY=str(self.folder / ("x" * 100)), POLL_INTERVAL=0.2)
        self.assertLess(self.seconds_until_it_ran("k0"), SOON)
        self.assertIn("too long for a socket", self.log.read_text())

    def test_a_worker_that_ends_leaves_no_socket(self):
        folder = self.folder / "sockets"
        folder.mkdir()
        worker = self.idle_worker(NOTIFY=str(folder), POLL_INTERVAL=0.2)
        sockets = 0 if connection.vendor == "postgresql" else 1
        self.assertEqual(len(list(folder.glob("perfectqueue-*/*"))), sockets)
        worker.send(signal.SIGTERM)
        self.assertEqual(worker.wait(), 0)
        self.assertEqual(list(folder.iterdir()), [])


class ServerCase(WakeupCase):
    """Workers on a database server of their own."""

    durable = False

    def setUp(self):
        super().setUp()
        try:
            self.server = server_like(connection, durable=self.durable)
            self.server.require()
        except UnavailableError as error:
            raise unittest.SkipTest(str(error)) from error
        if isinstance(self.server, SQLite):
            self.skipTest("There is no server.")
        self.addCleanup(self.server.remove)
        self.server.start()
        self.manage("migrate", "--verbosity", "0")

    def manage(self, *arguments):
        command = [sys.executable, "-m", "django", *arguments]
        environment = environment_for(self.server)
        subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True)

    def worker(self, *arguments, database=None, **settings):
        terms = {"database": database or self.server, **settings}
        worker = Worker(self.folder, *arguments, **terms)
        self.addCleanup(worker.end)
        return worker

    def submit(self, key, type="wait", **options):
        data = {"diary": str(self.diary), "until": str(self.gate)}
        self.manage("pq_submit", key, type, json.dumps(data))


class RestartTests(ServerCase):
    durable = True

    @tag("thorough")
    def test_the_bell_is_heard_again_after_the_server_was_killed(self):
        worker = self.idle_worker()
        self.server.kill()
        if connection.vendor == "postgresql":
            wait_until(lambda: "The database is away" in self.log.read_text())
        self.server.start()
        if connection.vendor == "postgresql":
            wait_until(lambda: "The database is back" in self.log.read_text())
        for number in range(2):
            self.assertLess(self.seconds_until_it_ran(f"k{number}"), SOON, worker.errors)


@tag("thorough")
class IdleTests(ServerCase):
    # So many statements are of the look itself.
    OWN = {"postgresql": 2, "mysql": 1}

    def test_a_worker_with_eight_processors_costs_under_one_statement_a_second(self):
        self.idle_worker("--processors", "8", POLL_INTERVAL=1.0)
        most, rates = 1.0, []
        with contextlib.closing(self.server.connect(DATABASE)) as link:
            # A worker on a slow machine comes to rest later.
            while not rates or (rates[-1] >= most and len(rates) < 4):
                rates.append(self.statements_within(24.0, link) / 24.0)
        self.assertGreater(rates[-1], 0)
        self.assertLess(rates[-1], most, rates)

    def statements_within(self, seconds, link):
        before = self.statements(link)
        time.sleep(seconds)
        return self.statements(link) - before - self.OWN[connection.vendor]

    def statements(self, link):
        cursor = link.cursor()
        if connection.vendor == "mysql":
            cursor.execute("SHOW GLOBAL STATUS LIKE 'Questions'")
            return int(cursor.fetchone()[1])
        cursor.execute("ALTER SYSTEM SET log_statement = 'all'")
        cursor.execute("SELECT pg_reload_conf()")
        return len(re.findall(r"LOG:  (?:statement|execute)", self.server.log.read_text()))


@unittest.skipUnless(connection.vendor == "postgresql", "Only there is such a pooler.")
class PoolerTests(ServerCase):
    def through(self, mode):
        pooler = Pooler(self.server, mode)
        try:
            pooler.start()
        except UnavailableError as error:
            raise unittest.SkipTest(str(error)) from error
        self.addCleanup(pooler.remove)
        return pooler

    @tag("thorough")
    def test_behind_a_pooler_in_transaction_mode_it_says_so_and_polls(self):
        pooler = self.through("transaction")
        self.idle_worker(database=pooler, POLL_INTERVAL=0.2)
        wait_until(lambda: "a pooler in transaction mode" in self.log.read_text())
        self.assertLess(self.seconds_until_it_ran("k0"), SOON)
        self.assertEqual(self.log.read_text().count("a pooler in transaction mode"), 1)

    def test_the_system_checks_find_it(self):
        with moved_to(self.through("transaction").url):
            found = check_server_settings(databases=["default"])
        self.assertIn("perfectqueue.W019", [message.id for message in found])

    @tag("thorough")
    def test_behind_one_in_session_mode_it_listens(self):
        pooler = self.through("session")
        self.idle_worker(database=pooler)
        self.assertLess(self.seconds_until_it_ran("k0"), SOON)
        self.assertNotIn("pooler", self.log.read_text())

    @tag("thorough")
    def test_who_submits_through_a_pooler_is_heard(self):
        pooler = self.through("transaction")
        self.idle_worker()
        self.server = pooler
        self.assertLess(self.seconds_until_it_ran("k0"), SOON)
