"""What one claim takes when its first look at the lanes was not enough."""

from django.test import TestCase

from django_perfectqueue import store
from django_perfectqueue.fairness.limits import set_limit
from django_perfectqueue.fairness.shares import set_share
from django_perfectqueue.models import Account

from ...factories import (
    acquire,
    after,
    assert_books_balance,
    completion,
    finish,
    finish_and_acquire,
    running,
    submit,
    submit_many,
)


def awake_but_empty(user, **columns):
    """Have a lane that ran dry just as a batch was full, and so has to be looked at again."""
    submit(user=user)
    finish(*acquire())
    Account.objects.filter(user=user).update(**columns)


class RoundsTests(TestCase):
    def users(self, limit, **options):
        held = acquire(limit, **options)
        assert_books_balance(self)
        return sorted(lease.user for lease in held)

    def test_a_cap_counts_what_the_claim_itself_has_taken_in_other_lanes_of_its_user(self):
        """The first round serves two of the three lanes; the second must not serve the third."""
        set_share("capped", max_running=2)
        awake_but_empty("empty", virtual_time=50.0, cost=1.0)
        for name in ("a", "b"):
            set_limit(name, max_running=9)
            submit_many(3, user="capped", limits=[name])
        submit_many(3, user="capped")

        self.assertEqual(self.users(3), ["capped"] * 2)

    def test_a_serial_batch_takes_of_a_capped_lane_once(self):
        """It leaves the room for others, who could run the tasks at the same time."""
        set_share("capped", max_running=8)
        awake_but_empty("empty")
        submit_many(8, user="capped")

        self.assertEqual(self.users(3, serial=True), ["capped"] * 2)

    def test_a_serial_batch_ends_where_a_capped_lane_would_be_next(self):
        """What comes later waits, so that the next claim may serve the capped lane again."""
        set_share("capped", max_running=8)
        awake_but_empty("empty", virtual_time=1.5, cost=1.0)
        for user, virtual_time in (("capped", 0.0), ("later", 3.0)):
            submit_many(8, user=user)
            store.upkeep.wake_forgotten_lanes(using="default")
            Account.objects.filter(user=user).update(virtual_time=virtual_time, cost=1.0)

        self.assertEqual(self.users(8, serial=True), ["capped"] * 2)

    def test_the_last_lane_that_is_left_is_put_to_sleep_where_others_were_looked_at(self):
        awake_but_empty("empty", cost=1.0)
        submit(user="last")

        self.assertEqual(self.users(2), ["last"])
        self.assertEqual(set(Account.objects.values_list("has_waiting", flat=True)), {False})

    def test_a_new_lane_is_charged_what_this_claim_has_just_measured(self):
        """Else the first batch of a new user costs next to nothing, however long it takes."""
        finish(*running(user="known")[1:], seconds=10.0)
        _task, held = running(user="known")
        # Asleep, so that its cost is not known by its row.
        Account.objects.update(has_waiting=False)
        submit(user="new", now=after(1))

        [new], _refused = finish_and_acquire([completion(held, seconds=10.0)], now=after(1))
        self.assertAlmostEqual(new.charge, 10.0)
