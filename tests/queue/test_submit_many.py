"""Submit more tasks than one transaction takes: the next are read while these are stored."""

import signal
import time
from itertools import count
from unittest import mock

from django.contrib.auth.models import Group
from django.db import connection, transaction
from django.db.backends.postgresql.psycopg_any import is_psycopg3
from django.test import TransactionTestCase

from django_perfectqueue.exceptions import AlreadyExistsError
from django_perfectqueue.models import Task, Ticket
from django_perfectqueue.queue import Queue
from django_perfectqueue.store.tasks import submit

CHUNK = 3
# What libpq calls a connection whose statement still runs.
ACTIVE = 1


class SubmitManyTests(TransactionTestCase):
    def setUp(self):
        self.enterContext(mock.patch.object(submit, "CHUNK", CHUNK))
        self.queue = Queue()
        # A connection in use; where statements are watched, as in a handler, all go by Django.
        self.assertEqual(self.stored(), set())
        self.enterContext(mock.patch.object(connection, "execute_wrappers", []))

    def skip_unless_ahead(self):
        if connection.vendor != "postgresql" or not is_psycopg3:
            self.skipTest("Only psycopg 3 can send without waiting.")

    def tasks(self, number, act=lambda index: None):
        for index in range(number):
            act(index)
            yield {"key": f"k{index}", "type": "t", "data": index}

    def stored(self):
        self.assertEqual(Task.objects.count(), Ticket.objects.count())
        return set(Task.objects.values_list("key", flat=True))

    def keys(self, number):
        return {f"k{index}" for index in range(number)}

    def test_the_next_are_read_while_the_server_stores_these(self):
        seen = []

        def look(_index):
            seen.append(connection.connection.info.transaction_status == ACTIVE)

        self.skip_unless_ahead()
        self.assertEqual(self.queue.submit_many(self.tasks(8, look)), 8)
        self.assertEqual(seen, [False] * 3 + [True] * 5)
        self.assertEqual(self.stored(), self.keys(8))

    def test_the_iterable_may_use_the_connection_meanwhile(self):
        seen = []

        def use(index):
            for _row in Task.objects.iterator(chunk_size=1):
                break
            seen.append(len(self.queue))
            Group.objects.create(name=f"n{index}")

        self.assertEqual(self.queue.submit_many(self.tasks(8, use)), 8)
        self.assertEqual(seen, [0] * 3 + [3] * 3 + [6] * 2)
        self.assertEqual(Group.objects.count(), 8)
        self.assertEqual(self.stored(), self.keys(8))

    def test_a_transaction_of_the_iterable_is_its_own(self):
        def fail(index):
            with transaction.atomic():
                Group.objects.create(name=f"n{index}")
                transaction.set_rollback(index == 4)

        for outer in (False, True):
            with self.subTest(in_atomic=outer):
                if outer:
                    with transaction.atomic():
                        self.queue.submit_many(self.tasks(8, fail))
                else:
                    self.queue.submit_many(self.tasks(8, fail))
                self.assertEqual(self.stored(), self.keys(8))
                self.assertEqual(Group.objects.count(), 7)
                self.queue.clear()
                Group.objects.all().delete()

    def test_an_iterable_that_spans_transactions(self):
        def tasks():
            every = self.tasks(8)
            yield from (next(every) for _number in range(2))
            with transaction.atomic():
                yield from (next(every) for _number in range(3))
            yield from every

        self.assertEqual(self.queue.submit_many(tasks()), 8)
        self.assertEqual(self.stored(), self.keys(8))

    def test_the_iterable_may_close_the_connection(self):
        def close(index):
            if index == 4:
                connection.close()

        self.assertEqual(self.queue.submit_many(self.tasks(8, close)), 8)
        self.assertEqual(self.stored(), self.keys(8))

    def end_connection(self):
        """Have the server end this connection, as it does when it stops."""
        pid = connection.connection.info.backend_pid
        other = connection.copy()
        self.addCleanup(other.close)
        with other.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])

    def test_the_server_ends_the_connection_before_any_part(self):
        self.skip_unless_ahead()
        for at in (2, 4, 6):
            self.queue.clear()
            large = "x" * 200_000

            def tasks(at=at, large=large):
                for task in self.tasks(8):
                    if task["key"] == f"k{at}":
                        self.end_connection()
                    yield {**task, "data": large}

            with self.subTest(at=at), self.assertLogs("django_perfectqueue.database"):
                self.assertEqual(self.queue.submit_many(tasks()), 8)
            self.assertEqual(self.stored(), self.keys(8))

    def test_a_slow_iterable_does_not_hold_up_what_it_has_given(self):
        self.skip_unless_ahead()
        seen = []
        other = connection.copy()
        self.addCleanup(other.close)

        def look(index):
            if index in (4, 5):
                time.sleep(0.3)
                with other.cursor() as cursor:
                    cursor.execute('SELECT COUNT(*) FROM "perfectqueue_task"')
                    seen.append(cursor.fetchone()[0])

        self.assertEqual(self.queue.submit_many(self.tasks(8, look)), 8)
        self.assertEqual(seen[1:], [3])

    def test_a_stop_while_the_answer_is_awaited_stops_at_once(self):
        self.skip_unless_ahead()
        seen = []
        other = connection.copy()
        self.addCleanup(other.close)
        handler = signal.signal(signal.SIGALRM, signal.default_int_handler)
        self.addCleanup(signal.signal, signal.SIGALRM, handler)

        def stop(index):
            seen.append(index)
            if index == 4:
                # Again and again: Python ignores what is raised in a callback of a weak reference.
                signal.setitimer(signal.ITIMER_REAL, 0.2, 0.2)
                len(self.queue)
                seen.append("later")

        other.set_autocommit(False)
        with other.cursor() as cursor:
            cursor.execute('LOCK TABLE "perfectqueue_ticket" IN SHARE MODE')
            with self.assertRaises(KeyboardInterrupt):
                self.queue.submit_many(self.tasks(8, stop))
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            other.rollback()
        self.assertEqual((seen, self.stored()), ([0, 1, 2, 3, 4], set()))

    def test_a_connection_behind_a_proxy(self):
        self.skip_unless_ahead()
        wire = connection.connection

        class Proxy:
            __dict__ = property(lambda self: vars(wire))
            __getattr__ = staticmethod(lambda name: getattr(wire, name))
            __setattr__ = staticmethod(lambda name, value: setattr(wire, name, value))

        with mock.patch.object(connection, "connection", Proxy()):
            self.assertEqual(self.queue.submit_many(self.tasks(8)), 8)
        self.assertEqual(self.stored(), self.keys(8))

    def test_a_key_that_is_taken_undoes_its_part_alone(self):
        for use in (lambda _index: None, lambda _index: len(self.queue)):
            self.queue.clear()
            self.queue.submit("k4", "t")
            progress = []
            with self.assertRaisesMessage(AlreadyExistsError, "k4"):
                self.queue.submit_many(self.tasks(8, use), progress=progress.append)
            self.assertEqual(progress, [3])
            self.assertEqual(self.stored(), self.keys(3) | {"k4"})

    def test_a_key_that_is_given_twice(self):
        twice = [*self.tasks(5), *self.tasks(4)]
        with self.assertRaises(AlreadyExistsError):
            self.queue.submit_many(twice)
        self.assertEqual(self.stored(), self.keys(3))
        self.assertEqual(self.queue.submit_many(twice, on_conflict="ignore"), 2)
        self.assertEqual(self.queue.submit_many([*twice, *self.tasks(9)], on_conflict="ignore"), 4)
        self.assertEqual(self.queue["k1"].metadata().data, 1)

    def test_taken_keys_are_passed_over(self):
        self.queue.submit("k4", "t")
        self.queue.submit_many({"key": f"k{n}", "type": "t"} for n in (0, 1, 2))
        progress = []
        stored = self.queue.submit_many(
            self.tasks(8), on_conflict="ignore", progress=progress.append
        )
        self.assertEqual((stored, progress), (4, [3, 6, 8]))
        self.assertEqual(self.stored(), self.keys(8))

    def test_an_iterable_that_fails_leaves_what_was_complete(self):
        def fail(index):
            if index == 4:
                raise LookupError

        progress = []
        with self.assertRaises(LookupError):
            self.queue.submit_many(self.tasks(8, fail), progress=progress.append)
        self.assertEqual((self.stored(), progress), (self.keys(3), [3]))
        self.assertEqual(len(self.queue.acquire(8)), 3)

    def test_in_the_callers_transaction_all_or_none(self):
        self.queue.submit("k7", "t")
        with self.assertRaises(AlreadyExistsError), transaction.atomic():
            self.queue.submit_many(self.tasks(8))
        self.assertEqual(self.stored(), {"k7"})
        with transaction.atomic():
            Group.objects.create(name="before")
            with self.assertRaises(AlreadyExistsError):
                self.queue.submit_many(self.tasks(12))
            Group.objects.create(name="behind")
        self.assertEqual((self.stored(), Group.objects.count()), (self.keys(6) | {"k7"}, 2))

    def test_the_first_of_a_transaction(self):
        for number in count(1):
            with transaction.atomic():
                self.queue.submit_many(self.tasks(7))
                if number == 2:
                    break
                transaction.set_rollback(True)
            self.assertEqual(self.stored(), set())
        self.assertEqual(self.stored(), self.keys(7))
