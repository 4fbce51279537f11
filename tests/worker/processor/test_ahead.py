"""While a batch runs, another thread acquires the next: nothing is lost or run twice by that."""

import threading
from collections import Counter
from unittest import mock, skipUnless

from django.db import OperationalError, connection

from django_perfectqueue.models import State, Task, Ticket
from django_perfectqueue.queue import Queue
from django_perfectqueue.worker.processor import prefetch

from ..crews import ConcurrentTestCase

COUNT = 100
BATCH = 10
ran = []
acts = {}


def note(task):
    ran.append(task.key)
    if act := acts.get(task.key):
        act()


class AcquireAheadTests(ConcurrentTestCase):
    def setUp(self):
        ran.clear()
        self.addCleanup(acts.clear)
        for name, value in (("MOST", BATCH), ("SPAN", 5.0)):
            patched = mock.patch.object(prefetch, name, value)
            patched.start()
            self.addCleanup(patched.stop)
        self.one = self.processor("process", {"note": note})
        self.ahead = self.one.ahead

    def submit(self, **more):
        keys = [f"k{number:03}" for number in range(COUNT)]
        Queue().submit_many({"key": key, "type": "note", **more} for key in keys)
        return keys

    def run_to_the_end(self):
        """Return how often it has acquired ahead."""
        with mock.patch.object(self.ahead, "begin", wraps=self.ahead.begin) as begun:
            self.work(self.one)
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
        self.one.prefetch.ran("note", 0.03)
        self.assertFalse(self.one.may_take_ahead([self.lease()] * BATCH))
        capped = self.lease()._replace(capped=True)
        self.one.prefetch.mean = 0.0001
        self.assertFalse(self.one.may_take_ahead([capped] * BATCH))

    def lease(self):
        self.one.requested = BATCH
        return self.one.take()[0] if not self.one.batch else self.one.batch[0]

    @skipUnless(connection.vendor == "postgresql", "Others acquire nothing ahead.")
    def test_what_was_taken_without_an_answer_is_given_back_and_run_here(self):
        """The commit came through, and its answer did not: nobody knows of these leases."""
        keys, answers = self.submit(), [OperationalError("gone")]
        real = self.one.claim

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
        keys, real = self.submit(), self.one.claim
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
                self.one.link.trouble(OperationalError("gone"))
                self.one.link.insist(self.one.look)

        acts.update(dict.fromkeys(keys, outage))
        self.ahead.begin = lambda limit, claim: begin(limit, answer_after_the_outage)
        self.ahead.wait = lambda: (self.ahead.coming and awaited.set(), wait())
        self.run_to_the_end()

        self.assertTrue(claimed.is_set())
        self.assert_all_ran_once(keys)

    @skipUnless(connection.vendor == "postgresql", "Others acquire nothing ahead.")
    def test_a_stop_gives_back_what_was_taken_without_an_answer(self):
        """No later acquire would do it, and the supervisor does it only after a crash."""
        keys, real = self.submit(), self.one.claim
        begin, claimed = self.ahead.begin, threading.Event()

        def lose_the_answer(limit, now):
            taken = real(limit, now)
            claimed.set()
            raise OperationalError(f"gone, with {len(taken)} tasks")

        def stop():
            if self.ahead.coming is not None:
                claimed.wait(5)
                self.one.stop()

        acts.update(dict.fromkeys(keys, stop))
        self.ahead.begin = lambda limit, claim: begin(limit, lose_the_answer)
        self.run_to_the_end()

        self.assertTrue(claimed.is_set())
        self.assertEqual(len(ran), len(set(ran)))
        self.assertEqual(Ticket.objects.filter(state=State.RUNNING).count(), 0)
        self.assertEqual(Ticket.objects.count() + len(ran), COUNT)

    @skipUnless(connection.vendor == "postgresql", "Others acquire nothing ahead.")
    def test_a_stop_does_not_wait_for_an_acquire_that_hangs(self):
        keys, begin = self.submit(), self.ahead.begin
        asked, answered = threading.Event(), threading.Event()
        self.addCleanup(answered.set)

        def hang(limit, now):
            asked.set()
            answered.wait(60)
            raise OperationalError("gone")

        def stop():
            if self.ahead.coming is not None:
                asked.wait(5)
                self.one.stop()

        acts.update(dict.fromkeys(keys, stop))
        self.ahead.begin = lambda limit, claim: begin(limit, hang)
        with mock.patch.object(prefetch, "JOIN_TIMEOUT", 0.1):
            self.run_to_the_end()

        self.assertTrue(asked.is_set())
        self.assertFalse(self.ahead.is_known())
        self.assertEqual(Ticket.objects.filter(state=State.RUNNING).count(), 0)

    def test_a_stop_releases_what_was_acquired_ahead(self):
        keys = self.submit()
        acts[keys[-COUNT // 2]] = self.one.stop
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
