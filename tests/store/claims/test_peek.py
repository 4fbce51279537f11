from django.test import TransactionTestCase

from django_perfectqueue import store
from django_perfectqueue.models import Account, FairShare

from ...factories import NOON, acquire, after, finish, running, submit


def look(*queues, now=NOON):
    return store.look(queues or ("default",), using="default", now=now)


class LookTests(TransactionTestCase):
    def test_where_there_is_nothing_nothing_is_due(self):
        self.assertEqual(look(), store.Outlook(due=False, wait=None))

    def test_a_task_that_waits_is_due(self):
        submit()
        self.assertTrue(look().due)
        store.upkeep.wake_forgotten_lanes(using="default")
        self.assertEqual(look(), store.Outlook(due=True, wait=None))

    def test_a_task_of_another_queue_is_not(self):
        submit()
        store.upkeep.wake_forgotten_lanes(using="default")
        self.assertFalse(look("other", "third").due)
        self.assertTrue(look("other", "default").due)

    def test_the_next_that_is_scheduled_is_reported_in_seconds(self):
        submit(run_at=60.0)
        submit(run_at=30.0)
        self.assertEqual(look(), store.Outlook(due=False, wait=30.0))
        self.assertTrue(look(now=after(30)).due)

    def test_it_goes_by_the_clock_of_the_server(self):
        submit(run_at=60.0, now=None)
        outlook = look(now=None)
        self.assertFalse(outlook.due)
        self.assertAlmostEqual(outlook.wait, 60.0, delta=10.0)

    def test_a_ready_lane_without_tasks_is_not_due(self):
        _task, lease = running()
        self.assertTrue(Account.objects.get().ready)
        self.assertFalse(look().due)
        finish(lease)
        self.assertFalse(look().due)

    def test_a_user_who_is_paused_has_nothing_due(self):
        FairShare.objects.create(user="ann", paused=True)
        submit(user="ann")
        self.assertEqual(acquire(), [])
        self.assertEqual(look(), store.Outlook(due=False, wait=None))

    def test_it_is_one_statement_and_no_transaction(self):
        submit()
        look()
        with self.assertNumQueries(1):
            look("default", "other")

    def test_more_lanes_than_can_be_probed_are_worth_a_look(self):
        lanes = [Account(id=number, queue="default", user=str(number)) for number in range(501)]
        Account.objects.bulk_create(lanes[:500])
        self.assertFalse(look().due)
        Account.objects.bulk_create(lanes[500:])
        self.assertTrue(look().due)
