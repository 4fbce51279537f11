"""What breaks off a bulk operation ends it at once, at whatever line that comes."""

import itertools
import os
import random
import signal
import sys
import threading
from contextlib import contextmanager, suppress
from contextvars import copy_context
from unittest import mock

from django.db import transaction
from django.test import TransactionTestCase, tag

import django_perfectqueue
from django_perfectqueue import store
from django_perfectqueue.bulk import Operation, Selection, handler, submit_bulk
from django_perfectqueue.exceptions import (
    AlreadyFinishedError,
    CancelRequestedError,
    PreemptedError,
    TimeLimitError,
)
from django_perfectqueue.queue import Queue
from django_perfectqueue.worker.attempt.interrupts import SIGNAL, turns_transaction
from django_perfectqueue.worker.attempt.runner import Runner
from django_perfectqueue.worker.attempt.surroundings import Running

from ..factories import submit
from ..worker.runners import runner_for

ROWS, CHUNK = 4, 2
FRAME = " of a transaction"
PACKAGE = django_perfectqueue.__path__[0]
STEP = int(os.environ.get("PERFECTQUEUE_TEST_STEP", "11"))
"""Every so many lines, from a random one; 1 is each line."""


class Interruption:
    """Calls ``act`` before the n-th line of these files that is run by a bulk operation."""

    def __init__(self, line, files, act):
        self.line, self.files, self.act = line, files, act
        self.lines = 0
        self.place = ""
        self.is_inside = False

    def trace(self, frame, event, argument):
        code = frame.f_code
        if code is handler.BulkHandler.perform.__code__:
            self.is_inside = event != "return"
        if not self.is_inside or not code.co_filename.startswith(self.files):
            return None
        if event == "line":
            self.lines += 1
            if self.lines == self.line:
                self.place = f"{code.co_name}:{frame.f_lineno}"
                if turns_transaction(frame):
                    self.place += FRAME
                sys.settrace(None)
                self.act()
        return self.trace

    def __enter__(self):
        sys.settrace(self.trace)
        return self

    def __exit__(self, *error):
        sys.settrace(None)


@contextmanager
def reminding(interrupter):
    """Repeat what did not reach the handler, as the monitor of a processor does."""
    over = threading.Event()

    def remind():
        while not over.wait(0.002):
            interrupter.remind()

    thread = threading.Thread(target=remind)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def in_a_thread(act, *given):
    thread = threading.Thread(target=act, args=given)
    thread.start()
    thread.join()


class InterruptedTests(TransactionTestCase):
    files = (f"{PACKAGE}/bulk/handler.py", f"{PACKAGE}/bulk/verbs.py")

    def setUp(self):
        self.addCleanup(signal.signal, SIGNAL, signal.getsignal(SIGNAL))
        self.addCleanup(mock.patch.stopall)
        mock.patch.object(handler, "CHUNK", CHUNK).start()
        self.rows = [submit(f"row-{number}", queue="rows") for number in range(ROWS)]

    def lines(self):
        return itertools.count(random.randint(1, STEP), STEP)

    def interrupt_at_each(self, reason, begin):
        """
        Edit the rows anew for each line, and break that off there; yield where that was, how it
        has ended, the task, the numbers of the rows that it has edited, and its data.
        """
        for line in self.lines():
            terms = {"patch": {"line": line}, "rate": 1e6, "by": "ann"}
            operation = Operation(verb="edit", selection=Selection(queue="rows"), **terms)
            task = submit_bulk(operation, queue="bulk", using="default")
            held = Queue("bulk").poll()
            begin(task)
            ending, place = self.run_interrupted(held, line, reason("for a test"))
            if not place:
                self.assertGreater(line, 20)
                return
            values = Queue("rows").list().order_by("pk")
            edited = [number for number, row in enumerate(values) if row.data.get("line") == line]
            yield place, ending, task, edited, task.metadata().data

    def run_interrupted(self, held, line, reason):
        """Run a task; return how it has ended, and where it was interrupted."""
        runner = runner_for(lambda task: None)
        self.addCleanup(runner.wakeup.close)
        runner.interrupter.install()
        running = Running(held)
        interruption = Interruption(line, self.files, lambda: in_a_thread(running.kill, reason))
        with reminding(runner.interrupter), interruption:
            ending = copy_context().run(runner.attend, running)
        if ending.completion is not None:
            store.finish([ending.completion], using="default")
        return ending, interruption.place

    def assert_ended(self, ending, word, place):
        # The end of a transaction is not interrupted, and after the last one nothing is left.
        is_last = ending.word == "finished" and place.endswith(FRAME)
        self.assertEqual(ending.word, "finished" if is_last else word, (place, ending.error))

    def assert_whole_chunks(self, edited, data, place):
        """Fail unless what is edited is what it says: whole chunks from the first row on."""
        behind = sum(row.id <= data["cursor"] for row in self.rows)
        self.assertEqual(edited, list(range(behind)), place)
        self.assertEqual(data["done"], {"edited": behind} if behind else {}, place)

    def test_a_cancel_request(self):
        # Its own look at the request would end it at the first chunk.
        mock.patch.object(Runner, "is_cancel_requested", return_value=True).start()
        for place, ending, task, edited, data in self.interrupt_at_each(
            CancelRequestedError, lambda task: None
        ):
            self.assert_ended(ending, "cancelled", place)
            self.assertEqual(task.metadata().status, ending.word, place)
            self.assert_whole_chunks(edited, data, place)

    def test_a_time_limit(self):
        for place, ending, task, edited, data in self.interrupt_at_each(
            TimeLimitError, lambda task: None
        ):
            self.assert_ended(ending, "retried", place)
            self.assert_whole_chunks(edited, data, place)
            with suppress(AlreadyFinishedError):
                task.cancel_request()

    def test_a_lost_lease(self):
        for place, ending, _task, edited, data in self.interrupt_at_each(
            PreemptedError, lambda task: task.force_finish()
        ):
            self.assert_ended(ending, "preempted", place)
            self.assertEqual((edited, data["done"]), ([], {}), place)


@tag("thorough")
class InterruptedInThePackageTests(InterruptedTests):
    """The same at lines of the whole package, and of Django's transactions."""

    files = (f"{PACKAGE}/", transaction.__file__)

    def lines(self):
        return itertools.count(random.randint(1, 41), 41)


class InterruptedInTransactionsTests(InterruptedTests):
    """The same at lines of Django's transactions, where MySQL commits when one is not ended."""

    files = transaction.__file__
