"""What a wait does to an attempt, however its handler is written and whenever a process dies."""

import asyncio
import unittest
from contextlib import suppress
from datetime import timedelta

from django.db import transaction
from django.test import TransactionTestCase
from django.utils import timezone

from django_perfectqueue import signals, store
from django_perfectqueue.application import Application, handler
from django_perfectqueue.models import Attempt, DependencyEvent, Step, Ticket
from django_perfectqueue.queue import Queue
from django_perfectqueue.store.records import dependency_events
from django_perfectqueue.store.tasks import settle, steps

from ...deaths import run_and_die
from ..runners import runner_for

SOON = timedelta(hours=1)


class WaitTestCase(TransactionTestCase):
    def setUp(self):
        self.calls = []

    def workflow(self, task):
        task.step("one", self.calls.append, 1)
        answer = task.wait_for("approved")
        task.step("two", self.calls.append, 2)
        return answer

    def take(self, **options):
        Queue().submit("k1", "report", on_conflict="ignore", **options)
        return self.again()

    def again(self, **options):
        task = Queue().poll(**options)
        self.assertIsNotNone(task, "Nothing is due.")
        return task

    def perform(self, task, act=None):
        """Run a task; return the word for how that has ended."""
        runner = runner_for(act or self.workflow)
        self.addCleanup(runner.wakeup.close)
        self.addCleanup(runner.event_loop.close)
        self.ending = runner.run(task)
        if self.ending.completion is not None:
            store.finish([self.ending.completion], using="default")
        return self.ending.word

    def send(self, data="yes"):
        return Queue()["k1"].signal("approved", data)

    def goes_on(self, **options):
        """Run it to its end: no step has run twice."""
        self.assertEqual(self.perform(self.again(**options)), "finished")
        self.assertEqual(self.calls, [1, 2])


class WaitTests(WaitTestCase):
    def test_the_handler_is_left_before_its_attempt_ends(self):
        def perform(task):
            try:
                task.wait_for("approved")
            finally:
                self.calls.append(Ticket.objects.get().state)

        self.assertEqual(self.perform(self.take(), perform), "suspended")
        self.assertEqual((self.calls, self.ending.error), ([2], None))
        self.assertEqual(Ticket.objects.get().state, 3)

    def test_a_handler_that_catches_exceptions_does_not_catch_it(self):
        def perform(task):
            with suppress(Exception):
                task.sleep("nap", 60)

        self.assertEqual(self.perform(self.take(), perform), "suspended")

    def test_a_wait_in_a_step(self):
        def perform(task):
            return task.step("outer", task.wait_for, "approved")

        self.assertEqual(self.perform(self.take(), perform), "suspended")
        self.assertFalse(Step.objects.filter(kind=Step.Kind.STEP).exists())
        self.send()
        self.assertEqual(self.perform(self.again(), perform), "finished")
        self.assertEqual(Queue()["k1"].metadata().result, "yes")

    def test_one_that_does_not_settle_its_task_by_returning(self):
        class ByHand(Application):
            auto_finish = False

            def perform(self):
                self.task.finish(self.task.wait_for("approved"))

        self.assertEqual(self.perform(self.take(), ByHand), "suspended")
        self.send()
        self.assertEqual(self.perform(self.again(), ByHand), "finished")

    def test_an_atomic_handler(self):
        def perform(self):
            self.task.step("one", int)
            self.task.wait_for("approved")

        atomic = type("Atomic", (Application,), {"atomic": True, "perform": perform})
        with self.assertLogs("django_perfectqueue.runner", "WARNING"):
            self.assertEqual(self.perform(self.take(), atomic), "retried")
        self.assertIn("WaitInTransactionError", Attempt.objects.get().error)
        self.assertFalse(Step.objects.exists())

    def test_a_transaction_of_the_handlers(self):
        def perform(task):
            with transaction.atomic():
                task.sleep("nap", 60)

        with self.assertLogs("django_perfectqueue.runner", "WARNING"):
            self.assertEqual(self.perform(self.take(), perform), "retried")

    def test_waits_side_by_side(self):
        @handler("waits.side-by-side")
        async def perform(task):
            return await asyncio.gather(task.await_for("approved"), task.await_for("paid"))

        self.assertEqual(self.perform(self.take(), perform), "suspended")
        Queue()["k1"].signal("paid", 2)
        self.send(1)
        while self.perform(self.again(), perform) != "finished":
            pass
        self.assertEqual(Queue()["k1"].metadata().result, [1, 2])

    @unittest.skipUnless(hasattr(asyncio, "TaskGroup"), "Python 3.11 has task groups.")
    def test_in_a_task_group(self):
        async def perform(task):
            async with asyncio.TaskGroup() as group:
                group.create_task(task.await_for("approved"))
                group.create_task(asyncio.sleep(9))

        self.assertEqual(self.perform(self.take(), handler("waits.group")(perform)), "suspended")

    def test_no_signal_says_that_it_was_tried_again_or_failed(self):
        heard = []

        def receive(signal, **facts):
            heard.append(facts["key"])

        for one in (signals.task_retried, signals.task_failed, signals.task_released):
            one.connect(receive)
            self.addCleanup(one.disconnect, receive)
        self.perform(self.take())
        self.assertEqual(heard, [])

    def test_the_old_holder_does_not_wait_for_what_another_has(self):
        frozen = self.take()
        Queue().poll(now=timezone.now() + SOON)
        before = Ticket.objects.values().get()
        with self.assertLogs("django_perfectqueue.runner", "WARNING"):
            self.assertEqual(
                self.perform(frozen, lambda task: task.wait_for("approved")), "preempted"
            )
        self.assertEqual(Ticket.objects.values().get(), before)
        self.assertFalse(Step.objects.exists() or DependencyEvent.objects.exists())

    def test_by_hand_in_a_thread_of_the_handlers(self):
        """Its context does not name the task: it is settled there, and the handler left."""
        from concurrent.futures import ThreadPoolExecutor

        from django.db import connection

        def act(task):
            try:
                task.wait_for("approved")
            finally:
                connection.close()

        def perform(task):
            with ThreadPoolExecutor(1) as pool:
                pool.submit(act, task).result()

        with self.assertNoLogs("django_perfectqueue.runner", "ERROR"):
            self.assertEqual(self.perform(self.take(), perform), "suspended")
        self.assertEqual(Queue()["k1"].metadata().status, "blocked")


