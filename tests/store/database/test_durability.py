"""What an acquire may leave to the disk, and what it may not."""

from unittest import skipUnless

from django.db import connection, transaction
from django.test import TransactionTestCase

from django_perfectqueue import store
from django_perfectqueue.fairness.limits import set_limit
from django_perfectqueue.fairness.shares import set_share
from tests.factories import acquire, completion, finish_and_acquire, submit


@skipUnless(connection.vendor == "postgresql", "Only there an acquire may be lost alone.")
class CappedTests(TransactionTestCase):
    def test_what_has_a_cap_is_not_forgotten(self):
        """Others would fill the cap while what was forgotten runs on."""
        self.configure("SET synchronous_commit = local")
        self.addCleanup(self.configure, "RESET synchronous_commit")
        set_share("ann", max_running=2)
        set_limit("narrow", max_running=2)
        for number, (user, limits) in enumerate([("ann", []), ("bob", ["narrow"]), ("bob", [])]):
            submit(f"k{number}", user=user, limits=limits, now=None)
        taken = [self.acquire_and_look() for _time in range(3)]
        self.assertEqual([one.capped for one, _on_disk in taken], [True, True, False])
        self.assertEqual([on_disk for one, on_disk in taken if one.capped], [True, True])

    def acquire_and_look(self):
        """Acquire a task; return it, and whether all that this has written is on the disk."""
        written = []

        def note(execute, *given):
            result = execute(*given)
            with connection.cursor().cursor as cursor:
                cursor.execute("SELECT pg_current_wal_insert_lsn()")
                written[:] = cursor.fetchone()
            return result

        with connection.execute_wrapper(note):
            [lease] = acquire(1, now=None)
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_current_wal_flush_lsn() >= %s", written)
            return lease, cursor.fetchone()[0]

    def configure(self, setting):
        """Change what connections have by default; the tests' server has it off."""
        with connection.cursor() as cursor:
            cursor.execute(f"ALTER ROLE CURRENT_USER {setting}")
        connection.close()


@skipUnless(connection.vendor == "postgresql", "Only there a commit may not wait for the disk.")
class DurabilityTests(TransactionTestCase):
    """What the caller writes in a transaction of its own is as durable as the caller has it."""

    def setUp(self):
        with connection.cursor() as cursor:
            cursor.execute("SET synchronous_commit TO on")
        self.addCleanup(connection.close)
        submit(user="ann", now=None)
        [self.held] = acquire(now=None)
        submit(user="ann", now=None)
        submit(user="bob", now=None)

    def assert_durable(self):
        with connection.cursor() as cursor:
            cursor.execute("SHOW synchronous_commit")
            self.assertEqual(cursor.fetchone(), ("on",))

    def act_without_autocommit(self, act):
        transaction.set_autocommit(False)
        try:
            act()
            self.assert_durable()
        finally:
            transaction.rollback()
            transaction.set_autocommit(True)

    def test_an_acquire_leaves_a_transaction_without_autocommit_as_it_was(self):
        self.act_without_autocommit(lambda: acquire(9, now=None))

    def test_an_alarm_that_is_answered_does(self):
        self.act_without_autocommit(lambda: store.schedules.fire_due_timers(using="default"))

    def test_a_finish_does_with_the_acquires_that_follow_it(self):
        self.act_without_autocommit(lambda: finish_and_acquire([completion(self.held)], now=None))

    def test_an_atomic_block_is_left_as_it_was(self):
        with transaction.atomic(), transaction.atomic():
            acquire(9, now=None)
            self.assert_durable()
