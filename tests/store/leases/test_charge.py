"""A task that takes longer than expected is charged while it runs, and in all for what it ran."""

import threading
from datetime import timedelta

from django.db import connection, transaction
from django.test import TestCase, TransactionTestCase, skipUnlessDBFeature

from django_perfectqueue import store
from django_perfectqueue.fairness.limits import set_limit
from django_perfectqueue.models import Account, Ticket
from django_perfectqueue.store.tasks.close import Loss
from tests.factories import (
    LEASE,
    NOON,
    acquire,
    after,
    assert_books_balance,
    completion,
    finish,
    finish_and_acquire,
    running,
    settle,
    submit,
)

EXPECTED = 0.01
WHY = store.Failure()


def charge(seconds, *leases):
    store.leases.charge(dict.fromkeys(leases, seconds), using="default", now=NOON)


def charged():
    """Return the virtual time of the only account, its expected cost, and its tickets' charges."""
    [lane] = Account.objects.all()
    tickets = Ticket.objects.order_by("pk").values_list("charged", flat=True)
    return round(lane.virtual_time, 6), round(lane.cost, 6), list(tickets)


def endings(lease):
    """Return each way in which a holder ends a task that has run for 5 s."""
    terms = {"using": "default", "now": NOON}
    return {
        "finish": lambda: finish(lease, seconds=5.0),
        "acquire": lambda: finish_and_acquire([completion(lease, seconds=5.0)]),
        "retry": lambda: settle(lease, store.Ending.retry(wait=1, why=WHY), seconds=5.0, **terms),
        "snooze": lambda: settle(lease, store.Ending.snooze(1), seconds=5.0, **terms),
        "fail": lambda: settle(lease, store.Ending.fail(why=WHY), seconds=5.0, **terms),
        "cancel": lambda: settle(lease, store.Ending.cancel(), seconds=5.0, **terms),
        "release": lambda: store.settle([lease], store.Ending.release(), seconds=5.0, **terms),
        "lost": lambda: give_back(lease, crashed=[lease.task_id], seconds={lease.task_id: 5.0}),
        "killed": lambda: give_back(lease, seconds={lease.task_id: 5.0}),
    }


def give_back(lease, **facts):
    loss = Loss(**facts)
    store.upkeep.give_back(lease.holder, using="default", alive_time=LEASE, loss=loss, now=NOON)


