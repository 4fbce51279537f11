"""The shortest way to a lone task."""

from unittest import skipUnless

from django.db import connection
from django.test import TransactionTestCase
from django.test.utils import CaptureQueriesContext

from django_perfectqueue import store
from django_perfectqueue.models import FairShare, Lane, Task
from tests.factories import (
    LEASE,
    NOON,
    acquire,
    after,
    assert_books_balance,
    finish,
    submit,
    submit_many,
)


def take(limit=1, *, queue="default", now=NOON):
    return store.take_alone(
        queue, limit=limit, alive_time=LEASE, holder=store.new_holder(), using="default", now=now
    )


class ElsewhereTests(TransactionTestCase):
    def test_it_takes_nothing_where_it_would_need_several_statements(self):
        if connection.vendor == "postgresql":
            return
        submit()
        acquire(0)
        self.assertEqual(take(), [])


@skipUnless(connection.vendor == "postgresql", "Others need several statements.")
class AloneTests(TransactionTestCase):
    def setUp(self):
        submit("first", user="ann")
        finish(*acquire())

    def test_it_is_one_statement_and_leases_as_acquire_does(self):
        submit_many(3, user="ann")
        submit("first-of-all", user="ann", priority=9)
        with CaptureQueriesContext(connection) as queries:
            held = take(2)

        self.assertEqual(len(queries), 1)
        self.assertEqual(len(held), 2)
        self.assertEqual(held[0].key, "first-of-all")
        self.assertEqual({(lease.attempt, lease.user) for lease in held}, {(1, "ann")})
        assert_books_balance(self)
        self.assertEqual(finish(*held), [])
        assert_books_balance(self)

    def test_the_lane_is_charged_as_by_acquire(self):
        submit_many(2, user="ann")
        before = Lane.objects.get()
        [held] = take()
        lane = Lane.objects.get()

        self.assertAlmostEqual(lane.virtual_time - before.virtual_time, held.charge)
        self.assertEqual((lane.running, held.charge), (1, before.cost))

    def test_nothing_is_taken_while_an_alarm_rings(self):
        submit(user="ann", run_at=60)
        submit("now", user="ann")

        self.assertEqual(take(now=after(61)), [])
        self.assertEqual(len(take(now=after(1))), 1)

    def test_nothing_is_taken_while_two_lanes_compete(self):
        submit(user="ann")
        submit(user="bob")
        store.wake_forgotten_lanes(using="default")

        self.assertEqual(take(9), [])

    def test_nothing_is_taken_from_a_lane_with_a_cap(self):
        FairShare.objects.create(user="ann", max_running=1)
        store.apply_shares("ann", using="default")
        submit_many(3, user="ann")

        self.assertEqual(take(9), [])

    def test_nothing_is_taken_from_another_queue(self):
        submit(queue="other", user="ann")

        self.assertEqual(take(9), [])

    def test_what_comes_too_late_is_ended(self):
        submit("late", user="ann", expires_at=5)

        self.assertEqual(take(now=after(6)), [])
        self.assertEqual(Task.objects.get(key="late").status, "expired")
        assert_books_balance(self)

    def test_the_session_commits_as_before(self):
        """Only what may be lost as a whole goes without waiting for the disk."""
        submit_many(3, user="ann")
        with connection.cursor() as cursor:
            cursor.execute("SET synchronous_commit TO on")
            self.addCleanup(connection.close)
            for act in (take, acquire, lambda: finish(*acquire(1))):
                act()
                cursor.execute("SHOW synchronous_commit")
                self.assertEqual(cursor.fetchone(), ("on",))
