"""What a yield between two steps does to a task, whenever its process dies."""

import asyncio
import unittest
from contextlib import suppress
from datetime import timedelta

from django.db import transaction
from django.test import TransactionTestCase
from django.utils import timezone

import django_perfectqueue as pq
from django_perfectqueue import store
from django_perfectqueue.application import Application, handler
from django_perfectqueue.exceptions import PreemptedError, WaitInTransactionError
from django_perfectqueue.fairness import set_limit
from django_perfectqueue.models import Account, Attempt, Meter, Step, Ticket
from django_perfectqueue.queue import Queue
from django_perfectqueue.store.lanes.accounts import Accounts
from django_perfectqueue.store.tasks import settle

from ...deaths import run_and_die
from ...management.running import run
from ..runners import runner_for

SOON = timedelta(hours=1)


class AtOnce:
    """A worker in which the lane of others is first, so many times."""

    def __init__(self, times=1):
        self.times = times

    def __call__(self, task):
        if not (self.times and task.is_between_steps):
            return False
        self.times -= 1
        return True


class YieldTestCase(TransactionTestCase):
    def setUp(self):
        self.calls = []

    def two_steps(self, task):
        task.step("one", self.calls.append, 1)
        with suppress(Exception):
            task.step("two", self.calls.append, 2)
        return "done"

    def take(self, key="k1", **options):
        Queue().submit(key, "report", on_conflict="ignore", **options)
        return self.again()

    def again(self, **options):
        task = Queue().poll(**options)
        self.assertIsNotNone(task, "Nothing is due.")
        task.others_first = AtOnce()
        return task

    def perform(self, task, act=None):
        """Run a task; return the word for how that has ended."""
        runner = runner_for(act or self.two_steps)
        self.addCleanup(runner.wakeup.close)
        self.addCleanup(runner.event_loop.close)
        ending = runner.run(task)
        if ending.completion is not None:
            store.finish([ending.completion], using="default")
        return ending.word

    def goes_on(self, **options):
        """Run it to its end: no step has run twice."""
        self.assertEqual(self.perform(self.again(**options)), "finished")
        self.assertEqual(self.calls, [1, 2])


