"""Programs that take tasks themselves, and wait for them."""

import threading
import time
from unittest import mock

from asgiref.sync import async_to_sync
from django.db import connection, connections, transaction
from django.test import TestCase, TransactionTestCase, override_settings

from django_perfectqueue import store
from django_perfectqueue.exceptions import WaitInTransactionError
from django_perfectqueue.queue import Queue, queue

from ..factories import submit
from ..waiting import LONG, wait_until

HOUR = 3_600.0


def in_thread(case, act):
    """Do something in another thread, with a connection of its own."""

    def run():
        try:
            act()
        finally:
            connections.close_all()

    thread = threading.Thread(target=run)
    thread.start()
    case.addCleanup(thread.join)
    return thread


class WaitTests(TransactionTestCase):
    def while_it_waits(self, act):
        """Return what a poll gives, during whose first wait something happens elsewhere."""
        waits, real = threading.Event(), queue.look

        def noted(*given):
            outlook = real(*given)
            waits.set()
            return outlook

        def later():
            wait_until(waits.is_set)
            act()

        in_thread(self, later)
        with mock.patch.object(queue, "look", noted):
            return Queue().poll(LONG)

    def test_it_gets_what_is_submitted_meanwhile(self):
        task = self.while_it_waits(lambda: submit("k1", now=None))
        self.assertEqual(task.key, "k1")

    @override_settings(PERFECTQUEUE={"POLL_INTERVAL": HOUR})
    def test_it_gets_what_becomes_due_meanwhile(self):
        submit("k1", run_at=0.3, now=None)
        self.assertEqual(Queue().poll("1m").key, "k1")

    def test_it_goes_on_when_its_connection_is_lost(self):
        def lose_it():
            if connection.vendor == "postgresql":
                with connection.cursor() as cursor:
                    cursor.execute(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
                        " AND backend_type = 'client backend'"
                    )
            submit("k1", now=None)

        self.assertEqual(self.while_it_waits(lose_it).key, "k1")

    def test_it_returns_nothing_when_the_time_is_up(self):
        began = time.monotonic()
        self.assertIsNone(Queue().poll(0.2))
        self.assertGreaterEqual(time.monotonic() - began, 0.2)

    def test_one_task_after_another_until_none_comes(self):
        for key in ("k1", "k2"):
            submit(key, now=None)
        submit("k3", run_at=0.2, now=None)
        got = []
        while task := Queue().poll("1s"):
            got.append(task.key)
            task.finish()
        self.assertEqual(sorted(got), ["k1", "k2", "k3"])

    def test_coroutines_wait_as_well(self):
        async def story():
            self.assertIsNone(await Queue().apoll(0.1))
            await Queue().asubmit("k1", "report", run_at=0.2)
            return await Queue().apoll(0.6)

        self.assertEqual(async_to_sync(story)().key, "k1")


class TransactionTests(TestCase):
    def test_what_is_due_is_taken_and_a_wait_is_refused(self):
        submit("k1", now=None)
        with transaction.atomic():
            self.assertEqual(Queue().poll("5s").key, "k1")
        self.assertIsNone(Queue().poll())
        with mock.patch.object(store.database, "is_callers", return_value=True):
            for wait in ("5s", None):
                with self.assertRaises(WaitInTransactionError):
                    Queue().poll(wait)

    def test_a_timeout_that_is_none_is_refused(self):
        for wrong in (-1, "soon"):
            with self.subTest(wrong), self.assertRaises(ValueError):
                Queue().poll(wrong)