class ChargeTests(TestCase):
    def setUp(self):
        submit("before", user="ann")
        finish(*acquire(), seconds=EXPECTED)
        Account.objects.update(virtual_time=0.0)
        _task, self.lease = running("k", user="ann")
        self.assertEqual(charged(), (EXPECTED, EXPECTED, [None]))

    def test_it_is_charged_for_what_it_has_run(self):
        charge(1.0, self.lease)

        self.assertEqual(charged(), (1.0, 1.0, [1.0]))

    def test_what_is_repeated_charges_nothing_more(self):
        for seconds in (1.0, 1.0, 2.5):
            charge(seconds, self.lease)
            self.assertEqual(charged(), (seconds, seconds, [seconds]))

    def test_however_it_ends_it_is_charged_for_what_it_ran(self):
        for name, end in endings(self.lease).items():
            with self.subTest(name), transaction.atomic():
                charge(4.0, self.lease)
                end()
                virtual_time, _cost, tickets = charged()
                self.assertEqual(virtual_time, 5.0)
                self.assertIn(tickets, ([], [None]))
                assert_books_balance(self)
                transaction.set_rollback(True)

    def test_one_that_did_not_run_is_given_back_all(self):
        charge(4.0, self.lease)
        store.settle([self.lease], store.Ending.release(), using="default", now=NOON)

        self.assertEqual(charged()[0], 0.0)

    def test_where_nobody_knows_how_long_it_ran_it_is_not_charged_twice(self):
        """The host is gone: it keeps what it was charged while it ran."""
        charge(4.0, self.lease)
        held = acquire(now=after(LEASE + 1))

        self.assertEqual(held[0].key, "k")
        self.assertEqual(Ticket.objects.get().charged, None)
        self.assertEqual(charged()[0], 4.0 + held[0].charge)
        finish(*held, seconds=1.0)
        self.assertEqual(charged()[0], 5.0)
        assert_books_balance(self)

    def test_a_crash_moves_the_clock_by_what_was_given(self):
        """Newcomers whose tasks crash would else pass those who wait for ever."""
        charge(4.0, self.lease)
        give_back(self.lease, crashed=[self.lease.task_id])

        self.assertEqual(Account.objects.get().finish_tag, 4.0)

    def test_who_has_lost_the_lease_charges_nothing(self):
        [other] = acquire(now=after(LEASE + 1))
        before = charged()
        charge(4.0, self.lease)

        self.assertEqual(charged(), before)
        self.assertEqual(finish(other, seconds=EXPECTED), [])

    def test_who_has_ended_the_task_charges_nothing(self):
        finish(self.lease, seconds=1.0)
        before = charged()
        charge(4.0, self.lease)

        self.assertEqual(charged(), before)

    def test_the_next_tasks_are_expected_to_take_as_long_and_then_less_again(self):
        charge(4.0, self.lease)
        submit(user="ann"), submit(user="ann")
        [long] = acquire()
        self.assertEqual(long.charge, 4.0)

        finish(long, seconds=EXPECTED)
        self.assertAlmostEqual(Account.objects.get().cost, 4.0 * 0.75 + EXPECTED * 0.25)
        charge(0.2, acquire()[0])
        self.assertGreater(Account.objects.get().cost, 2.0)

    def test_a_lane_that_was_never_measured_is_known_then(self):
        Account.objects.update(cost=-0.002)
        charge(4.0, self.lease)

        self.assertEqual(Account.objects.get().cost, 4.0)

    def test_several_are_charged_at_once(self):
        _task, other = running("other", user="bob")
        charge(4.0, self.lease, other)

        self.assertEqual(set(Ticket.objects.values_list("charged", flat=True)), {4.0})
        for lane in Account.objects.all():
            self.assertAlmostEqual(lane.virtual_time, 4.0, delta=EXPECTED)

    def test_who_comes_takes_its_place_where_long_tasks_have_come_beside_short_ones(self):
        """The short ones were charged less than is expected since the long ones run."""
        for long in range(1, 4):
            with self.subTest(long=long), transaction.atomic():
                for _n in range(8):
                    submit(user="ann")
                charge(60.0, *acquire(7)[:long])
                for user in "bob", "carl":
                    submit(user=user)
                for lease, user in zip(acquire(2), ("bob", "carl"), strict=True):
                    self.assertEqual(lease.user, user)
                    self.assertAlmostEqual(lease.finish_tag - lease.charge, 60.0 * long, delta=1.0)
                transaction.set_rollback(True)

    def test_what_is_charged_in_advance_goes_with_the_tasks(self):
        """What a lost one was charged, nobody knows: it counts as the others."""
        for how, end in endings(self.lease).items():
            with self.subTest(how), transaction.atomic():
                charge(4.0, self.lease)
                for _n in range(3):
                    submit(user="ann")
                self.assertEqual([lease.charge for lease in acquire(3)], [4.0] * 3)
                self.assertAlmostEqual(Account.objects.get().advance, EXPECTED + 12.0)
                end()
                left = (EXPECTED + 12.0) * 3 / 4 if how in {"lost", "killed"} else 12.0
                self.assertAlmostEqual(Account.objects.get().advance, left)
                transaction.set_rollback(True)

    def test_behind_a_limit_the_account_of_the_user_is_charged(self):
        set_limit("smtp", max_running=5)
        submit("behind", user="ann", limits=["smtp"])
        [held] = acquire()
        charge(4.0, held)
        self.assertEqual(charged()[:2], (EXPECTED + 4.0, 4.0))
        assert_books_balance(self)

        finish(held, seconds=5.0)
        self.assertEqual(charged()[0], EXPECTED + 5.0)
        assert_books_balance(self)


class RaceTests(TransactionTestCase):
    """One thread charges a task while another one ends it."""

    ROUNDS = 20

    def test_whoever_commits_first_it_is_charged_for_what_it_ran(self):
        for number in range(self.ROUNDS):
            queue = f"q{number}"
            submit(queue=queue)
            [lease] = acquire(queues=[queue])
            ready = threading.Barrier(2)

            def beside(lease=lease, ready=ready):
                ready.wait()
                charge(4.0, lease)
                connection.close()

            thread = threading.Thread(target=beside)
            thread.start()
            ready.wait()
            name = ("finish", "retry", "release")[number % 3]
            endings(lease)[name]()
            thread.join()
            self.assertAlmostEqual(Account.objects.get(queue=queue).virtual_time, 5.0)

    @skipUnlessDBFeature("has_select_for_update_skip_locked")
    def test_it_does_not_wait_for_a_transaction_that_ends_the_task(self):
        """The renewal of all other leases would wait behind it."""
        _task, lease = running("k", user="ann")
        with transaction.atomic():
            finish(lease, seconds=5.0)
            thread = threading.Thread(target=lambda: (charge(4.0, lease), connection.close()))
            thread.start()
            thread.join(timedelta(seconds=20).total_seconds())
            self.assertFalse(thread.is_alive())
        thread.join()
        self.assertEqual(charged()[0], 5.0)
