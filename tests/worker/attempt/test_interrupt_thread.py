import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from django.test import SimpleTestCase

from django_perfectqueue.worker.attempt.interrupts import ThreadInterrupter

from ...waiting import wait_until
from .test_interrupt_main import CaughtMixin


class BreakOffError(Exception):
    def __init__(self, first, second):
        super().__init__(first, second)


def work_long():
    """Run until it is broken off, or for far too long."""
    until = time.monotonic() + 30.0
    while time.monotonic() < until:
        pass


PROFILE = """
import sys
from tests.worker.attempt.test_interrupt_thread import interrupt_once
interrupt_once()
sys.setprofile(lambda *what: None)
(lambda: None)()
"""


def interrupt_once():
    with ThreadPoolExecutor(max_workers=1) as pool:
        interrupter = pool.submit(ThreadInterrupter).result()

        def interrupt():
            interrupter.interrupt("token", BreakOffError("for", "a reason"))

        assert pool.submit(interrupter.call, "token", interrupt).exception()


class ThreadInterrupterTests(CaughtMixin, SimpleTestCase):
    """A guard is made in the thread for which it is; the test itself is the other one."""

    def called(self, work):
        return self.there(self.interrupter.call, "token", work).result()

    def setUp(self):
        super().setUp()
        pool = ThreadPoolExecutor(max_workers=1)
        self.addCleanup(pool.shutdown)
        self.there = pool.submit
        self.interrupter = self.there(ThreadInterrupter).result()
        self.reason = BreakOffError("for", "a reason")

    def wait_until_inside(self, token):
        def inside():
            return self.interrupter._inside is token

        wait_until(inside)

    def test_it_is_the_very_reason_that_is_raised(self):
        call = self.there(self.interrupter.call, "token", work_long)
        self.wait_until_inside("token")
        self.interrupter.interrupt("token", self.reason)
        self.assertIs(call.exception(), self.reason)

    def test_nothing_is_raised_in_another_call_or_outside(self):
        """
        The next task, or the writing of this one's result, must not pay for it.
        """
        self.there(self.interrupter.call, "earlier", lambda: None).result()
        self.interrupter.interrupt("earlier", self.reason)
        self.assertEqual(self.there(self.interrupter.call, "token", lambda: 3).result(), 3)

    def test_a_reason_that_comes_just_before_the_call_counts(self):
        self.interrupter.interrupt("token", self.reason)
        self.assertIs(
            self.there(self.interrupter.call, "token", work_long).exception(), self.reason
        )

    def test_it_is_raised_once(self):
        """
        The handler's clearing up must not be broken off in its turn.
        """
        caught = threading.Event()

        def stubborn():
            try:
                work_long()
            except BreakOffError:
                caught.set()
                for _time in range(1000):
                    self.interrupter.interrupt("token", self.reason)
                return "cleared up"

        call = self.there(self.interrupter.call, "token", stubborn)
        self.wait_until_inside("token")
        self.interrupter.interrupt("token", self.reason)
        self.assertEqual(call.result(), "cleared up")
        self.assertTrue(caught.is_set())

    def test_never_outside_however_it_falls(self):
        """
        The reason may come at any instruction; it stays inside the call or is not raised.
        """
        token, calls = [0], 3000

        def work():
            broken_off = 0
            for number in range(calls):
                token[0] = number
                try:
                    self.interrupter.call(number, list)
                except BreakOffError:
                    broken_off += 1
            return broken_off

        working = self.there(work)
        while not working.done():
            self.interrupter.interrupt(token[0], self.reason)
        self.assertLessEqual(working.result(), calls)
        self.assertEqual(self.there(self.interrupter.call, "after", lambda: 3).result(), 3)

    def test_profilers_work_after_an_interruption(self):
        """
        Python before 3.12 hangs under a profiler while an exception is noted and none pending.
        """
        subprocess.run([sys.executable, "-c", PROFILE], check=True, timeout=60)
