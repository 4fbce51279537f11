from unittest import mock

from django.db import connection
from django.test import TestCase
from django.test.utils import CaptureQueriesContext

from django_perfectqueue import store
from django_perfectqueue.fairness.limits import set_limit
from django_perfectqueue.fairness.shares import set_share
from django_perfectqueue.models import Account
from django_perfectqueue.store.claims import backlog_age

from ...factories import NOON, acquire, after, running, submit, submit_many


def oldest_due(queue="default", at=60):
    """Ask once the lanes are awake, as a janitor sees to it."""
    store.schedules.fire_due_timers(using="default", now=after(at))
    store.upkeep.wake_forgotten_lanes(using="default")
    return backlog_age.oldest_due([queue], using="default", now=after(at))[queue]


def overdue(at=60):
    return backlog_age.overdue(using="default", now=after(at))


class OldestTests(TestCase):
    def test_it_is_of_all_users_and_priorities(self):
        self.assertIsNone(oldest_due())
        submit(user="ann", now=after(30))
        self.assertEqual(oldest_due(), 30.0)
        submit(user="bob", now=after(20), priority=-3)
        submit(user="bob", now=after(40))
        submit(user="bob", now=after(50), priority=7)
        self.assertEqual(oldest_due(), 40.0)

    def test_it_is_of_one_queue(self):
        submit(queue="reports", now=NOON)
        self.assertIsNone(oldest_due())
        self.assertEqual(oldest_due("reports"), 60.0)

    def test_many_queues_cost_as_many_statements_as_one(self):
        names = [f"q{number}" for number in range(20)]
        set_limit("slow", max_running=5)
        for number, queue in enumerate(names):
            submit(queue=queue, now=after(number), limits=["slow"] if number % 2 else [])
        store.upkeep.wake_forgotten_lanes(using="default")
        with CaptureQueriesContext(connection) as queries:
            found = backlog_age.oldest_due(names, using="default", now=after(60))

        self.assertEqual(found, {f"q{number}": 60.0 - number for number in range(20)})
        self.assertLessEqual(len(queries), 4)

    def test_what_runs_and_what_is_for_later_is_none(self):
        running("k1")
        submit(run_at=after(50))
        self.assertIsNone(oldest_due(at=40))

    def test_what_is_held_back_is_none(self):
        set_limit("smtp", max_running=1)
        submit(user="ann", limits=["smtp"])
        self.assertEqual(oldest_due(), 60.0)
        set_limit("smtp", max_running=0)
        self.assertIsNone(oldest_due())
        submit(user="bob", now=after(30))
        self.assertEqual(oldest_due(), 30.0)
        with self.captureOnCommitCallbacks(execute=True):
            set_share("bob", paused=True)
        self.assertIsNone(oldest_due())

    def test_of_very_many_users_the_first_and_the_last_are_looked_at(self):
        for number, wait in enumerate((20, 50, 40, 10)):
            submit(user=f"user{number}", now=after(60 - wait))
        self.assertEqual(oldest_due(), 50.0)
        for number in range(4):
            Account.objects.filter(user=f"user{number}").update(virtual_time=float(number))
        with mock.patch.object(backlog_age, "LANES", 1):
            self.assertEqual(oldest_due(), 20.0)
        with mock.patch.object(backlog_age, "LANES", 2):
            self.assertEqual(oldest_due(), 50.0)

    def test_of_each_user_the_highest_and_the_lowest_priority_are_looked_at(self):
        for priority, wait in ((3, 10), (2, 40), (1, 30)):
            submit(priority=priority, now=after(60 - wait))
        self.assertEqual(oldest_due(), 30.0)


class OverdueTests(TestCase):
    def test_a_task_whose_time_has_come(self):
        submit(run_at=after(50))
        self.assertIsNone(overdue(at=40))
        self.assertEqual(overdue(at=60), 10.0)

    def test_a_lease_that_has_lapsed(self):
        submit_many(2)
        acquire(2, lease=45.0)
        self.assertIsNone(overdue(at=40))
        self.assertEqual(overdue(at=60), 15.0)
