"""Two servers that both take writes: neither sees the other's locks before the COMMIT."""

import contextlib
import os
import unittest
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

from django.db import OperationalError, connection, transaction
from django.test import tag

from django_perfectqueue.checks.servers import check_server_settings
from django_perfectqueue.models import Task, Ticket
from django_perfectqueue.queue import Queue

from ..databases import UnavailableError
from ..databases.environment import kind_of
from ..factories import assert_books_balance
from ..waiting import wait_until
from .case import PATIENCE, FleetTestCase, migrate, moved_to, wait_until_up
from .galera import Cluster

TASKS = int(os.environ.get("PERFECTQUEUE_TEST_GALERA_TASKS", 400))
USERS = 12
DEADLOCK = 1213
SEES_ALL = "&init_command=SET SESSION wsrep_sync_wait = 1"


@tag("thorough")
class GaleraTests(FleetTestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        if kind_of(connection) != "mariadb":
            raise unittest.SkipTest("This database has no such clusters.")
        try:
            cls.cluster = Cluster()
        except UnavailableError as error:
            raise unittest.SkipTest(str(error)) from error
        cls.addClassCleanup(cls.cluster.remove)
        cls.cluster.start()

    def setUp(self):
        super().setUp()
        stack = contextlib.ExitStack()
        self.addCleanup(stack.close)
        here, there = self.cluster.nodes
        self.other = stack.enter_context(ThreadPoolExecutor(1))
        stack.enter_context(moved_to(here.url))
        migrate()
        Queue().clear()
        self.move_other(there.url)
        there.catch_up()

    def move_other(self, url):
        """Let the other thread work at a node of its own, for as long as this test takes."""
        moved = moved_to(url)
        self.there(moved.__enter__)
        self.addCleanup(self.there, moved.__exit__, None, None, None)

    def there(self, verb, *arguments):
        return self.other.submit(verb, *arguments).result()

    def test_a_claim_that_loses_at_its_commit_takes_another_task(self):
        Queue().submit_many({"key": key, "type": "visit"} for key in ("k0", "k1"))
        self.cluster.nodes[1].catch_up()
        commit, theirs = connection._commit, []

        def commit_after_the_other():
            if not theirs:
                theirs.append(self.there(Queue().poll))
            commit()

        with mock.patch.object(connection, "_commit", commit_after_the_other):
            mine = Queue().poll()
        self.assertEqual((theirs[0].key, mine.key), ("k0", "k1"))
        self.there(theirs[0].finish)
        mine.finish()
        assert_books_balance(self)

    def test_a_transaction_of_the_callers_is_the_callers_to_repeat(self):
        Queue().submit("k0", "visit")
        self.cluster.nodes[1].catch_up()
        with self.assertRaises(OperationalError) as refused, transaction.atomic():
            mine = Queue().poll()
            theirs = self.there(Queue().poll)
        self.assertEqual(refused.exception.args[0], DEADLOCK)
        self.assertEqual(mine.key, theirs.key)
        self.assertIsNone(Queue().poll())
        self.there(theirs.finish)

    def test_a_node_that_waits_for_the_others_sees_what_was_just_submitted(self):
        self.move_other(self.cluster.nodes[1].url + SEES_ALL)
        for number in range(20):
            Queue().submit(f"k{number}", "visit")
            self.assertEqual(self.there(Queue().poll).key, f"k{number}")

    def test_the_system_checks_find_a_node_that_does_not_wait(self):
        for url, expected in (
            (self.cluster.nodes[1].url, True),
            (self.cluster.nodes[1].url + SEES_ALL, False),
        ):
            with self.subTest(url), moved_to(url):
                found = check_server_settings(databases=["default"])
                self.assertEqual("perfectqueue.W021" in [one.id for one in found], expected)

    def test_each_task_runs_and_finishes_once_though_both_nodes_give_it_out(self):
        settings = {"PROCESSORS": 2, "TASK_PREFETCH": 4}
        workers = [self.worker_at(node.url, **settings) for node in self.cluster.nodes]
        wait_until_up(*workers)
        keys = [f"k{number}" for number in range(TASKS)]
        self.visit(*keys, waiting=False, users=USERS)
        wait_until(lambda: self.are_finished(keys), within=PATIENCE)

        begun = self.reported("start")
        self.assertEqual(Counter(entry.key for entry in begun), dict.fromkeys(keys, 1))
        for worker in workers:
            self.assertTrue({entry.pid for entry in begun}.intersection(worker.processors()))
            self.assertNotIn("Traceback", worker.errors)
        self.assertFalse(Ticket.objects.exists())
        assert_books_balance(self)

    def test_a_node_that_is_killed_takes_no_task_along_and_comes_back(self):
        """
        Half of a cluster takes no writes until someone says that it is the whole of it.
        """
        here, there = self.cluster.nodes
        settings = {"PROCESSORS": 1, "TASK_PREFETCH": 0, "ALIVE_TIME": 3.0}
        workers = [self.worker_at(node.url, **settings) for node in (here, there)]
        self.visit("k0", "k1")
        self.wait_until_reported("start", 2)

        there.kill()
        here.go_on_alone()
        self.open_gates(["k0", "k1"])
        wait_until(lambda: self.are_finished(["k0", "k1"]), within=PATIENCE)
        there.start()
        self.cluster.wait_until_whole()

        self.visit("l0", "l1")
        for worker in workers:
            self.wait_until_begun(worker, {"l0", "l1"})
        self.open_gates(["l0", "l1"])
        wait_until(lambda: self.are_finished(["l0", "l1"]), within=PATIENCE)
        wait_until(lambda: "The database is back" in workers[1].errors, within=PATIENCE)
        for worker in workers:
            self.assertNotIn("Traceback", worker.errors)
        assert_books_balance(self)

    def wait_until_begun(self, worker, keys):
        def begun():
            entries = self.reported("start")
            return any(e.pid in worker.processors() and e.key in keys for e in entries)

        wait_until(begun, within=PATIENCE)

    def are_finished(self, keys):
        finished = Task.objects.filter(key__in=keys, outcome="finished")
        return finished.count() == len(keys)
