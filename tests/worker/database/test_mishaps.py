"""What goes wrong around a processor must not cost it what it holds."""

import logging
import os
import time
from contextlib import closing
from contextvars import copy_context
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

from django.core.management.color import no_style
from django.db import OperationalError
from django.test import SimpleTestCase, TransactionTestCase

from django_perfectqueue import conf, store
from django_perfectqueue.application import Dispatch
from django_perfectqueue.models import State, Ticket
from django_perfectqueue.queue import Queue
from django_perfectqueue.signals import task_cancelled
from django_perfectqueue.store.values import new_holder
from django_perfectqueue.worker.launcher.generation import GENERATION
from django_perfectqueue.worker.launcher.launcher import Launcher
from django_perfectqueue.worker.plan import Plan
from django_perfectqueue.worker.process import signals
from django_perfectqueue.worker.process.signals import Wakeup
from django_perfectqueue.worker.processor.leases import ProcessorResources
from django_perfectqueue.worker.processor.processor import Processor
from django_perfectqueue.worker.report import Reporter
from django_perfectqueue.worker.shared.status import ProcessorStatus

ran = []


class Noting(Dispatch):
    routes = {"note": lambda task: ran.append((task.key, holder_of(task.key)))}


def holder_of(key):
    return Ticket.objects.values_list("holder", flat=True).get(task__key=key, state=State.RUNNING)


