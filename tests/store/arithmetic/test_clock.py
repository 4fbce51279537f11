"""The virtual clock of a queue, and the order of equals."""

from collections import Counter

from django.test import TestCase, override_settings, tag

from django_perfectqueue import store
from django_perfectqueue.fairness.limits import set_limit
from django_perfectqueue.models import Account, FairShare, Ticket
from django_perfectqueue.store.lanes.accounts import LAST
from django_perfectqueue.store.tasks.close import Loss
from django_perfectqueue.store.values import new_holder

from ...factories import (
    LEASE,
    NOON,
    acquire,
    after,
    completion,
    finish,
    finish_and_acquire,
    running,
    submit,
    submit_many,
)


class OneProcessor:
    """A processor on a clock that is counted: it runs one task after the other."""

    def __init__(self):
        self.holder, self.now, self.done = new_holder(), 0.0, []
        self.got, self.order = Counter(), []

    def run(self, seconds, *, begun=lambda lease: None, end=lambda lease, took, now: False):
        """
        Run the next task, for as long as a function of its user says; return its user.

        It finishes, unless it has been ended by ``end``, which returns True then.
        """
        [lease], _refused = finish_and_acquire(self.done, now=after(self.now), holder=self.holder)
        begun(lease)
        took = seconds(lease.user)
        self.now += took
        self.got[lease.user] += took
        self.order.append(lease.user)
        ended = end(lease, took, after(self.now))
        self.done = [] if ended else [completion(lease, seconds=took)]
        return lease.user


def crash(lease, took, now):
    """End a task of a newcomer by the death of its processor."""
    if lease.user == "long":
        return False
    loss = Loss(crashed={lease.task_id}, seconds={lease.task_id: took})
    store.upkeep.give_back(lease.holder, using="default", alive_time=LEASE, loss=loss, now=now)
    return True


def lapse(lease, took, now):
    """End a task of a newcomer by the end of its lease."""
    if lease.user == "long":
        return False
    Ticket.objects.filter(pk=lease.task_id).update(timer_at=now)
    return True


def force(lease, took, now):
    """End a task of a newcomer from outside."""
    if lease.user == "long":
        return False
    store.force_finish([lease.task_id], using="default", now=now)
    return True


class NewcomersTests(TestCase):
    def assert_share(self, user, part, *, others=4, runs=160, each=0.05, submit=submit, **how):
        """
        Assert which part of the time a user with a backlog gets beside others who have one
        task each, at every moment so many; when one of these ends, the next one comes.
        """
        processor, comes = OneProcessor(), iter(range(10_000))
        submit_many(runs, user=user)
        processor.run(lambda user: 0.3)

        def come():
            submit(user=f"newcomer-{next(comes)}", now=after(processor.now))

        for _ in range(others):
            come()
        for _ in range(runs):
            if processor.run(lambda whose: 0.3 if whose == user else each, **how) != user:
                come()
        self.assertAlmostEqual(processor.got[user] / processor.now / part, 1.0, delta=0.2)

    def test_a_backlog_is_not_passed_by_users_who_keep_coming(self):
        """Each of these has a place of its own, which no other has paid for."""
        self.assert_share("long", 1 / 5)

    @tag("any-database")
    def test_its_weight_counts_beside_them(self):
        FairShare.objects.create(user="long", weight=3.0)
        self.assert_share("long", 3 / 7)

    @tag("any-database")
    def test_newcomers_of_a_small_weight_get_a_small_share(self):
        FairShare.objects.create(user="long", weight=1.0)
        FairShare.objects.create(user="*", weight=0.1)
        self.assert_share("long", 1 / 1.4)

    @tag("any-database")
    def test_tasks_without_a_user_are_not_passed_either(self):
        self.assert_share("", 1 / 5)

    @override_settings(PERFECTQUEUE={"MAX_CRASHES": 1})
    def test_newcomers_whose_tasks_crash_pass_nobody_either(self):
        """Service moves the clock however it ends."""
        self.assert_share("long", 1 / 5, each=0.3, end=crash)

    @tag("any-database")
    @override_settings(PERFECTQUEUE={"MAX_CRASHES": 1})
    def test_nor_do_newcomers_whose_leases_run_out(self):
        self.assert_share("long", 1 / 5, each=0.3, end=lapse)

    @tag("any-database")
    def test_nor_do_newcomers_whose_tasks_are_closed_from_outside(self):
        self.assert_share("long", 1 / 5, each=0.3, end=force)

    @tag("any-database")
    def test_nor_do_newcomers_of_whom_each_has_a_limit_of_its_own(self):
        """Behind no gate has anyone been served before."""

        def submit_limited(user, now):
            set_limit(user, max_running=1)
            submit(user=user, limits=[user], now=now)

        self.assert_share("long", 1 / 5, submit=submit_limited)


