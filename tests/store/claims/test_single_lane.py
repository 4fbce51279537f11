"""The shortest way to a lone task."""

from unittest import skipUnless

from django.db import connection, connections, transaction
from django.test import TransactionTestCase
from django.test.utils import CaptureQueriesContext

from django_perfectqueue import store
from django_perfectqueue.models import Account, FairShare, Task
from django_perfectqueue.store.lanes.apply import apply_shares
from django_perfectqueue.store.values import ClaimRequest, new_holder
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

from ...worker.statements import in_packet

TICKETS = "perfectqueue_ticket"
STATEMENTS = {"postgresql": 1, "mysql": 2, "sqlite": 3}


def take(limit=1, *, queue="default", now=NOON):
    whose = {"alive_time": LEASE, "holder": new_holder(), "using": "default"}
    return store.take_alone(ClaimRequest(queues=[queue], limit=limit, now=now, **whose))


class AloneTests(TransactionTestCase):
    def setUp(self):
        submit("first", user="ann")
        finish(*acquire())

    def test_it_is_few_statements_and_leases_as_acquire_does(self):
        submit_many(3, user="ann")
        submit("first-of-all", user="ann", priority=9)
        with CaptureQueriesContext(connection) as queries:
            held = take(2)

        sent = [one for query in queries for one in in_packet(query["sql"])]
        self.assertEqual(len(sent), STATEMENTS[connection.vendor])
        self.assertEqual(len(held), 2)
        self.assertEqual(held[0].key, "first-of-all")
        self.assertEqual({(lease.attempt, lease.user) for lease in held}, {(1, "ann")})
        assert_books_balance(self)
        self.assertEqual(finish(*held), [])
        assert_books_balance(self)

    def test_the_lane_is_charged_as_by_acquire(self):
        submit_many(2, user="ann")
        before = Account.objects.get()
        [held] = take()
        lane = Account.objects.get()

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
        store.upkeep.wake_forgotten_lanes(using="default")

        self.assertEqual(take(9), [])

    def test_nothing_is_taken_from_a_lane_with_a_cap(self):
        FairShare.objects.create(user="ann", max_running=1)
        apply_shares("ann", using="default")
        submit_many(3, user="ann")

        self.assertEqual(take(9), [])

    def test_no_ticket_is_locked_but_those_that_are_taken(self):
        self.require_row_locks()
        submit_many(5, user="ann")
        with transaction.atomic():
            [held] = take()
            with self.other.cursor() as cursor:
                cursor.execute(f"SELECT task_id FROM {TICKETS} FOR UPDATE SKIP LOCKED")
                free = {task_id for (task_id,) in cursor.fetchall()}

        self.assertEqual(len(free), 4)
        self.assertNotIn(held.task_id, free)

    def test_what_another_has_locked_is_passed_over(self):
        self.require_row_locks()
        submit_many(3, user="ann")
        first = Task.objects.order_by("id").exclude(key="first").first()
        self.other.set_autocommit(False)
        with self.other.cursor() as cursor:
            cursor.execute(
                f"SELECT task_id FROM {TICKETS} WHERE task_id = %s FOR UPDATE", [first.pk]
            )
        held = take(9)
        self.other.rollback()

        self.assertEqual(len(held), 2)
        self.assertNotIn(first.pk, {lease.task_id for lease in held})
        assert_books_balance(self)

    def require_row_locks(self):
        if not connection.features.has_select_for_update_skip_locked:
            self.skipTest("This database has a single writer.")
        self.other = connections.create_connection("default")
        self.addCleanup(self.other.close)

    def test_nothing_is_taken_from_another_queue(self):
        submit(queue="other", user="ann")

        self.assertEqual(take(9), [])

    def test_what_comes_too_late_is_ended(self):
        submit("late", user="ann", expires_at=5)

        self.assertEqual(take(now=after(6)), [])
        self.assertEqual(Task.objects.get(key="late").status, "expired")
        assert_books_balance(self)

    @skipUnless(connection.vendor == "postgresql", "Others commit in one way.")
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