class ConnectionLostTests(TransactionTestCase):
    def setUp(self):
        ran.clear()
        parent_alive, pulse = os.pipe()
        self.addCleanup(os.close, parent_alive)
        self.addCleanup(os.close, pulse)
        plan = Plan(
            dispatch=Noting,
            queues=("default",),
            using="default",
            options=conf.options().replace(TASK_PREFETCH=1),
            burst=True,
        )
        status = ProcessorStatus.shared()
        status.sign_on(new_holder())
        resources = ProcessorResources(
            status=status,
            wakeup=Wakeup(),
            heartbeat_w=pulse,
            parent_alive=parent_alive,
        )
        reporter = Reporter(lambda text: None, no_style(), 0)
        self.processor = Processor(plan, resources, reporter)
        # run_batch() stands for the main thread.
        self.processor.executor.hand_out = lambda: None

    def run_batch(self):
        """Run what is in hand in this thread, as the main thread of a processor does."""
        self.processor.executor.open()
        while running := self.processor.next_task():
            attend = self.processor.executor.runner.attend
            self.processor.ended(running, copy_context().run(attend, running))

    def take(self, *keys):
        """Have the processor hold these tasks, with none of them running."""
        Queue().submit_many({"key": key, "type": "note"} for key in keys)
        while len(self.processor.hand.batch) < len(keys):
            self.processor.feeder.take()

    def write_due(self):
        """Try once what is due; return whether that failed."""
        feeder = self.processor.feeder
        feeder.write_due(time.monotonic())
        return feeder.failed

    def test_what_is_next_is_held_while_the_last_is_written(self):
        """
        A connection that breaks between two tasks gives back what is held nowhere: a task
        that is about to begin is held.
        """
        finish, answers = store.finish, [OperationalError("gone")]

        def finish_at_the_second_try(*args, **kwargs):
            if answers:
                raise answers.pop()
            return finish(*args, **kwargs)

        self.take("a", "b")
        self.processor.prefetch.may_be_long = lambda type_: True
        self.run_batch()
        self.assertEqual([key for key, _holder in ran], ["a"])
        with mock.patch.object(store, "finish", finish_at_the_second_try):
            self.assertTrue(self.write_due())
            self.run_batch()
            self.assertEqual(len(ran), 1)
            self.assertFalse(self.write_due())
        self.run_batch()

        holder = self.processor.status.holder
        self.assertEqual(ran, [("a", holder), ("b", holder)])
        self.assertEqual(answers, [])

    def lose_answer(self, verb):
        """Have the answer to a verb's commit lost, once."""
        real, answers = getattr(store, verb), [OperationalError("gone")]

        def lost(*args, **kwargs):
            real(*args, **kwargs)
            raise answers.pop()

        return mock.patch.object(store, verb, lost)

    def test_what_was_given_back_unheard_is_not_run_here_too(self):
        """
        Its release was stored, and another has it by now.
        """
        self.take("a", "b")
        self.processor.gives_way = True
        with self.lose_answer("settle"):
            self.assertTrue(self.write_due())
        taken = Queue().poll()
        self.run_batch()
        self.assertFalse(self.write_due())

        self.assertEqual((taken.key, ran), ("a", []))
        taken.heartbeat()
        self.assertEqual(self.processor.hand.releasing, [])

    def test_what_is_to_be_cancelled_when_it_is_given_back_is_announced(self):
        heard = []

        def hear(key, **_about):
            heard.append(key)

        task_cancelled.connect(hear)
        self.addCleanup(task_cancelled.disconnect, hear)
        self.take("a", "b")
        Queue()["b"].cancel_request()
        self.processor.leases.release_rest()

        self.assertEqual(heard, ["b"])
        self.assertEqual(Queue()["b"].metadata().status, "cancelled")

    def test_what_could_not_be_given_back_is_given_back_later(self):
        self.take("a", "b")
        self.processor.gives_way = True
        with mock.patch.object(store, "settle", side_effect=OperationalError("gone")):
            self.assertTrue(self.write_due())
        self.assertEqual(len(self.processor.feeder.kept()), 2)
        self.run_batch()
        self.assertEqual((ran, self.processor.hand.count()), ([], 0))

        self.assertFalse(self.write_due())
        self.assertEqual(self.processor.hand.releasing, [])
        self.assertEqual(Queue().poll().key, "a")

    def test_what_waits_in_a_batch_that_takes_too_long_is_given_back(self):
        self.take("a", "b")
        self.processor.prefetch.fixed = None
        self.processor.feeder.taken_at = time.monotonic() - 10
        self.assertFalse(self.write_due())

        self.assertEqual(self.processor.hand.count(), 0)
        self.assertEqual(Queue().poll().key, "a")

    def run_when_all_have_lapsed(self):
        self.processor.prefetch.may_be_long = lambda type_: False
        late = time.monotonic() + self.processor.options.ALIVE_TIME
        with mock.patch("time.monotonic", return_value=late):
            self.run_batch()

    def test_what_can_have_lapsed_is_not_run(self):
        """
        A processor that stood still for long does not know who has its tasks by now.
        """
        self.take("a", "b")
        with self.assertLogs("django_perfectqueue.monitor", "WARNING"):
            self.run_when_all_have_lapsed()
        self.assertEqual(ran, [])

    def test_what_another_process_has_renewed_is_run(self):
        self.take("a", "b")
        self.processor.status.renewed_at = time.monotonic() + 1
        self.run_when_all_have_lapsed()
        self.assertEqual([key for key, _holder in ran], ["a", "b"])

    def test_a_cancel_that_is_refused_disturbs_no_other(self):
        """
        The lease may be lost between the look and the cancel.
        """
        self.take("a", "b")
        for lease in self.processor.hand.batch:
            Queue()[lease.key].cancel_request()
        settle, refusals = store.settle, [{}]

        def refuse_first(*args, **kwargs):
            if refusals:
                return refusals.pop()
            return settle(*args, **kwargs)

        reported = []

        def hear(key, task, **kwargs):
            reported.append((key, task.settled))

        task_cancelled.connect(hear)
        self.addCleanup(task_cancelled.disconnect, hear)
        with (
            mock.patch.object(store, "settle", refuse_first),
            self.assertLogs("django_perfectqueue.monitor", "WARNING") as log,
        ):
            self.processor.leases.heartbeat(list(self.processor.hand.batch), None)

        self.assertEqual(reported, [("b", "cancelled")])
        self.assertIn("A task lost its lease before it ran. key=a", log.output[0])
        self.assertEqual(Queue()["b"].metadata().status, "cancelled")
        self.assertEqual(len(self.processor.hand.batch), 0)

    def test_what_could_not_be_cancelled_stays_in_hand(self):
        """
        Held by nobody who knows of it, it would count a crash when its lease lapses.
        """
        self.take("a")
        [lease] = self.processor.hand.batch
        Queue()["a"].cancel_request()
        with (
            mock.patch.object(store, "settle", side_effect=OperationalError("gone")),
            self.assertRaises(OperationalError),
        ):
            self.processor.leases.heartbeat([lease], None)
        self.assertEqual(self.processor.hand.releasing, [lease])

        self.assertFalse(self.write_due())
        self.run_batch()
        self.assertEqual((Queue()["a"].metadata().status, ran), ("cancelled", []))


