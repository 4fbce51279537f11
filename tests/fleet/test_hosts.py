"""Three hosts: one is cut off, one is frozen, and the third does their work."""

import time
import unittest
from collections import Counter

import environ
from django.db import connection, transaction
from django.test import TransactionTestCase, tag

from django_perfectqueue import store
from django_perfectqueue.models import Attempt, State, Task, Ticket, Worker
from django_perfectqueue.queue import Queue

from ..databases.environment import kind_of
from ..factories import assert_books_balance
from ..waiting import wait_until
from .case import PATIENCE, FleetTestCase, freeze, thaw, wait_until_up
from .networks import LoopbackNetwork, network_for
from .road import IDLE_TRANSACTIONS_END

ALIVE_TIME = 3.0
SLACK = 5.0
HOUR = 3600.0


@tag("thorough")
@unittest.skipIf(connection.vendor == "sqlite", "A SQLite file serves one host.")
class ThreeHostsTests(FleetTestCase):
    """``early`` is an hour before the others' time and ``late`` an hour behind it."""

    def setUp(self):
        super().setUp()
        self.network = network_for(connection)
        self.addCleanup(self.network.close)
        self.hosts = {name: self.network.host(name) for name in ("early", "late", "right")}
        self.hosts["early"].clock = HOUR
        self.hosts["late"].clock = -HOUR

    def test_what_a_lost_host_held_runs_on_another_and_the_lost_one_writes_nothing(self):
        """
        One host is cut off from the server and one is frozen, in the middle of their work.
        """
        workers = self.start_workers()
        keys = [f"k{number}" for number in range(len(workers) * 2)]
        self.visit(*keys)
        begun = {entry.key: entry for entry in self.wait_until_reported("start", len(keys))}
        at = self.keys_by_host(begun.values())
        self.assertEqual({name: len(held) for name, held in at.items()}, dict.fromkeys(workers, 2))
        self.assert_clocks_differ(begun.values())

        self.hosts["early"].cut_off()
        freeze(workers["late"])
        lost_at = time.monotonic()
        lost = at["early"] | at["late"]
        ends = self.ends_of_leases(lost)
        self.open_gates(at["right"])

        again = self.wait_until_reported("end", len(lost), attempt=2)
        wait_until(lambda: self.are_finished(keys), within=PATIENCE)
        self.assert_taken_over(again, lost, ends, lost_at)

        self.hosts["early"].reconnect()
        thaw(workers["late"])
        for name in ("early", "late"):
            reported = self.wait_until_reported("refused", 2, host=name)
            self.assertEqual({entry.key for entry in reported}, at[name])
        self.wait_until_reported("end", len(keys) + len(lost))
        self.assert_finished_once(keys, lost)

        self.assert_all_work(workers, ["l0", "l1", "l2", "l3", "l4", "l5"])
        self.assertEqual({len(self.reported("end", key=key)) for key in keys}, {1, 2})
        for name in workers:
            self.assertNotIn("Traceback", workers[name].errors)
        assert_books_balance(self)

    def start_workers(self):
        settings = {"ALIVE_TIME": ALIVE_TIME, "TASK_PREFETCH": 0, "PROCESSORS": 2}
        workers = {name: self.worker_on(host, **settings) for name, host in self.hosts.items()}
        wait_until_up(*workers.values())

        def registered():
            return set(Worker.objects.values_list("host", flat=True)) == set(self.hosts)

        wait_until(registered, within=PATIENCE)
        return workers

    def assert_clocks_differ(self, entries):
        errors = {entry.host: entry.clock - entry.at for entry in entries}
        true = errors["right"]
        for name, host in self.hosts.items():
            self.assertAlmostEqual(errors[name] - true, host.clock, delta=60)

    def keys_by_host(self, entries):
        return {name: {e.key for e in entries if e.host == name} for name in self.hosts}

    def ends_of_leases(self, keys):
        tickets = Ticket.objects.filter(task__key__in=keys, state=State.RUNNING)
        return dict(tickets.values_list("task__key", "timer_at"))

    def are_finished(self, keys):
        return Task.objects.filter(key__in=keys, outcome="finished").count() == len(keys)

    def assert_taken_over(self, again, lost, ends, lost_at):
        """
        Not while the lease held, and soon after: by the server's clock and by ours.

        On a machine that has time it is within tenths of a second.
        """
        self.assertEqual({(entry.key, entry.host) for entry in again}, {(k, "right") for k in lost})
        for task in Task.objects.filter(key__in=lost):
            self.assertGreaterEqual(task.started_at, ends[task.key])
        for entry in self.reported("start", attempt=2):
            self.assertLess(entry.at - lost_at, ALIVE_TIME + SLACK)

    def assert_finished_once(self, keys, lost):
        """What the lost hosts wrote and returned is in no row."""
        for task in Task.objects.filter(key__in=keys):
            with self.subTest(task.key):
                self.assertEqual(task.attempt, 2 if task.key in lost else 1)
                self.assertNotIn("written_by", task.data)
        endings = Attempt.objects.values_list("task__key", "ending")
        self.assertEqual(Counter(endings), Counter((key, "lost") for key in lost))

    def assert_all_work(self, workers, keys):
        self.visit(*keys)
        wait_until(lambda: {e.key for e in self.reported("start")} >= set(keys), within=PATIENCE)
        entries = [entry for entry in self.reported("start") if entry.key in keys]
        self.assertEqual(Counter(e.host for e in entries), dict.fromkeys(workers, 2))
        self.open_gates(keys)
        wait_until(lambda: self.are_finished(keys), within=PATIENCE)


class LostTransactionTests(TransactionTestCase):
    def setUp(self):
        if kind_of(connection) not in IDLE_TRANSACTIONS_END:
            self.skipTest("This database ends no transaction of one who has fallen silent.")
        network = LoopbackNetwork(connection)
        self.addCleanup(network.close)
        self.host = network.host("lost")
        self.link = connection.copy()
        self.link.settings_dict |= environ.Env.db_url_config(self.host.url)
        self.addCleanup(self.link.close)

    def test_what_a_lost_host_had_locked_does_not_hold_up_the_others_for_long(self):
        """
        It was cut off between its statements and its COMMIT; all who serve that user wait.
        """
        Queue().submit_many({"key": key, "type": "visit"} for key in ("k0", "k1"))
        Queue().poll()._end(store.Ending.release())
        with self.link.cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.execute("SELECT id FROM perfectqueue_account FOR UPDATE")
            self.assertEqual(len(cursor.fetchall()), 1)
            self.host.cut_off()
        self.assert_locked()
        self.assertEqual(Queue().poll().key, "k0")

    def assert_locked(self):
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SELECT id FROM perfectqueue_account FOR UPDATE SKIP LOCKED")
            self.assertEqual(list(cursor.fetchall()), [])
