"""What a claim takes for a processor that is kept for short tasks."""

from django.test import TransactionTestCase

from django_perfectqueue import store
from django_perfectqueue.fairness import set_limit, set_share
from django_perfectqueue.models import Account

from ...factories import NOON, acquire, after, finish, submit, submit_many

SHORT = (0.0, 1.0)
TRIED = (-1.0, 1.0)


class HeadroomTests(TransactionTestCase):
    def measured(self, **costs):
        """Have a user of each name whose tasks take so many seconds."""
        for user, seconds in costs.items():
            submit(user=user)
            finish(*acquire(), seconds=seconds)

    def users(self, limit=1, **terms):
        return [lease.user for lease in acquire(limit, costs=SHORT, **terms)]

    def test_it_takes_no_task_of_a_user_whose_tasks_are_long(self):
        self.measured(long=60.0, light=0.2)
        submit_many(3, user="long")
        submit_many(2, user="light")
        self.assertEqual(self.users(5), ["light", "light"])
        self.assertEqual(self.users(5), [])
        self.assertEqual({lease.user for lease in acquire(5)}, {"long"})

    def test_one_of_many_lanes_behind_long_ones_is_found(self):
        self.measured(**{f"long-{number}": 2.0 for number in range(12)}, light=0.9)
        for number in range(12):
            submit(user=f"long-{number}")
        submit(user="light")
        Account.objects.filter(user="light").update(virtual_time=100.0)
        self.assertEqual(self.users(), ["light"])

    def test_an_unmeasured_user_is_taken_only_where_it_may_be_tried(self):
        submit(user="new")
        self.assertEqual(self.users(), [])
        [lease] = acquire(costs=TRIED)
        self.assertEqual(lease.user, "new")

    def test_it_takes_no_more_of_a_user_one_of_whose_tasks_takes_longer_than_expected(self):
        self.measured(light=0.2, other=0.2)
        submit_many(2, user="light")
        light = Account.objects.get(user="light").pk
        self.assertEqual(self.users(5, overrun={light: 1}), [])
        submit(user="other")
        self.assertEqual(self.users(5, overrun={light: 1}), ["other"])

    def test_the_user_is_first_who_was_served_longest_ago(self):
        """Not the one with the least time: that might be had without end."""
        self.measured(one=0.2, two=0.2)
        submit_many(3, user="one")
        submit_many(3, user="two")
        store.upkeep.wake_forgotten_lanes(using="default")
        Account.objects.filter(user="one").update(virtual_time=1000.0)
        Account.objects.filter(user="two").update(since=after(1))
        found = []
        for seconds in range(10, 14):
            [lease] = acquire(costs=SHORT, now=after(seconds))
            finish(lease, now=after(seconds), seconds=0.2)
            found.append(lease.user)
        self.assertEqual(found, ["one", "two", "one", "two"])

    def test_what_it_takes_is_charged_and_leaves_the_clock_alone(self):
        self.measured(light=0.2, long=60.0)
        submit(user="long")
        before = Account.objects.get(user="light")
        for _task in range(3):
            submit(user="light")
            [lease] = acquire(costs=SHORT)
            finish(lease, seconds=0.2)
        after_all = Account.objects.get(user="light")
        self.assertGreater(after_all.virtual_time, before.virtual_time + 0.5)
        self.assertEqual(after_all.finish_tag, before.finish_tag)

    def test_caps_hold(self):
        self.measured(light=0.2)
        set_share("light", max_running=1)
        submit_many(3, user="light")
        self.assertEqual(self.users(3), ["light"])
        self.assertEqual(self.users(3), [])

    def test_limits_hold_and_long_tasks_behind_them_are_left(self):
        self.measured(long=60.0, light=0.2)
        set_limit("api", max_running=2)
        for user in ("long", "light", "long", "light"):
            submit(user=user, limits=["api"])
        self.assertEqual(self.users(5), ["light", "light"])
        self.assertEqual(self.users(5), [])
        self.assertEqual(acquire(5), [])

    def test_a_look_sees_what_it_may_take(self):
        self.measured(long=60.0, light=0.2)
        submit(user="long")
        store.upkeep.wake_forgotten_lanes(using="default")

        def is_due(costs):
            return store.look(["default"], using="default", now=NOON, costs=costs).due

        self.assertTrue(is_due(None))
        self.assertFalse(is_due(TRIED))
        submit(user="light")
        store.upkeep.wake_forgotten_lanes(using="default")
        self.assertTrue(is_due(SHORT))
