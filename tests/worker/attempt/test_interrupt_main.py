import io
import logging
import signal
import threading
import time
from functools import partial
from unittest import mock

from django.dispatch import Signal
from django.test import SimpleTestCase, override_settings
from django.test.signals import setting_changed

from django_perfectqueue.worker.attempt.interrupts import SIGNAL, MainThreadInterrupter

from ...waiting import LONG, wait_until


class BreakOffError(Exception):
    pass


class CaughtMixin:
    """Has ``interrupter``, and ``called`` returns what a call of it does."""

    def setUp(self):
        super().setUp()
        self.heard = Signal()
        self.heard.connect(self.interrupt_itself)

    def interrupt_itself(self, **names):
        self.interrupter.interrupt("token", BreakOffError())
        time.sleep(0)

    def remind_itself(self):
        self.interrupter.remind()
        time.sleep(0)

    def test_what_a_library_has_caught_is_raised_again(self):
        """Django catches what receivers and hooks raise, and logging what formats a record."""

        text = mock.MagicMock()
        text.__str__.side_effect = self.interrupt_itself
        output = logging.StreamHandler(io.StringIO())
        output.handleError = lambda record: None
        record = logging.makeLogRecord({"msg": text})
        for name, catch in (
            ("receiver", partial(self.heard.send_robust, sender=None)),
            ("record", partial(output.emit, record)),
        ):

            def work(catch=catch):
                catch()
                self.remind_itself()

            with self.subTest(name), self.assertRaises(BreakOffError):
                self.called(work)

    def test_what_the_handler_has_caught_is_not_raised_again(self):
        def work():
            try:
                self.heard.send(sender=None)
            except BreakOffError:
                self.remind_itself()
            self.remind_itself()
            self.heard.send_robust(sender=None)
            return "cleared up"

        self.assertEqual(self.called(work), "cleared up")

    def test_what_is_on_its_way_is_not_raised_again(self):
        """Django rolls back, say, before the handler sees it."""
        reminded = []

        def work():
            with override_settings(DEBUG=True):
                self.heard.send(sender=None)

        def remind(**names):
            self.remind_itself()
            reminded.append(True)

        setting_changed.connect(remind)
        self.addCleanup(setting_changed.disconnect, remind)
        with self.assertRaises(BreakOffError):
            self.called(work)
        self.assertEqual(len(reminded), 2)


class MainThreadInterrupterTests(CaughtMixin, SimpleTestCase):
    def setUp(self):
        super().setUp()
        self.addCleanup(signal.signal, SIGNAL, signal.getsignal(SIGNAL))
        self.interrupter = MainThreadInterrupter()
        self.interrupter.install()

    def called(self, work):
        return self.interrupter.call("token", work)

    def in_a_thread(self, act):
        thread = threading.Thread(target=act)
        thread.start()
        self.addCleanup(thread.join)

    def test_sleeping_is_broken_off(self):
        """
        A handler that waits for something slow should learn at once that it is too late.
        """
        ready = threading.Event()

        def act():
            ready.wait()
            self.interrupter.interrupt("token", BreakOffError())
            wait_until(lambda: self.interrupter.remind() or is_over)

        def sleep():
            ready.set()
            time.sleep(LONG)

        is_over = []
        self.in_a_thread(act)
        began = time.monotonic()
        with self.assertRaises(BreakOffError):
            self.interrupter.call("token", sleep)
        is_over.append(True)
        self.assertLess(time.monotonic() - began, LONG / 2)

    def test_a_lost_signal_is_repeated(self):
        """One that comes just before a system call that blocks does not end it."""

        def act():
            with mock.patch.object(signal, "pthread_kill"):
                self.interrupter.interrupt("token", BreakOffError())
            wait_until(lambda: self.interrupter.remind() or is_over)

        def sleep():
            self.in_a_thread(act)
            time.sleep(LONG)

        is_over = []
        began = time.monotonic()
        with self.assertRaises(BreakOffError):
            self.interrupter.call("token", sleep)
        is_over.append(True)
        self.assertLess(time.monotonic() - began, LONG / 2)

    def test_nothing_is_raised_in_another_call(self):
        """
        The next task, or the writing of this one's result, must not pay for it.
        """
        self.interrupter.interrupt("earlier", BreakOffError())
        self.assertEqual(self.interrupter.call("token", lambda: 3), 3)

    def test_nothing_is_raised_outside_a_call(self):
        self.interrupter.call("token", lambda: None)
        self.interrupter.interrupt("token", BreakOffError())
        time.sleep(0)

    def test_a_reason_that_comes_just_before_the_call_counts(self):
        self.interrupter.interrupt("token", BreakOffError())
        with self.assertRaises(BreakOffError):
            self.interrupter.call("token", lambda: None)

    def test_it_is_raised_once(self):
        """
        The handler's clearing up must not be broken off in its turn.
        """

        def stubborn():
            try:
                self.interrupter.interrupt("token", BreakOffError())
                time.sleep(60)
            except BreakOffError:
                self.interrupter.interrupt("token", BreakOffError())
                time.sleep(0)
                return "cleared up"

        self.assertEqual(self.interrupter.call("token", stubborn), "cleared up")

    def test_a_stray_signal_does_no_harm(self):
        self.interrupter.call("token", lambda: signal.raise_signal(SIGNAL))

    def test_never_outside_however_it_falls(self):
        """
        The reason may come at any instruction; it stays inside the call or is not raised.
        """
        stop = threading.Event()
        token = [0]

        def pester():
            while not stop.is_set():
                self.interrupter.interrupt(token[0], BreakOffError())

        self.in_a_thread(pester)
        try:
            for number in range(3000):
                token[0] = number
                try:
                    self.interrupter.call(number, lambda: None)
                except BreakOffError:
                    continue
        finally:
            stop.set()