class YieldTests(YieldTestCase):
    def test_it_goes_back_uncounted_with_its_steps_and_goes_on(self):
        task = self.take(user="ann")
        self.assertEqual(self.perform(task), "yielded")
        ticket, lane = Ticket.objects.get(), Account.objects.get()
        self.assertEqual((ticket.errors, ticket.crashes, ticket.holder), (0, 0, None))
        self.assertEqual((lane.running, Attempt.objects.count()), (0, 0))
        # It was charged for what it ran: the cost is measured.
        self.assertGreater(lane.cost, 0)
        self.assertEqual(Step.objects.get().name, "one")
        said = "It has let the tasks of others go first between two of its steps."
        self.assertIn(said, run("pq_task", "show", "k1"))

        self.assertEqual(self.perform(self.again()), "finished")
        self.assertEqual(self.calls, [1, 2])
        self.assertFalse(Attempt.objects.exists())

    def test_it_is_at_the_head_of_its_line(self):
        task = self.take("k1")
        Queue().submit("k2", "report")
        self.perform(task)
        self.assertEqual(self.again().key, "k1")

    def test_errors_before_it_still_count(self):
        self.take().retry(0)
        self.perform(self.again())
        task = self.again()
        self.assertEqual((task.attempt, task.lease.errors), (2, 1))

    def test_each_attempt_makes_progress_before_it_yields(self):
        self.assertEqual(self.perform(self.take()), "yielded")
        task = self.again()
        task.others_first = AtOnce(times=9)
        self.assertEqual(self.perform(task), "finished")

    def test_a_cancel_request_that_arrives_meanwhile_cancels_it(self):
        task = self.take()

        def cancelled(task):
            task.step("one", self.calls.append, 1)
            Queue()["k1"].cancel_request()
            task.step("two", self.calls.append, 2)

        self.assertEqual(self.perform(task, cancelled), "cancelled")
        self.assertEqual(Queue()["k1"].metadata().status, "cancelled")

    def test_a_cancel_request_after_it_cancels_it(self):
        self.perform(self.take())
        Queue()["k1"].cancel_request()
        self.assertEqual(Queue()["k1"].metadata().status, "cancelled")

    def test_the_old_holder_can_not_yield_what_another_has(self):
        frozen = self.take()
        frozen.step("one", self.calls.append, 1)
        Queue().poll(now=timezone.now() + SOON)
        before = Ticket.objects.values().get()
        self.assertEqual(self.perform(frozen, self.only_two), "preempted")
        with self.assertRaises(PreemptedError):
            frozen._end(store.Ending.give_way())
        self.assertEqual(Ticket.objects.values().get(), before)

    def only_two(self, task):
        task.step("two", self.calls.append, 2)

    def test_what_has_begun_does_not_expire(self):
        task = self.take(expires_at=timezone.now() + SOON / 2)
        self.perform(task)
        late = timezone.now() + SOON
        self.assertNotEqual(Queue()["k1"].why_waiting(now=late).code, "expired")
        self.goes_on(now=late)

    def test_a_limit_is_left_and_taken_again_and_a_rate_counts_one_start(self):
        set_limit("api", max_running=1, rate=2, period=3600)
        Queue().submit("k1", "report", limits=["api"], user="ann")
        task = self.again()
        self.perform(task)
        self.assertEqual(Meter.objects.get().running, 0)
        self.perform(self.again())
        self.assertEqual(self.calls, [1, 2])
        Queue().submit("k2", "report", limits=["api"], user="bob")
        self.assertEqual(self.again().key, "k2")

    def test_a_batch_goes_on_with_it(self):
        with Queue().batch("b") as batch:
            batch.submit("k1", "report")
        self.perform(self.again())
        self.goes_on()
        self.assertEqual(batch.progress().finished, 1)

    def beside(self, seconds):
        """
        Return the only task of a user that runs, with so many seconds charged in advance, beside
        whom two others come.
        """
        task = self.take(user="ann")
        task.lease = task.lease._replace(charge=seconds, finish_tag=seconds)
        Queue().submit("k2", "report", user="ann")
        Account.objects.update(virtual_time=seconds, cost=seconds, advance=seconds)
        for user in "bob", "carl":
            Queue().submit(user, "report", user=user)
        return task

    def test_what_is_given_back_of_its_charge_puts_it_before_nobody_who_waits(self):
        self.perform(self.beside(60.0))
        self.assertLess(Account.objects.get(user="ann").virtual_time, 1.0)
        self.assertEqual([Queue().poll().key for _n in range(3)], ["bob", "carl", "k1"])

    def test_what_was_not_begun_puts_it_before_nobody_who_waits(self):
        """As a batch that goes back for the tasks of others."""
        task = self.beside(60.0)
        store.settle([task.lease], store.Ending.release(), using="default")
        self.assertEqual([Queue().poll().key for _n in range(3)], ["bob", "carl", "k1"])

    def test_what_has_ended_early_puts_it_before_nobody_who_waits(self):
        task = self.beside(60.0)
        task.finish()
        self.assertEqual([Queue().poll().key for _n in range(2)], ["bob", "carl"])

    def test_who_comes_is_behind_nobody_who_ended_last_of_several(self):
        """The tags of its tasks are further than it has come with all of them."""
        for key in "k1", "k2", "k3", "k4":
            Queue().submit(key, "report", user="ann")
        leases = [self.again().lease for _n in range(4)]
        Account.objects.update(virtual_time=240.0, cost=60.0, advance=240.0)
        for number, lease in enumerate(leases, 1):
            lease = lease._replace(charge=60.0, finish_tag=60.0 * number)
            store.settle([lease], store.Ending.release(), using="default", seconds=1.0)
        Queue().submit("bob", "report", user="bob")
        ann, bob = Account.objects.order_by("user")
        self.assertAlmostEqual(ann.virtual_time, 4.0)
        self.assertLessEqual(bob.virtual_time, ann.virtual_time)


