import asyncio
import sys
import threading
from unittest import mock

from django.test import SimpleTestCase

from django_perfectqueue.worker.attempt.event_loop import EventLoop
from django_perfectqueue.worker.attempt.surroundings import Running

PATIENCE = 30.0


class GivenUpError(Exception):
    pass


class EventLoopTests(SimpleTestCase):
    def setUp(self):
        self.event_loop = EventLoop()
        self.addCleanup(self.event_loop.close)
        self.attempt = Running(mock.Mock())

    def run_coroutine(self, function, attempt=None):
        """Run a handler, and return what it returns or raise what it raises."""
        attempt = attempt or self.attempt
        self.event_loop.drive(self.event_loop.perform(attempt, function))
        if attempt.error is not None:
            raise attempt.error
        return attempt.result

    def interrupt_beside(self, *reasons):
        def act():
            self.running.wait(PATIENCE)
            for reason in reasons:
                self.event_loop.interrupt(self.attempt, reason)

        self.running = threading.Event()
        thread = threading.Thread(target=act)
        thread.start()
        self.addCleanup(thread.join)

    async def sleep(self):
        self.running.set()
        await asyncio.sleep(PATIENCE)

    def test_the_loop_stays_from_one_task_to_the_next(self):
        """
        A pool of connections that a handler keeps is of its loop.
        """

        async def loop():
            return asyncio.get_running_loop()

        first, second = (self.run_coroutine(loop, Running(mock.Mock())) for _task in range(2))
        self.assertIs(first, second)

    def test_the_reason_is_raised_in_place_of_the_cancellation(self):
        reason = GivenUpError("for a reason")
        seen = []

        async def work():
            try:
                await self.sleep()
            except asyncio.CancelledError as error:
                seen.extend(error.args)
                raise

        self.interrupt_beside(reason)
        with self.assertRaises(GivenUpError) as raised:
            self.run_coroutine(work)
        self.assertIs(raised.exception, reason)
        self.assertEqual(seen, [reason])

    def test_it_is_cancelled_once(self):
        async def stubborn():
            try:
                await self.sleep()
            except asyncio.CancelledError:
                await asyncio.sleep(0.02)
                return "cleared up"

        self.interrupt_beside(GivenUpError(), GivenUpError())
        self.assertEqual(self.run_coroutine(stubborn), "cleared up")

    def test_a_reason_that_comes_too_late_or_for_another_does_nothing(self):
        earlier = Running(mock.Mock())

        async def work():
            if self.attempt.coroutine:
                self.event_loop.interrupt(earlier, GivenUpError())
            await asyncio.sleep(0.01)
            return 3

        self.assertEqual(self.run_coroutine(work, earlier), 3)
        self.assertEqual(self.run_coroutine(work), 3)

    def test_a_reason_that_comes_just_before_the_call_counts(self):
        self.running = threading.Event()
        self.event_loop.interrupt(self.attempt, GivenUpError())
        with self.assertRaises(GivenUpError):
            self.run_coroutine(self.sleep)
        self.assertFalse(self.running.is_set())

    def test_a_cancellation_of_its_own_stays_one(self):
        async def give_up():
            raise asyncio.CancelledError

        with self.assertRaises(asyncio.CancelledError):
            self.run_coroutine(give_up)

    def test_an_exit_of_what_a_handler_has_started_ends_no_handler(self):
        async def leave():
            sys.exit("as it should")

        async def work():
            self.beside = asyncio.create_task(leave())
            await asyncio.sleep(0.02)
            return "done"

        with self.assertLogs("django_perfectqueue.runner", "ERROR"):
            self.assertEqual(self.run_coroutine(work), "done")
        self.assertIsInstance(self.beside.exception(), SystemExit)