class LogTests(SimpleTestCase):
    def test_a_log_that_cannot_be_opened_anew_goes_on(self):
        """
        USR2 disturbs no task, whatever has become of the folder of the logs.
        """
        with TemporaryDirectory() as folder:
            inner = Path(folder, "logs")
            inner.mkdir()
            handler = logging.FileHandler(inner / "worker.log")
            logger = logging.getLogger("django_perfectqueue.lost")
            logger.addHandler(handler)
            self.addCleanup(logger.removeHandler, handler)
            with closing(handler):
                inner.rename(Path(folder, "moved"))
                with self.assertLogs("django_perfectqueue.worker", "ERROR"):
                    signals.reopen_logs()
                logger.error("after")
            self.assertEqual(Path(folder, "moved", "worker.log").read_text(), "after\n")


class RestartTests(SimpleTestCase):
    def setUp(self):
        self.started = []

    def launcher(self):
        launcher = Launcher(["python"], detach_wait=1)
        self.addCleanup(launcher.signal_queue.close)
        launcher.start = self.start
        launcher.current = self.start()
        return launcher

    def start(self):
        generation = mock.Mock()
        generation.ready = False
        generation.code.return_value = None
        self.started.append(generation)
        return generation

    def test_a_second_restart_while_the_first_is_under_way_is_done_as_well(self):
        """
        What is starting may have read the code before it changed again.
        """
        launcher = self.launcher()
        for _time in range(3):
            launcher.pass_on(signals.RESTART)
        self.assertEqual(len(self.started), 2)
        for number, count in ((1, 3), (2, 3)):
            self.started[number].ready = True
            launcher.hand_over()
            self.assertEqual(len(self.started), count)
            self.assertIs(launcher.current, self.started[number])
        self.started[1].replace.assert_called_once_with(signals.STOP)

    def test_a_restart_that_failed_is_no_end_to_the_next(self):
        launcher = self.launcher()
        for _time in range(2):
            launcher.pass_on(signals.RESTART)
        self.started[1].code.return_value = 1
        with self.assertLogs("django_perfectqueue.launcher", "ERROR"):
            launcher.hand_over()
        self.assertIs(launcher.next, self.started[2])

    def test_a_stop_takes_the_second_restart_back(self):
        launcher = self.launcher()
        for signum in (signals.RESTART, signals.RESTART, signals.STOP):
            launcher.pass_on(signum)
        self.started[1].ready = True
        launcher.hand_over()
        self.assertEqual(len(self.started), 2)

    def test_each_generation_is_reported_which_it_is(self):
        launcher = Launcher(["python"], detach_wait=1, environment={"A": "b"})
        self.addCleanup(launcher.signal_queue.close)
        with mock.patch("django_perfectqueue.worker.launcher.launcher.spawned") as made:
            for _time in range(2):
                launcher.start()
        reported = [call.args[1] for call in made.call_args_list]
        self.assertEqual(reported, [{"A": "b", GENERATION: "1"}, {"A": "b", GENERATION: "2"}])

    def test_an_interpreter_that_is_gone_changes_nothing(self):
        launcher = Launcher(["/nowhere/python"], detach_wait=1)
        self.addCleanup(launcher.signal_queue.close)
        with self.assertLogs("django_perfectqueue.launcher", "ERROR"):
            launcher.restart(signals.STOP)
        self.assertIsNone(launcher.next)


class ReporterTests(SimpleTestCase):
    def test_an_output_that_is_closed_ends_the_talking_and_not_the_work(self):
        closed = StringIO()
        closed.close()

        Reporter(closed.write, no_style(), 1).say("finished")