class NeverTests(YieldTestCase):
    """Where an exception would undo something, nothing yields."""

    def test_an_atomic_handler(self):
        two_steps = self.two_steps

        class Atomic(Application):
            atomic = True

            def perform(self):
                two_steps(self.task)
                self.task.yield_()

        with self.assertLogs("django_perfectqueue.runner", "WARNING"):
            self.assertEqual(self.perform(self.take(), Atomic), "retried")
        self.assertIn("WaitInTransactionError", Attempt.objects.get().error)
        self.assertEqual(self.calls, [1, 2])

    def test_a_transaction_of_the_handlers(self):
        def perform(task):
            with transaction.atomic():
                self.two_steps(task)
            with transaction.atomic(), self.assertRaises(WaitInTransactionError):
                task.yield_()

        self.assertEqual(self.perform(self.take(), perform), "finished")

    def test_a_step_within_a_step(self):
        def perform(task):
            task.step("one", self.calls.append, 1)
            task.others_first = AtOnce(times=9)
            task.step("outer", task.step, "inner", self.calls.append, 2)

        task = self.take()
        task.others_first = None
        self.assertEqual(self.perform(task, perform), "yielded")
        self.assertEqual(self.calls, [1])

    def test_a_program_without_a_worker(self):
        task = Queue().submit("k1", "report") and Queue().poll()
        task.yield_()
        pq.yield_()
        self.two_steps(task)
        self.assertEqual(self.calls, [1, 2])

    def test_steps_side_by_side_end_before_it(self):
        async def perform(task):
            await task.astep("one", self.calls.append, 1)
            task.others_first = AtOnce(times=9)
            names = ("two", "three")
            await asyncio.gather(*[task.astep(one, self.calls.append, one) for one in names])

        perform = handler("side-by-side")(perform)
        task = self.take()
        task.others_first = None
        self.assertEqual(self.perform(task, perform), "yielded")
        self.assertEqual(self.calls, [1])

    @unittest.skipUnless(hasattr(asyncio, "TaskGroup"), "Python 3.11 has task groups.")
    def test_steps_in_a_task_group(self):
        async def perform(task):
            await task.astep("one", self.calls.append, 1)
            async with asyncio.TaskGroup() as group:
                group.create_task(task.astep("two", self.calls.append, 2))
                group.create_task(asyncio.sleep(9))

        self.assertEqual(self.perform(self.take(), handler("group")(perform)), "yielded")
        self.assertEqual((self.calls, Attempt.objects.count()), ([1], 0))


class DeathTests(YieldTestCase):
    """The process is killed at each point of a yield."""

    def die(self, where, name, *, before):
        Queue().submit("k1", "report")
        task = Queue().poll()
        task.others_first = AtOnce()
        run_and_die(lambda: self.perform(task), where, name, before=before)
        self.assertEqual(Step.objects.get().name, "one")
        task = Queue().poll(now=timezone.now() + SOON)  # The lease has run out by then.
        counted = task.lease.errors, task.lease.crashes
        self.calls.append(1)  # In the child.
        self.assertEqual(self.perform(task), "finished")
        self.assertEqual(self.calls, [1, 2])
        return counted

    def test_before_it_is_written(self):
        """That is a crash like any other, and no attempt."""
        self.assertEqual(self.die(settle, "lock_leases", before=True), (0, 1))

    def test_before_it_is_committed(self):
        self.assertEqual(self.die(Accounts, "write", before=False), (0, 1))

    def test_after_it_is_committed(self):
        self.assertEqual(self.die(settle, "notify_workers", before=True), (0, 0))

    def test_after_its_notification(self):
        self.assertEqual(self.die(store, "settle", before=False), (0, 0))
