"""An acquire that the server has forgotten in a crash."""

from unittest import skipUnless

from django.db import connection, transaction
from django.test import TransactionTestCase

from django_perfectqueue import store
from django_perfectqueue.limits import set_limit
from django_perfectqueue.models import Lane, Task, Ticket
from django_perfectqueue.shares import set_share
from tests.factories import (
    NOON,
    acquire,
    after,
    assert_books_balance,
    completion,
    finish,
    retry,
    running,
    submit,
)


def forget(state=0):
    """Leave the rows as they were before the acquire."""
    Ticket.objects.update(state=state, attempt=0, holder=None, alarm_at=None)
    Lane.objects.update(running=0)


@skipUnless(connection.vendor == "postgresql", "Only there an acquire may be lost alone.")
class ForgottenTests(TransactionTestCase):
    def test_its_holder_may_still_finish(self):
        _task, held = running(now=None)
        forget()

        self.assertEqual(finish(held, now=None), [])
        self.assertEqual(Task.objects.get().status, "finished")
        self.assertEqual(acquire(now=None), [])
        assert_books_balance(self)

    def test_what_has_a_cap_is_not_forgotten(self):
        """Others would fill the cap while what was forgotten runs on."""
        self.configure("SET synchronous_commit = local")
        self.addCleanup(self.configure, "RESET synchronous_commit")
        set_share("ann", max_running=2)
        set_limit("narrow", max_running=2)
        for number, (user, limits) in enumerate([("ann", []), ("bob", ["narrow"]), ("bob", [])]):
            submit(f"k{number}", user=user, limits=limits, now=None)
        waits = []

        def note(execute, sql, *rest):
            result = execute(sql, *rest)
            if sql.startswith("SET LOCAL"):
                with connection.cursor().cursor as cursor:
                    cursor.execute("SHOW synchronous_commit")
                    waits.append(cursor.fetchone()[0])
            return result

        with connection.execute_wrapper(note):
            taken = [acquire(1, now=None) for _time in range(3)]
        self.assertEqual([len(leases) for leases in taken], [1, 1, 1])
        self.assertEqual([one.capped for [one] in taken], [True, True, False])
        self.assertEqual(waits, ["local", "local"])

    def configure(self, setting):
        """Change what connections have by default; the tests' server has it off."""
        with connection.cursor() as cursor:
            cursor.execute(f"ALTER ROLE CURRENT_USER {setting}")
        connection.close()

    def test_its_holder_may_still_finish_with_the_next_acquire(self):
        _task, held = running(now=None)
        submit("next", now=None)
        forget()
        refused = []

        taken = acquire(9, now=None, finished=[completion(held)], refused=refused)

        self.assertEqual((refused, [lease.key for lease in taken]), ([], ["next"]))

    def test_a_heartbeat_takes_it_back(self):
        _task, held = running(now=None)
        forget()

        [pulse] = store.heartbeat([held], using="default", alive_time=60)

        self.assertTrue(pulse.held)
        self.assertEqual(acquire(now=None), [])
        self.assertEqual(finish(held, now=None), [])
        assert_books_balance(self)

    def test_one_that_was_due_only_then_is_taken_back_as_well(self):
        _task, held = running(now=None)
        forget(state=1)
        Ticket.objects.update(alarm_at=NOON)

        self.assertEqual(finish(held, now=None), [])

    def test_who_has_taken_it_since_keeps_it(self):
        _task, held = running(now=None)
        forget()
        [other] = acquire(now=None)

        self.assertEqual(len(finish(held, now=None)), 1)
        self.assertEqual(finish(other, now=None), [])
        assert_books_balance(self)

    def test_what_was_given_back_is_not_taken_again(self):
        _task, held = running()
        retry(held)
        self.assertEqual(len(finish(held, now=after(1))), 1)

        [again] = acquire(now=after(2))
        store.release([again], using="default", now=after(2))
        self.assertEqual(len(finish(again, now=after(3))), 1)
        assert_books_balance(self)


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
        self.act_without_autocommit(lambda: store.answer_alarms(using="default"))

    def test_a_finish_does_with_the_acquires_that_follow_it(self):
        self.act_without_autocommit(lambda: acquire(now=None, finished=[completion(self.held)]))

    def test_an_atomic_block_is_left_as_it_was(self):
        with transaction.atomic(), transaction.atomic():
            acquire(9, now=None)
            self.assert_durable()
