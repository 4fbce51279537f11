"""Lanes that sleep are woken after the commit, and found where nobody did; others are left."""

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event
from unittest import mock, skipIf

from django.db import connection, transaction
from django.test import TestCase, TransactionTestCase, override_settings
from django.test.utils import CaptureQueriesContext

from django_perfectqueue import store
from django_perfectqueue.fairness.limits import set_limit
from django_perfectqueue.fairness.shares import set_share
from django_perfectqueue.models import Account, Ticket
from django_perfectqueue.queue import Queue
from django_perfectqueue.store.lanes import wake as idle_marks
from django_perfectqueue.store.lanes import wake as waking
from django_perfectqueue.store.notify import ring
from django_perfectqueue.store.upkeep import timers
from tests.factories import acquire, after, elsewhere, keys, submit

from ...scale.case import expect_large_tables, forget, refresh
from ...scale.meter import Meter

FEW = 100
MANY = 20 * FEW
UNIT = {"postgresql": 1, "mysql": 1, "sqlite": 25}
MUTE = {"NOTIFY": False}


@contextmanager
def later(seconds):
    """Let so much time have passed for what this process remembers."""
    moment = idle_marks.time.monotonic() + seconds
    with mock.patch.object(idle_marks.time, "monotonic", return_value=moment):
        yield


def awake():
    return sorted(Account.objects.filter(has_waiting=True).values_list("user", flat=True))


def statements(queries):
    frames = ("BEGIN", "COMMIT", "SAVEPOINT", "RELEASE")
    sent = [query["sql"] for query in queries]
    return [sql for sql in sent if "; " in sql or not sql.startswith(frames)]


