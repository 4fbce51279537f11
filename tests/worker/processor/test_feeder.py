"""One thread calls the database for a processor: nothing keeps anything else from its turn."""

import threading
import time
from collections import Counter
from unittest import mock

from django.db import DatabaseError, OperationalError, connection, connections

from django_perfectqueue import store
from django_perfectqueue.application.base import from_function
from django_perfectqueue.models import Attempt, State, Task, Ticket
from django_perfectqueue.queue import Queue
from django_perfectqueue.worker.processor import pacing
from django_perfectqueue.worker.shared.status import Wakeups

from ...waiting import wait_until
from ..crews import ConcurrentTestCase

COUNT = 100
BATCH = 10
ALL = ("process", "thread", "async")


def refused(*args, **kwargs):
    raise DatabaseError("refused")


class FailingVerbTests(ConcurrentTestCase):
    """A call that fails for long keeps nothing from being tried but itself."""

    def while_it_fails(self, verb, processor, keys, act):
        """Work while a verb of the store fails; ``act`` in another thread."""

        def beside():
            try:
                act()
            finally:
                failing.stop()
                self.gate.set()
                processor.stop()
                connections.close_all()

        Queue().submit_many({"key": key, "type": "run"} for key in keys)
        failing = mock.patch(f"{store.__name__}.{verb}", side_effect=refused)
        failing.start()
        self.beside(beside)
        self.work(processor)

    def processor_that_waits(self, type_, **options):
        self.gate = threading.Event()
        routes = {"run": lambda task: self.gate.wait(60) and None}
        return self.processor(type_, routes, burst=False, CONCURRENCY=1, **options)

    def test_leases_are_renewed_while_a_release_fails(self):
        for type_ in ALL:
            with self.subTest(type_):
                processor = self.processor_that_waits(type_, TASK_PREFETCH=1, ALIVE_TIME=3.0)

                def fails_for_longer_than_a_lease(processor=processor):
                    wait_until(lambda: processor.hand.running() and processor.hand.batch)
                    processor.give_way()
                    wait_until(lambda: processor.hand.releasing)
                    until = time.monotonic() + 4.0
                    wait_until(lambda: time.monotonic() > until)

                self.while_it_fails("settle", processor, "ab", fails_for_longer_than_a_lease)
                self.assertEqual(processor.status.totals()["finished"], 1)
                self.assertEqual(Queue()["a"].metadata().status, "finished")
                self.assertFalse(Attempt.objects.filter(task__key="a").exists())
                Queue().clear()

    def test_what_is_completed_is_written_while_a_renewal_fails(self):
        gate = threading.Event()
        routes = {"run": lambda task: task.key == "a" or (gate.wait(60) and None)}
        processor = self.processor("thread", routes, burst=False, ALIVE_TIME=60.0)

        def at_once():
            wait_until(lambda: Queue()["a"].exists())
            wait_until(lambda: Queue()["a"].metadata().status == "finished")
            gate.set()

        self.gate = gate
        with mock.patch.object(store.leases, "charge"):
            self.while_it_fails("leases.heartbeat", processor, "ab", at_once)
        self.assertEqual(Task.objects.filter(outcome="finished").count(), 2)

    def test_tries_come_ever_more_rarely(self):
        processor = self.processor_that_waits("process", TASK_PREFETCH=1)
        tries = []

        def count(*args, **kwargs):
            tries.append(time.monotonic())
            raise DatabaseError("refused")

        def for_a_while():
            wait_until(lambda: processor.hand.running() and processor.hand.batch)
            store.settle.side_effect = count
            processor.give_way()
            until = time.monotonic() + 3.0
            wait_until(lambda: time.monotonic() > until)

        with self.assertLogs("django_perfectqueue.database", "ERROR") as logs:
            self.while_it_fails("settle", processor, "ab", for_a_while)
        self.assertLess(len(tries), 20)
        self.assertEqual(len(logs.output), 1)


