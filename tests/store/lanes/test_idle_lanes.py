"""Lanes, holds and meters of strings that nobody uses any more go; none that is needed does."""

import random
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from django.db import connection
from django.test import TestCase, TransactionTestCase, skipUnlessDBFeature, tag

from django_perfectqueue import store
from django_perfectqueue.fairness.limits import remove_limit, set_limit
from django_perfectqueue.fairness.shares import set_share
from django_perfectqueue.models import Account, FairShare, Hold, Lane, Meter, State, Ticket
from tests.factories import acquire, after, assert_books_balance, finish, keys, submit

USING = {"using": "default"}


def sweep(**terms):
    """Go through all of them once, as the janitor does within an hour, but a day later."""
    terms = terms or {"now": after(86_400)}
    for forget, first in (
        (store.upkeep.forget_holds, store.upkeep.FIRST_ID),
        (partial(store.upkeep.forget_lanes, **terms), store.upkeep.FIRST_ID),
        # An account goes after its lanes.
        (partial(store.upkeep.forget_lanes, **terms), store.upkeep.FIRST_ID),
        (store.upkeep.forget_meters, ""),
    ):
        reached = first
        while reached is not None:
            reached = forget(reached, limit=3, **USING)


def run_all(**terms):
    """Take and finish all there is, until all lanes sleep."""
    while leases := acquire(10, **terms):
        finish(*leases)
    Account.objects.filter(running=0).update(has_waiting=False)
    Lane.objects.filter(account__in=Account.objects.filter(running=0).values("pk")).update(
        has_waiting=False
    )


class IdleTests(TestCase):
    def test_a_lane_stays_that_was_served_lately(self):
        """Who has seen it open just before may count tasks in it just after."""
        submit(user="ann", now=after(0))
        run_all(now=after(0))
        sweep(now=after(60))
        self.assertTrue(Account.objects.exists())

    def test_a_lane_stays_that_was_found_empty_lately(self):
        """It may have been open for hours since it was served, and others have just seen it."""
        for user in ("ann", "bob"):
            submit(user=user, now=after(0))
        finish(*acquire(2, now=after(0)))
        self.assertEqual(Account.objects.filter(has_waiting=True).count(), 2)
        acquire(now=after(7_200))
        self.assertFalse(Account.objects.filter(has_waiting=True).exists())
        sweep(now=after(7_260))
        self.assertEqual(Account.objects.count(), 2)

    def test_nothing_is_left_of_users_and_names_that_have_gone(self):
        for number in range(10):
            set_limit(f"tenant-{number}", max_running=1)
            submit(user=f"user-{number}", limits=[f"tenant-{number}"])
        run_all()
        self.assertEqual((Account.objects.count(), Lane.objects.count()), (10, 10))
        sweep()
        counts = [model.objects.count() for model in (Account, Lane, Hold, Meter)]
        self.assertEqual(counts, [0, 0, 0, 0])
        submit("again", user="user-1", limits=["tenant-1"])
        self.assertEqual(keys(acquire(10)), ["again"])
        assert_books_balance(self)

    def test_what_is_in_use_stays(self):
        set_limit("smtp", max_running=1)
        submit("runs", user="ann", limits=["smtp"])
        submit("waits", user="ann", limits=["smtp"])
        submit("free", user="bob")
        self.assertEqual(len(acquire(10)), 2)
        before = rows()
        sweep()
        self.assertEqual(rows(), before)
        self.assertEqual((Hold.objects.count(), Meter.objects.count()), (1, 1))
        self.assertEqual(Meter.objects.get().running, 1)

    def test_a_task_that_is_scheduled_finds_a_lane_when_it_is_due(self):
        set_share("ann", weight=3.0)
        submit("now", user="ann")
        run_all()
        submit("later", user="ann", run_at=after(100))
        sweep()
        self.assertFalse(Account.objects.exists())
        self.assertEqual(keys(acquire(now=after(101))), ["later"])
        self.assertEqual(Account.objects.get().weight, 3.0)

    def test_who_is_ahead_of_others_that_compete_keeps_its_account(self):
        users = [f"user-{number}" for number in range(12)]
        for user in users:
            submit(user=user)
        run_all()
        submit("waits", user="other")
        store.upkeep.wake_forgotten_lanes(**USING)
        Account.objects.filter(user=users[0]).update(virtual_time=1000.0, finish_tag=0.0)
        Account.objects.filter(user=users[1]).update(virtual_time=0.0, finish_tag=0.0)
        Account.objects.filter(user=users[2]).update(virtual_time=1.0, finish_tag=1.0)
        clock = Account.objects.latest("finish_tag")
        sweep()
        left = set(Account.objects.values_list("user", flat=True))
        self.assertLessEqual({users[0], "other", clock.user}, left)
        self.assertNotIn(users[1], left)

    def test_a_rate_that_is_ahead_keeps_its_meter(self):
        set_limit("api", rate=1, period=3600)
        submit(limits=["api"], now=None)
        leases = acquire(now=None)
        finish(*leases, now=None)
        sweep()
        self.assertEqual(Meter.objects.count(), 1)
        remove_limit("api")

    def test_a_lane_with_another_share_than_it_should_have_is_corrected(self):
        submit(user="ann")
        acquire()
        FairShare.objects.bulk_create([FairShare(user="ann", weight=4.0)])
        sweep()
        self.assertEqual(Account.objects.get().weight, 4.0)