class WakeTests(TransactionTestCase):
    def test_a_lane_is_awake_when_its_first_submit_returns(self):
        submit(user="ann", now=None)
        self.assertEqual(awake(), ["ann"])

    def test_the_first_submit_of_a_lane_takes_few_statements(self):
        Queue().submit("k0", "report", user="bob")
        with CaptureQueriesContext(connection) as queries:
            Queue().submit("k1", "report", user="ann")
        few = {"sqlite": 6, "mysql": 5, "postgresql": 7}
        self.assertLessEqual(len(statements(queries)), few[connection.vendor])

    def test_and_when_many_are_submitted(self):
        Queue().submit_many(
            {"key": f"{user}-{number}", "type": "report", "user": user}
            for number in range(3)
            for user in ("ann", "bob")
        )
        self.assertEqual(awake(), ["ann", "bob"])

    def test_and_when_the_first_of_its_tasks_waits_for_another_one(self):
        Queue().submit("a", "report", user="ann", run_at=60)
        with transaction.atomic():
            Queue().submit("b", "report", user="bob", after=["a"])
            Queue().submit("c", "report", user="bob")
        Queue().submit_many(
            [
                {"key": "d", "type": "report", "user": "carl", "after": ["a"]},
                {"key": "e", "type": "report", "user": "carl"},
            ]
        )
        self.assertEqual(awake(), ["bob", "carl"])

    def test_and_when_a_task_is_replaced(self):
        submit("k1", user="ann", run_at=60)
        submit("k1", user="bob", on_conflict="replace")
        self.assertEqual(awake(), ["bob"])

    @override_settings(PERFECTQUEUE=MUTE)
    def test_one_that_has_fallen_asleep_is_woken_by_the_next_submit(self):
        submit("first", user="ann", now=None)
        submit(user="bob", now=None)
        self.assertEqual(len(acquire(10, now=None)), 2)
        self.assertNotIn("ann", awake())
        submit("second", user="ann", now=None)
        self.assertIn("ann", awake())

    def test_also_without_a_bell(self):
        submit(user="ann")
        self.assertEqual(awake(), ["ann"])

    def test_in_a_transaction_it_is_after_the_commit(self):
        """Else its row would hold up all others who submit for this user."""
        with transaction.atomic():
            submit(user="ann")
            self.assertEqual(awake(), [])
            if connection.vendor != "sqlite":
                elsewhere(lambda: submit(user="ann"))
        self.assertEqual(awake(), ["ann"])

    def test_what_is_rolled_back_wakes_nothing(self):
        with transaction.atomic():
            submit(user="ann")
            with transaction.atomic():
                submit(user="bob")
                transaction.set_rollback(True)
        self.assertEqual(awake(), ["ann"])

    def test_a_lane_behind_a_limit_is_woken_too(self):
        set_limit("api", max_running=1)
        submit(user="ann", limits=["api"])
        self.assertTrue(Account.objects.get().has_open)
        self.assertEqual(len(acquire(now=None)), 1)

    @skipIf(connection.vendor == "sqlite", "Nobody else writes while a transaction is open.")
    def test_a_lane_that_falls_asleep_before_the_commit_is_woken_by_it(self):
        submit("first", user="ann", now=None)
        submit(user="bob", now=None)
        with transaction.atomic():
            submit("second", user="ann", now=None)
            self.assertEqual(elsewhere(lambda: len(acquire(10, now=None))), 2)
            self.assertNotIn("ann", awake())
        self.assertIn("ann", awake())

    @skipIf(connection.vendor == "sqlite", "Nobody else writes while a transaction is open.")
    def test_a_claim_that_waits_for_the_account_sees_what_is_submitted_meanwhile(self):
        """Who submits sees the lane awake, and the one who charges it must see the task."""
        submit("first", user="ann", now=None)
        submit("other", user="bob", now=None)
        writing, pool = Event(), ThreadPoolExecutor(1)

        def claim():
            def watch(execute, sql, *others):
                if "perfectqueue_account" in sql and ("UPDATE" in sql or "FOR UPDATE" in sql):
                    writing.set()
                return execute(sql, *others)

            try:
                with connection.execute_wrapper(watch):
                    return keys(acquire(10, now=None))
            finally:
                connection.close()

        with transaction.atomic():
            Account.objects.select_for_update().get(user="ann")
            claimed = pool.submit(claim)
            self.assertTrue(writing.wait(10))
            # Until the server has its statement.
            time.sleep(0.3)
            elsewhere(lambda: submit("second", user="ann", now=None))
        self.assertCountEqual(claimed.result(timeout=10), ["first", "other"])
        pool.shutdown()
        self.assertEqual(awake(), ["ann"])
        self.assertEqual(keys(acquire(10, now=None)), ["second"])

    def test_a_task_that_is_scheduled_wakes_nothing(self):
        submit(user="ann", run_at=60)
        self.assertFalse(Account.objects.exists())

    def test_one_that_has_been_due_for_long_is_found_by_its_time(self):
        submit("late", user="ann", run_at=after(-60))
        self.assertEqual(keys(acquire()), ["late"])

    def test_the_first_acquire_of_a_new_lane_is_one_transaction(self):
        submit(user="bob", now=None)
        submit(user="ann", now=None)
        with CaptureQueriesContext(connection) as queries:
            self.assertEqual(len(acquire(2, now=None)), 2)
        self.assertLessEqual(len(statements(queries)), 8)
        self.assertEqual(sum(query["sql"].startswith("COMMIT") for query in queries), 1)

    def test_a_claim_charges_lanes_and_puts_them_to_sleep_by_one_statement(self):
        """On MySQL and MariaDB it would wait for what others have yet to commit."""
        for user in ("ann", "bob"):
            submit(user=user, now=None)
        with CaptureQueriesContext(connection) as queries:
            self.assertEqual(len(acquire(10, now=None)), 2)
        self.assertEqual(awake(), [])
        written = [sql for sql in statements(queries) if 'UPDATE "perfectqueue_account"' in sql]
        expected = {"sqlite": 1, "postgresql": 1}.get(connection.vendor, len(written))
        self.assertEqual(len(written), expected)

    def test_where_the_lane_is_awake_a_submit_writes_nothing_more(self):
        submit(user="ann", now=None)
        with CaptureQueriesContext(connection) as queries:
            submit(user="ann", now=None)
        sent = statements(queries)
        self.assertNotRegex("; ".join(sent), r"(INTO|UPDATE) .perfectqueue_account")
        self.assertEqual(len(sent), {"sqlite": 2, "mysql": 2, "postgresql": 1}[connection.vendor])


class InATransactionTests(TestCase):
    """Nothing is ever committed here, so no hook runs."""

    def test_an_acquire_wakes_the_lanes_first(self):
        submit("k1", user="ann")
        submit("k2", user="bob")
        self.assertCountEqual(keys(acquire(2)), ["k1", "k2"])

    def test_however_many_they_are(self):
        for number in range(3):
            submit(f"k{number}", user=f"user-{number}")
        with mock.patch("django_perfectqueue.store.upkeep.timers.BATCH", 2):
            self.assertEqual(len(acquire(5)), 3)

    def test_what_was_rolled_back_is_none(self):
        with transaction.atomic():
            submit(user="ann")
            transaction.set_rollback(True)
        self.assertEqual(acquire(), [])
        self.assertFalse(Account.objects.exists())


