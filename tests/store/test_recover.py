"""An acquire that the server has forgotten in a crash."""

from unittest import skipUnless

from django.db import connection
from django.test import TransactionTestCase

from django_perfectqueue import store
from django_perfectqueue.models import Lane, Task, Ticket
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