class AnyTimeTests(TransactionTestCase):
    """Between any two acts of others, rows that seem idle may go; nothing is lost by it."""

    def test_random_work_is_done_however_often_it_is_swept(self):
        chance = random.Random(7)
        set_limit("a", max_running=2)
        set_limit("b", rate=1000, period=1)
        stored = done = 0
        held = []
        for _step in range(120):
            act = chance.choice(["submit", "acquire", "finish", "sweep"])
            if act == "submit":
                names = chance.sample(["a", "b", "c"], chance.randint(0, 3))
                submit(user=f"user-{chance.randint(1, 3)}", limits=names, now=None)
                stored += 1
            elif act == "acquire":
                held += acquire(chance.randint(1, 3), now=None)
            elif act == "finish" and held:
                finish(held.pop(), now=None)
                done += 1
            else:
                Account.objects.filter(running=0).exclude(pk__in=waiting_lanes()).update(
                    has_waiting=False
                )
                idle = Account.objects.filter(running=0).values("pk")
                lanes = Lane.objects.filter(account__in=idle)
                lanes.exclude(pk__in=waiting_lanes()).update(has_waiting=False)
                sweep()
        for _round in range(50):
            held += acquire(10, now=None)
            done += len(held)
            finish(*held, now=None)
            held = []
        self.assertEqual(done, stored)
        assert_books_balance(self)


@skipUnlessDBFeature("has_select_for_update_skip_locked")
class AtOnceTests(TransactionTestCase):
    """Submitters, processors and a sweep, all at once."""

    seconds = 3.0

    @tag("thorough")
    def test_nothing_is_lost_and_the_books_balance(self):
        set_limit("a", max_running=3)
        set_limit("b", max_running=2)
        set_share("*", weight=2.0)
        self.until = time.monotonic() + self.seconds
        with ThreadPoolExecutor(6) as pool:
            acts = [self.submits] * 2 + [self.works] * 2 + [self.sweeps] * 2
            results = [pool.submit(self.alone, act, seed) for seed, act in enumerate(acts)]
            counts = [result.result() for result in results]
        stored, done = sum(counts[:2]), sum(counts[2:4])
        while leases := acquire(50, now=None) or (
            store.upkeep.wake_forgotten_lanes(**USING) and acquire(50, now=None)
        ):
            finish(*leases, now=None)
            done += len(leases)
        self.assertEqual(done, stored)
        self.assertFalse(Ticket.objects.exists())
        assert_books_balance(self)
        sweep()
        self.assertEqual(set(Account.objects.values_list("weight", flat=True)) - {2.0}, set())

    def alone(self, act, seed):
        try:
            return act(random.Random(seed))
        finally:
            connection.close()

    def submits(self, chance):
        count = 0
        while time.monotonic() < self.until:
            names = chance.sample(["a", "b", "c"], chance.randint(0, 2))
            submit(user=f"user-{chance.randint(1, 20)}", limits=names, now=None)
            count += 1
            time.sleep(chance.choice([0.0, 0.0, 0.01, 0.05]))
        return count

    def works(self, chance):
        done = 0
        while time.monotonic() < self.until:
            leases = acquire(chance.randint(1, 20), now=None)
            finish(*leases, now=None)
            done += len(leases)
        return done

    def sweeps(self, chance):
        while time.monotonic() < self.until:
            sweep(idle=0.5)
        return 0


def rows():
    return {row.pk for model in (Account, Lane) for row in model.objects.all()}


def waiting_lanes():
    return set(Ticket.objects.filter(state=State.WAITING).values_list("lane", flat=True))
