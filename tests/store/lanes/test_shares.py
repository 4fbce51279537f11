import threading
from unittest import mock, skipUnless

from django.db import connection
from django.test import TransactionTestCase

from django_perfectqueue.exceptions import InvalidTaskError
from django_perfectqueue.fairness.limits import set_limit
from django_perfectqueue.models import Account, FairShare
from django_perfectqueue.queue import Queue
from django_perfectqueue.store.lanes import apply, shares, wake
from tests.factories import acquire, submit


def lanes(**conditions):
    """Return what each user's lane carries."""
    rows = Account.objects.filter(**conditions).order_by("user")
    return {lane.user: (lane.weight, lane.max_running, lane.paused) for lane in rows}


class DefaultTests(TransactionTestCase):
    """The share of everyone is that of all who have none of their own."""

    def setUp(self):
        for user in ("ann", "bob", None):
            submit(user=user)
        acquire(3)

    def test_it_reaches_every_lane_without_a_share_of_its_own(self):
        FairShare.objects.create(user="ann", weight=3)

        FairShare.objects.create(user="*", weight=2, max_running=4)

        self.assertEqual(
            lanes(), {"": (2, 4, False), "ann": (3, None, False), "bob": (2, 4, False)}
        )

    def test_a_lane_that_is_new_has_it(self):
        FairShare.objects.create(user="*", weight=2)

        submit(user="carl")
        acquire()

        self.assertEqual(lanes()["carl"], (2, None, False))

    def test_the_nearest_of_four_places_holds(self):
        """
        A user's own goes before everyone's, and that of a queue before that of every queue.
        """
        places = [("*", ""), ("*", "default"), ("ann", ""), ("ann", "default")]
        for weight, (user, queue) in enumerate(places, 2):
            with self.subTest(user=user, queue=queue):
                FairShare.objects.create(user=user, queue=queue, weight=weight)
                self.assertEqual(lanes()["ann"][0], weight)
        self.assertEqual(lanes()["bob"][0], 3)

    def test_who_loses_a_share_has_that_of_everyone(self):
        FairShare.objects.create(user="*", weight=2)
        own = FairShare.objects.create(user="ann", weight=3, paused=True)

        own.delete()

        self.assertEqual(lanes()["ann"], (2, None, False))

    def test_when_it_is_taken_away_all_are_equals(self):
        share = FairShare.objects.create(user="*", weight=2, paused=True)
        self.assertEqual(lanes()["bob"], (2, None, True))

        share.delete()

        self.assertEqual(set(lanes().values()), {(1, None, False)})

    def test_it_holds_in_one_queue_only(self):
        submit(user="ann", queue="reports")
        acquire(queues=["reports"])

        FairShare.objects.create(user="*", queue="reports", weight=2)

        self.assertEqual(lanes(queue="reports"), {"ann": (2, None, False)})
        self.assertEqual(lanes(queue="default")["ann"], (1, None, False))

    def test_a_pause_of_everyone_stops_all_but_those_with_a_share_of_their_own(self):
        FairShare.objects.create(user="ann")
        FairShare.objects.create(user="*", paused=True)
        for user in ("ann", "bob"):
            submit(user=user)

        self.assertEqual([lease.user for lease in acquire(5)], ["ann"])

    def test_many_lanes_are_reached_in_short_transactions(self):
        for number in range(7):
            submit(user=f"user{number}")
        acquire(7)

        with mock.patch.object(apply, "BATCH", 3):
            FairShare.objects.create(user="*", weight=2)

        self.assertEqual({weight for weight, _cap, _paused in lanes().values()}, {2})

    def test_a_lane_that_was_shut_has_saved_no_credit(self):
        Account.objects.filter(user="ann").update(virtual_time=50.0)
        Account.objects.filter(user="").update(virtual_time=60.0)
        Account.objects.filter(user="bob").update(virtual_time=1.0, paused=True)

        FairShare.objects.create(user="*", weight=2)

        times = dict(Account.objects.values_list("user", "virtual_time"))
        self.assertEqual(times["ann"], 50.0)
        # Without what is expected of the task that runs for her.
        self.assertAlmostEqual(times["bob"], 50.0, delta=0.01)

    def test_no_task_runs_for_a_user_of_that_name(self):
        with self.assertRaisesMessage(InvalidTaskError, "No user can be called '*'"):
            Queue().submit("k", "report", user="*")


class MeanwhileTests(TransactionTestCase):
    @skipUnless(connection.vendor != "sqlite", "SQLite lets no one write meanwhile.")
    def test_a_lane_that_is_made_while_it_is_edited_has_it_in_the_end(self):
        """
        The edit can't see the new lane, and the lane is made from the share as it was.
        """
        set_limit("api", max_running=5)
        for user, edited in (("ann", "*"), ("bob", "bob")):
            with self.subTest(edited):
                self.make_while_edited(user, edited, weight=len(user + edited))
                made = lanes(user=user)
                self.assertEqual(made, {user: (len(user + edited), None, False)})

    def make_while_edited(self, user, share, weight):
        edited = threading.Event()

        def edit():
            try:
                FairShare.objects.create(user=share, weight=weight)
            finally:
                connection.close()
                edited.set()

        def look_again(cursor, made):
            threading.Thread(target=edit).start()
            self.assertTrue(edited.wait(30))
            shares.look_again(cursor, made)

        with mock.patch.object(wake, "look_again", look_again):
            # Behind limits a lane is made in a transaction: nobody sees it before the commit.
            Queue().submit(f"of-{user}", "report", user=user, limits=["api"])