class LoneWriterTests(ConcurrentTestCase):
    def test_while_an_atomic_handler_runs_it_looks_now_and_then(self):
        """On SQLite the handler holds the only lock, so what is due can't be written meanwhile."""
        turns = []

        def perform(task):
            if task.key == "run-1":
                before = len(turns)
                wait_until(lambda: time.monotonic() - task.started > 1.0)
                turns.append(f"{len(turns) - before} meanwhile")

        routes = {"run": from_function(perform, atomic=True)}
        processor = self.processor("process", routes)
        real = processor.feeder.turn

        def turn():
            turns.append("turn")
            return real()

        processor.feeder.turn = turn
        self.submit(*["run"] * 3)
        self.work(processor)
        [meanwhile] = [int(one.split()[0]) for one in turns if one != "turn"]
        self.assertLess(meanwhile, 60)
        self.assertEqual(processor.status.totals()["finished"], 3)


class HandTests(ConcurrentTestCase):
    def test_a_task_that_begins_while_leases_are_read_is_renewed_with_the_others(self):
        processor = self.processor("process", {"run": lambda task: None})
        hand, began = processor.hand, []
        self.submit("run")
        processor.leases.held_until = processor.status.renewed_at = time.monotonic()
        hand.add(processor.feeder.claim(1, time.monotonic()))
        beginning = threading.Thread(target=lambda: began.append(processor.next_task()))

        def running(real=hand.running):
            found = real()
            if not beginning.ident:
                beginning.start()
                beginning.join(0.2)
            return found

        with mock.patch.object(hand, "running", running):
            self.assertEqual(len(hand.leases()), 1)
        beginning.join()
        self.assertEqual([one.task.key for one in began], ["run-0"])


class CompletionTests(ConcurrentTestCase):
    def test_what_ended_before_a_task_that_may_be_long_is_written_before_it_begins(self):
        """Were its processor killed, what ended before would run again."""
        seen = []

        def long(task):
            seen.append(Task.objects.filter(outcome="finished").count())

        for _time in range(5):
            routes = {"short": lambda task: None, "long": long}
            processor = self.processor("process", routes, TASK_PREFETCH=10)
            processor.prefetch.ran("short", 0.001)
            self.submit("short", "short", "short", "long")
            self.work(processor)
            Queue().clear()
        self.assertEqual(seen, [3] * 5)

    def test_what_ended_before_a_task_that_is_suddenly_long_is_written_soon(self):
        gate = threading.Event()
        routes = {"run": lambda task: gate.wait(60) if task.key == "run-1" else None}
        for type_ in ALL:
            with self.subTest(type_):
                gate.clear()
                options = {"CONCURRENCY": 1, "TASK_PREFETCH": 10}
                processor = self.processor(type_, routes, **options)
                processor.prefetch.ran("run", 0.001)
                self.submit("run", "run")

                def see():
                    wait_until(lambda: Task.objects.filter(outcome="finished").count() == 1)
                    gate.set()
                    connections.close_all()

                self.beside(see)
                self.work(processor)
                Queue().clear()


class HandlerConnectionTests(ConcurrentTestCase):
    def test_it_is_replaced_once_another_of_the_process_had_trouble(self):
        """No claim tries it, so the next handler would meet a dead one."""
        for type_ in ("process", "thread"):
            with self.subTest(type_):
                used, outages = [], []

                def run(task, used=used, outages=outages):
                    Task.objects.exists()
                    used.append(connection.connection)
                    if len(used) == 2:
                        outages[0].errors += 1

                processor = self.processor(type_, {"run": run}, CONCURRENCY=1)
                outages.append(processor.plan.outage)
                self.submit(*["run"] * 4)
                self.work(processor)
                first, second, third, fourth = used
                self.assertIs(first, second)
                self.assertIsNot(second, third)
                self.assertIs(third, fourth)
                Queue().clear()