class EqualsTests(TestCase):
    def test_of_newcomers_the_one_goes_first_that_has_been_due_longest(self):
        users = [f"user-{number}" for number in range(12)]
        for number, user in enumerate(users):
            submit(user=user, now=after(number))
        processor = OneProcessor()
        processor.now = 20.0
        for _ in users:
            processor.run(lambda user: 1.0)

        self.assertEqual(processor.order, users)

    @override_settings(PERFECTQUEUE={"POLICY": "slots"})
    def test_by_slots_users_of_one_weight_take_turns(self):
        """One processor finds no slot taken, so all are equal each time."""
        users = [f"user-{number}" for number in range(6)]
        for number, user in enumerate(users):
            submit_many(20, user=user, now=after(0.1 * number))
        processor = OneProcessor()
        processor.now = 1.0
        for _ in range(60):
            processor.run(lambda user: 1.0)

        self.assertEqual(processor.order, users * 10)

    @override_settings(PERFECTQUEUE={"POLICY": "slots"})
    def test_a_time_in_the_past_passes_no_one(self):
        """Else who gives the earliest time would be served first for ever."""
        submit(user="honest", now=after(0))
        submit(user="other", run_at=after(-86_400), expected_at=after(-86_400), now=after(1))
        processor = OneProcessor()
        processor.now = 2.0
        processor.run(lambda user: 1.0)

        self.assertEqual(processor.order, ["honest"])


class ClockTests(TestCase):
    def test_who_comes_when_nobody_waits_begins_where_the_last_ones_have_come(self):
        """What the last ones have had more than was expected counts for newcomers, too."""
        for seconds in (1.0, 1.0, 100.0):
            finish(*running(user="ann")[1:], seconds=seconds)
        Account.objects.update(has_waiting=False)
        running(user="bob")

        self.assertGreater(Account.objects.get(user="bob").virtual_time, 100.0)

    def test_a_task_that_nobody_has_tried_does_not_move_the_clock(self):
        """Else who prefetches and dies would make newcomers pay for what nobody had."""
        finish(*running(user="ann")[1:], seconds=10.0)
        before = Account.objects.get().finish_tag
        holder = new_holder()
        submit_many(3, user="ann")
        acquire(3, holder=holder)
        store.upkeep.give_back(holder, using="default", alive_time=LEASE, loss=Loss(), now=NOON)

        self.assertEqual(Account.objects.get().finish_tag, before)

    def test_of_many_users_whose_tasks_end_together_the_last_ones_give_the_time(self):
        for number in range(2 * LAST):
            submit(user=f"user-{number}")
        leases = acquire(2 * LAST)
        tags = sorted(lease.finish_tag for lease in leases)
        finish(*leases, seconds=1.0)

        written = Account.objects.exclude(finish_tag=0.0).values_list("finish_tag", flat=True)
        self.assertEqual(sorted(written), tags[-LAST:])

    def test_a_new_lane_of_a_small_weight_takes_its_place_by_what_tasks_usually_cost(self):
        finish(*running(user="ann")[1:], seconds=10.0)
        FairShare.objects.create(user="small", weight=0.1)
        for user in ("ann", "small", "bob"):
            submit(user=user)

        self.assertEqual([lease.user for lease in acquire(3)], ["bob", "ann", "small"])

    def test_a_task_that_turns_out_long_is_charged_to_its_user_only(self):
        """Others who come start where those are that wait, and not behind a surprise."""
        submit_many(20, user="ann")
        submit_many(20, user="bob")
        processor = OneProcessor()
        for _ in range(4):
            processor.run(lambda user: 1.0)
        submit(user="surprise", now=after(processor.now))
        while processor.run(lambda user: 1000.0 if user == "surprise" else 1.0) != "surprise":
            pass
        submit(user="carl", now=after(processor.now))
        for _ in range(4):
            processor.run(lambda user: 1.0)

        self.assertIn("carl", processor.order[-4:])
        lanes = dict(Account.objects.values_list("user", "virtual_time"))
        self.assertLess(lanes["carl"], 20.0)
