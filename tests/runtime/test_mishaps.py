"""What goes wrong around a processor must not cost it what it holds."""

import logging
import os
from contextlib import closing
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
from django_perfectqueue.runtime import signals
from django_perfectqueue.runtime.bell import Bell
from django_perfectqueue.runtime.launcher import Launcher
from django_perfectqueue.runtime.plan import Plan
from django_perfectqueue.runtime.processor import Processor, Seat
from django_perfectqueue.runtime.report import Reporter
from django_perfectqueue.runtime.slate import Slate

ran = []


class Noting(Dispatch):
    routes = {"note": lambda task: ran.append((task.key, holder_of(task.key)))}


def holder_of(key):
    return Ticket.objects.values_list("holder", flat=True).get(task__key=key, state=State.RUNNING)


class ConnectionLostTests(TransactionTestCase):
    def setUp(self):
        ran.clear()
        lifeline, pulse = os.pipe()
        self.addCleanup(os.close, lifeline)
        self.addCleanup(os.close, pulse)
        plan = Plan(
            dispatch=Noting,
            queues=("default",),
            using="default",
            options=conf.options().replace(TASK_PREFETCH=1),
            burst=True,
        )
        seat = Seat(
            number=1,
            holder=store.new_holder(),
            slate=Slate(),
            bell=Bell(),
            pulse=pulse,
            lifeline=lifeline,
        )
        reporter = Reporter(lambda text: None, no_style(), 0)
        self.processor = Processor(plan, seat, reporter)

    def test_what_is_next_is_held_while_the_last_is_written(self):
        """
        A connection that breaks between two tasks gives back what is held nowhere: a task
        that is about to begin is held.
        """
        Queue().submit_many({"key": key, "type": "note"} for key in ("a", "b"))
        finish, answers = store.finish, [OperationalError("gone")]

        def finish_at_the_second_try(*args, **kwargs):
            if answers:
                raise answers.pop()
            return finish(*args, **kwargs)

        self.processor.pace.may_be_long = lambda type_: True
        self.processor.batch.extend(self.processor.acquire())
        self.processor.batch.extend(self.processor.acquire())
        with mock.patch.object(store, "finish", finish_at_the_second_try):
            self.processor.run_batch()

        holder = self.processor.seat.holder
        self.assertEqual(ran, [("a", holder), ("b", holder)])
        self.assertEqual(answers, [])


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
    def test_an_interpreter_that_is_gone_changes_nothing(self):
        launcher = Launcher(["/nowhere/python"], detach_wait=1)
        self.addCleanup(launcher.mailbox.close)
        with self.assertLogs("django_perfectqueue.launcher", "ERROR"):
            launcher.restart(signals.STOP)
        self.assertIsNone(launcher.next)


class ReporterTests(SimpleTestCase):
    def test_a_key_that_the_terminal_cannot_show_is_escaped(self):
        shown = StringIO()

        def write(text):
            shown.write(text.encode("latin-1").decode("latin-1"))

        Reporter(write, no_style(), 1).say("finished 仕事")
        self.assertEqual(shown.getvalue(), "finished \\u4ed5\\u4e8b")

    def test_an_output_that_is_closed_ends_the_talking_and_not_the_work(self):
        closed = StringIO()
        closed.close()

        Reporter(closed.write, no_style(), 1).say("finished")
