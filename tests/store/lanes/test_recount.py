"""Counters of what runs are compared with the tickets, and corrected."""

import sys
import threading
from unittest import mock

from django.db import connection, connections
from django.db.models import F
from django.test import TestCase, TransactionTestCase
from django.test.utils import CaptureQueriesContext

from django_perfectqueue import store
from django_perfectqueue.fairness.limits import set_limit
from django_perfectqueue.fairness.shares import set_share
from django_perfectqueue.models import Account, Meter, Ticket
from tests.factories import acquire, after, assert_books_balance, finish, submit
from tests.waiting import wait_until

SCANS = (
    (store.upkeep.recount_accounts, store.upkeep.FIRST_ID),
    (store.upkeep.recount_meters, ""),
)


def recount():
    """Compare all counters, and return what was corrected."""
    corrected = []
    for some, first in SCANS:
        after = first
        while after is not None:
            after, found = some(after, using="default")
            corrected += found
    return corrected


class RecountTests(TestCase):
    def setUp(self):
        set_share("ann", max_running=2)
        set_limit("narrow", max_running=2)
        for number in range(4):
            submit(f"ann{number}", user="ann")
            submit(f"bob{number}", user="bob", limits=["narrow", "wide"])
        self.held = acquire(9)
        submit("eve", user="eve")
        self.assertEqual(len(self.held), 4)

    def test_what_is_right_is_left_alone(self):
        with CaptureQueriesContext(connection) as queries:
            self.assertEqual(recount(), [])
        self.assertFalse([query for query in queries if "UPDATE" in query["sql"]])

    def test_a_lane_is_corrected_and_its_cap_holds_again(self):
        for drift in (-2, 1, 5):
            with self.subTest(drift):
                Account.objects.filter(user="ann").update(running=F("running") + drift)
                [found] = recount()

                self.assertIn(f"user='ann' counted={2 + drift} running=2", found)
                assert_books_balance(self)
                self.assertEqual([lease.user for lease in acquire(9)], ["eve"][: drift == -2])
                self.assertEqual(recount(), [])

    def test_the_lanes_behind_gates_follow_their_account(self):
        Account.objects.filter(user="bob").update(running=7)
        [found] = recount()
        self.assertIn("counted=7 running=2", found)
        assert_books_balance(self)

    def test_a_meter_is_corrected_and_its_limit_holds_again(self):
        for drift in (-2, 1):
            with self.subTest(drift):
                Meter.objects.update(running=F("running") + drift)
                found = recount()

                self.assertTrue(any("limit='name:narrow'" in one for one in found), found)
                assert_books_balance(self)
                self.assertNotIn("bob", [lease.user for lease in acquire(9)])
                self.assertEqual(recount(), [])

    def test_what_has_ended_since_is_counted_no_more(self):
        finish(*self.held)
        Account.objects.update(running=3)
        Meter.objects.update(running=3)
        recount()
        self.assertFalse(Account.objects.exclude(running=0).exists())
        self.assertFalse(Meter.objects.exclude(running=0).exists())
        self.assertEqual(len(acquire(9, now=after(1))), 5)

    def test_it_goes_on_where_it_stopped_and_begins_anew(self):
        Account.objects.update(running=9)
        Meter.objects.update(running=9)
        drift = sys.modules["django_perfectqueue.store.upkeep.drift"]
        with mock.patch.object(drift, "BATCH", 1):
            corrected = recount()
        self.assertEqual(len(corrected), Account.objects.count() + Meter.objects.count())
        assert_books_balance(self)


class WhileTheyWorkTests(TransactionTestCase):
    def test_it_finds_nothing_while_others_take_and_finish(self):
        """Both the counter and the tickets are of one moment."""
        set_limit("narrow", max_running=5)
        stop, errors = threading.Event(), []

        def work():
            try:
                while not stop.is_set():
                    for lease in acquire(3, now=None):
                        finish(lease, now=None)
            except Exception as error:
                errors.append(error)
            finally:
                connections.close_all()

        for number in range(300):
            limits = ["narrow"] if number % 2 else []
            submit(f"k{number}", user=f"user{number % 3}", limits=limits, now=None)
        threads = [threading.Thread(target=work) for _number in range(3)]
        for thread in threads:
            thread.start()
        corrected = []

        def are_done():
            corrected.extend(recount())
            return errors or not Ticket.objects.exists()

        try:
            wait_until(are_done)
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        self.assertEqual((corrected, errors), ([], []))
        assert_books_balance(self)