class MissedTests(TransactionTestCase):
    """The program that has submitted died before it woke the lane."""

    def setUp(self):
        self.addCleanup(idle_marks.rounds.clear)
        self.assertEqual(acquire(now=None), [])

    def submit_and_die(self):
        with mock.patch.object(ring.PendingNotification, "__call__"):
            submit("late", user="ann", now=None)
        self.assertFalse(Account.objects.filter(has_waiting=True).exists())

    def test_an_acquire_finds_it_within_seconds(self):
        self.submit_and_die()

        self.assertEqual(acquire(now=None), [])
        with later(idle_marks.INTERVAL):
            self.assertEqual(keys(acquire(now=None)), ["late"])

    def test_the_janitor_finds_it(self):
        self.submit_and_die()

        self.assertEqual(store.upkeep.wake_forgotten_lanes(using="default"), 1)
        self.assertEqual(keys(acquire(now=None)), ["late"])

    def test_a_task_that_is_deleted_before_its_lane_is_woken_wakes_none(self):
        def deleted(*given):
            self.assertEqual(len(given[-1]), 1)
            Queue().clear()
            return waking.owners_of(*given)

        for wake in (
            lambda: store.upkeep.wake_forgotten_lanes(using="default"),
            lambda: len(acquire(now=None)),
        ):
            self.submit_and_die()
            with (
                later(idle_marks.INTERVAL),
                mock.patch.object(timers, "owners_of", deleted),
            ):
                self.assertEqual(wake(), 0)
            self.assertEqual(Ticket.objects.count(), 0)

    def test_so_does_the_next_submit_of_this_user(self):
        self.submit_and_die()
        submit("next", user="ann", now=None)

        self.assertEqual(keys(acquire(2, now=None)), ["late", "next"])

    def test_who_can_not_wake_it_goes_on(self):
        with mock.patch(
            "django_perfectqueue.store.tasks.submit.wake_sleeping", side_effect=RuntimeError
        ):
            submit("late", user="ann", now=None)
        self.assertTrue(Ticket.objects.exists())

    def test_the_longer_a_look_takes_the_more_seldom_it_is(self):
        rounds = idle_marks.Rounds(5.0)
        self.assertTrue(rounds.are_due())
        rounds.began(idle_marks.time.monotonic() - 1.0)
        with later(99):
            self.assertFalse(rounds.are_due())
        with later(101):
            self.assertTrue(rounds.are_due())


class HeldBackTests(TransactionTestCase):
    """However many users are kept from being served, nobody else reads past them."""

    def setUp(self):
        self.addCleanup(forget)

    def rows_of_an_empty_acquire(self):
        self.assertEqual(acquire(now=None), [])
        refresh()
        with transaction.atomic(), Meter().on() as meter:
            expect_large_tables()
            self.assertEqual(acquire(now=None), [])
        self.worst = meter.worst()
        return meter.rows

    def beside(self, add):
        """Return what an empty acquire reads beside few of something, and beside many."""
        add(range(FEW))
        few = self.rows_of_an_empty_acquire()
        add(range(FEW, MANY))
        return few, self.rows_of_an_empty_acquire()

    def submit(self, users, each=1):
        Queue().submit_many(
            {"key": f"{user}-{number}", "type": "report", "user": f"user{user}"}
            for number in range(each)
            for user in users
        )

    def test_an_acquire_of_nothing_reads_no_more_with_many_paused_users(self):
        set_share("*", paused=True)

        few, many = self.beside(self.submit)

        self.assertEqual(Account.objects.filter(paused=True, has_waiting=True).count(), MANY)
        self.assertLessEqual(many, few + FEW * UNIT[connection.vendor], self.worst)

    def test_nor_with_many_users_at_their_cap(self):
        set_share("*", max_running=1)

        def add(users):
            self.submit(users, each=2)
            while acquire(1000, now=None):
                pass

        few, many = self.beside(add)

        self.assertEqual(Account.objects.filter(running=1, has_waiting=True).count(), MANY)
        self.assertLessEqual(many, few + FEW * UNIT[connection.vendor], self.worst)