class DeathTests(WaitTestCase):
    """The processor is killed at each point of a wait."""

    def dies(self, where, name, *, before):
        """Return how many errors and crashes are counted when it has gone on to its end."""
        Queue().submit("k1", "report")

        def act():
            self.perform(Queue().poll())

        run_and_die(act, where, name, before=before)
        self.calls.append(1)  # In the child.
        self.send()
        if Queue()["k1"].metadata().status == "waiting":
            task = self.again()
        else:
            task = self.again(now=timezone.now() + SOON)  # The lease has run out by then.
        self.assertEqual(self.perform(task), "finished")
        self.assertEqual((self.calls, Queue()["k1"].metadata().result), ([1, 2], "yes"))
        return task.lease.errors, task.lease.crashes

    def test_before_it_is_written(self):
        """That is a crash like any other."""
        self.assertEqual(self.dies(settle, "lock_leases", before=True), (0, 1))

    def test_before_it_is_committed(self):
        self.assertEqual(self.dies(settle, "open_wait", before=False), (0, 1))

    def test_after_it_is_committed(self):
        self.assertEqual(self.dies(settle, "notify_workers", before=True), (0, 0))

    def test_after_its_event_was_acted_on(self):
        self.assertEqual(self.dies(dependency_events, "act", before=False), (0, 0))

    def test_after_the_wait_was_over_and_before_that_was_kept(self):
        self.perform(self.take(), lambda task: task.wait_for("approved", 60))
        late = timezone.now() + SOON

        def act():
            task.moment = late
            task.wait_for("approved", 60)

        task = self.again(now=late)
        run_and_die(act, steps, "keep")
        self.send()
        task = self.again(now=late + SOON)
        self.assertEqual(task.wait_for("approved", 60), "yes")


class SenderTests(WaitTestCase):
    """The program that sends a signal is killed."""

    def setUp(self):
        super().setUp()
        self.perform(self.take())

    def test_before_the_commit(self):
        run_and_die(self.send, steps, "note")
        self.assertFalse(DependencyEvent.objects.exists())
        self.assertEqual(Queue()["k1"].metadata().status, "blocked")
        self.assertTrue(self.send())
        self.goes_on()

    def test_after_the_commit(self):
        """Nobody has acted on its event: the sweep does."""
        run_and_die(self.send, dependency_events, "act", before=True)
        self.assertEqual(Queue()["k1"].metadata().status, "blocked")
        store.records.follow(using="default")
        self.goes_on()
