"""While a batch runs, another thread acquires the next: nothing is lost or run twice by that."""

import os
import threading
from collections import Counter
from unittest import mock, skipUnless

from django.core.management.color import no_style
from django.db import OperationalError, connection
from django.test import TransactionTestCase

from django_perfectqueue import conf, store
from django_perfectqueue.application import Dispatch
from django_perfectqueue.models import State, Task, Ticket
from django_perfectqueue.queue import Queue
from django_perfectqueue.worker.plan import Plan
from django_perfectqueue.worker.process.wakeup import Wakeup
from django_perfectqueue.worker.processor import prefetch
from django_perfectqueue.worker.processor.resources import ProcessorResources
from django_perfectqueue.worker.processor.serial import SerialProcessor
from django_perfectqueue.worker.report import Reporter
from django_perfectqueue.worker.shared.outage import Outage
from django_perfectqueue.worker.shared.slot import Slot

COUNT = 100
BATCH = 10
ran = []
acts = {}


def note(task):
    ran.append(task.key)
    if act := acts.get(task.key):
        act()


class Noting(Dispatch):
    routes = {"note": note}


class AcquireAheadTests(TransactionTestCase):
    def setUp(self):
        ran.clear()
        self.addCleanup(acts.clear)
        for name, value in (("MOST", BATCH), ("SPAN", 5.0)):
            patched = mock.patch.object(prefetch, name, value)
            patched.start()
            self.addCleanup(patched.stop)
        parent_alive, parent = os.pipe()
        beats, pulse = os.pipe()
        for end in (parent_alive, parent, beats, pulse):
            os.set_blocking(end, False)
            self.addCleanup(os.close, end)
        plan = Plan(
            dispatch=Noting,
            queues=("default",),
            using="default",
            options=conf.options(),
            burst=True,
            outage=Outage(),
        )
        resources = ProcessorResources(
            holder=store.new_holder(),
            slot=Slot.shared(),
            wakeup=Wakeup(),
            heartbeat_w=pulse,
            parent_alive=parent_alive,
        )
        reporter = Reporter(lambda text: None, no_style(), 0)
        self.processor = SerialProcessor(plan, resources, reporter)
        self.ahead = self.processor.ahead

    def submit(self, **more):
        keys = [f"k{number:03}" for number in range(COUNT)]
        Queue().submit_many({"key": key, "type": "note", **more} for key in keys)
        return keys

    def run_to_the_end(self):
        """Return how often it has acquired ahead."""
        self.processor.monitor.start()
        with mock.patch.object(self.ahead, "begin", wraps=self.ahead.begin) as begun:
            self.processor.work()
        self.processor.close()
        return begun.call_count

    def assert_all_ran_once(self, keys):
        self.assertEqual(Counter(ran), Counter(keys))
        self.assertEqual(Task.objects.filter(outcome="finished").count(), len(keys))
        self.assertEqual(Ticket.objects.count(), 0)

    def test_every_task_runs_once_and_in_order(self):
        keys = self.submit()
        begun = self.run_to_the_end()

        self.assert_all_ran_once(keys)
        self.assertEqual(ran, keys)
        if connection.vendor == "postgresql":
            self.assertGreater(begun, COUNT // BATCH // 2)

    def test_caps_and_long_tasks_are_not_acquired_ahead(self):
        Queue().submit("long", "note")
        self.processor.prefetch.ran("note", 0.03)
        self.assertFalse(self.processor.may_take_ahead([self.lease()] * BATCH))
        capped = self.lease()._replace(capped=True)
        self.processor.prefetch.mean = 0.0001
        self.assertFalse(self.processor.may_take_ahead([capped] * BATCH))

    def lease(self):
        self.processor.requested = BATCH
        return self.processor.take()[0] if not self.processor.batch else self.processor.batch[0]

    @skipUnless(connection.vendor == "postgresql", "Others acquire nothing ahead.")
    def test_what_was_taken_without_an_answer_is_given_back_and_run_here(self):
        """The commit came through, and its answer did not: nobody knows of these leases."""
        keys, answers = self.submit(), [OperationalError("gone")]
        real = self.processor.claim

        def lose_an_answer(limit, now):
            taken = real(limit, now)
            if taken and answers:
                raise answers.pop()
            return taken

        begin = self.ahead.begin
        self.ahead.begin = lambda limit, claim: begin(limit, lose_an_answer)
        self.run_to_the_end()

        self.assertEqual(answers, [])
        self.assert_all_ran_once(keys)

    @skipUnless(connection.vendor == "postgresql", "Others acquire nothing ahead.")
    def test_an_outage_gives_back_nothing_that_the_thread_is_about_to_have(self):
        """Its leases are known only when the answer is read, a moment after the commit."""
        keys, real = self.submit(), self.processor.claim
        begin, wait = self.ahead.begin, self.ahead.wait
        claimed, awaited = threading.Event(), threading.Event()

        def answer_after_the_outage(limit, now):
            taken = real(limit, now)
            claimed.set()
            awaited.wait(5)
            return taken

        def outage():
            if self.ahead.coming is not None and not awaited.is_set():
                claimed.wait(5)
                self.processor.link.trouble(OperationalError("gone"))
                self.processor.link.insist(self.processor.look)

        acts.update(dict.fromkeys(keys, outage))
        self.ahead.begin = lambda limit, claim: begin(limit, answer_after_the_outage)
        self.ahead.wait = lambda: (self.ahead.coming and awaited.set(), wait())
        self.run_to_the_end()

        self.assertTrue(claimed.is_set())
        self.assert_all_ran_once(keys)

    def test_a_stop_releases_what_was_acquired_ahead(self):
        keys = self.submit()
        acts[keys[-COUNT // 2]] = self.processor.stop
        self.run_to_the_end()

        self.assertEqual(len(ran), len(set(ran)))
        held = Ticket.objects.filter(state=State.RUNNING)
        self.assertEqual(held.count(), 0)
        self.assertEqual(Ticket.objects.count() + len(ran), COUNT)
        self.assertEqual(set(Ticket.objects.values_list("attempt", flat=True)) - {0, 1}, set())
        while task := Queue().poll():
            ran.append(task.key)
            task.finish()
        self.assert_all_ran_once(keys)