class WakeupTests(ConcurrentTestCase):
    def test_a_ring_while_a_write_is_repeated_is_not_lost(self):
        """A pause after an error may read its byte: the flag in the status stays."""
        for type_ in ALL:
            with self.subTest(type_):
                ran, second = {}, f"second-{type_}"
                routes = {"run": lambda task, ran=ran: ran.setdefault(task.key, time.monotonic())}
                one = self.processor(type_, routes, burst=False, POLL_INTERVAL=60.0)
                wakeups = Wakeups([(one.status, one.resources.wakeup)])
                wakeups.note_listener()
                object.__setattr__(one.resources, "wakeups", wakeups)
                broken = []

                def breaking(real, wakeups=wakeups, broken=broken, second=second):
                    def write(completions, *args, **kwargs):
                        if completions and not broken:
                            broken.append(time.monotonic())
                            Queue().submit(second, "run")
                            wakeups.wake_one()
                            raise OperationalError("gone")
                        return real(completions, *args, **kwargs)

                    return write

                def watch(one=one, ran=ran, second=second):
                    try:
                        wait_until(lambda: second in ran)
                    finally:
                        one.stop()
                        connections.close_all()

                Queue().submit(f"first-{type_}", "run")
                self.beside(watch)
                verbs = ("finish", "finish_and_acquire")
                broken_verbs = {verb: breaking(getattr(store, verb)) for verb in verbs}
                with mock.patch.multiple(store, **broken_verbs):
                    self.work(one)
                self.assertLess(ran[second] - broken[0], 3.0)
                Queue().clear()


class AheadTests(ConcurrentTestCase):
    """While one batch runs, the next is acquired: nothing is lost or run twice by that."""

    def setUp(self):
        self.ran, self.acts = [], {}
        for name, value in (("MOST", BATCH), ("SPAN", 5.0)):
            patched = mock.patch.object(pacing, name, value)
            patched.start()
            self.addCleanup(patched.stop)
        self.one = self.processor("process", {"note": self.note})
        self.claims = self.one.feeder

    def note(self, task):
        self.ran.append(task.key)
        if act := self.acts.get(task.key):
            act()

    def submit(self):
        keys = [f"k{number:03}" for number in range(COUNT)]
        Queue().submit_many({"key": key, "type": "note"} for key in keys)
        return keys

    def assert_all_ran_once(self, keys):
        self.assertEqual(Counter(self.ran), Counter(keys))
        self.assertEqual(Task.objects.filter(outcome="finished").count(), len(keys))
        self.assertEqual(Ticket.objects.count(), 0)

    def test_every_task_runs_once_and_in_order(self):
        keys = self.submit()
        self.work(self.one)
        self.assert_all_ran_once(keys)
        self.assertEqual(self.ran, keys)

    def test_what_was_taken_without_an_answer_is_given_back_and_run_here(self):
        """The commit came through, and its answer did not: nobody knows of these leases."""
        keys, answers, real = self.submit(), [OperationalError("gone")], self.claims.claim

        def lose_an_answer(limit, now):
            taken = real(limit, now)
            if len(taken) == BATCH and answers:
                raise answers.pop()
            return taken

        self.claims.claim = lose_an_answer
        self.work(self.one)
        self.assertEqual(answers, [])
        self.assert_all_ran_once(keys)

    def test_a_stop_gives_back_what_was_taken_without_an_answer(self):
        """No later acquire would do it, and the supervisor does it only after a crash."""
        keys, real = self.submit(), self.claims.claim

        def lose_the_answer(limit, now):
            taken = real(limit, now)
            if len(self.ran) >= BATCH:
                self.one.stop()
                raise OperationalError("gone")
            return taken

        self.claims.claim = lose_the_answer
        self.work(self.one)
        self.assert_none_is_held(keys)

    def test_a_stop_releases_what_was_acquired_ahead(self):
        keys = self.submit()
        self.acts[keys[COUNT // 2]] = self.one.stop
        self.work(self.one)
        self.assert_none_is_held(keys)
        while task := Queue().poll():
            self.ran.append(task.key)
            task.finish()
        self.assert_all_ran_once(keys)

    def assert_none_is_held(self, keys):
        self.assertEqual(len(self.ran), len(set(self.ran)))
        self.assertEqual(Ticket.objects.filter(state=State.RUNNING).count(), 0)
        self.assertEqual(Ticket.objects.count() + len(self.ran), len(keys))

    def test_only_one_thread_calls_the_database(self):
        keys, threads = self.submit(), set()

        def claimed(*args, real=self.claims.claim):
            threads.add(threading.get_ident())
            return real(*args)

        self.claims.claim = claimed
        self.work(self.one)
        self.assertEqual(len(threads), 1)
        self.assertNotIn(threading.get_ident(), threads)
        self.assert_all_ran_once(keys)
