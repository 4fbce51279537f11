import asyncio
import sys
import threading

from django.test import SimpleTestCase

from django_perfectqueue.worker.attempt.event_loop import EventLoop

PATIENCE = 30.0


class GivenUpError(Exception):
    pass


class EventLoopTests(SimpleTestCase):
    def setUp(self):
        self.event_loop = EventLoop()
        self.addCleanup(self.event_loop.close)

    def interrupt_beside(self, *reasons):
        def act():
            self.running.wait(PATIENCE)
            for reason in reasons:
                self.event_loop.interrupt("token", reason)

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

        self.assertIs(self.event_loop.call("first", loop), self.event_loop.call("second", loop))

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
            self.event_loop.call("token", work)
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
        self.assertEqual(self.event_loop.call("token", stubborn), "cleared up")

    def test_a_reason_that_comes_too_late_or_for_another_does_nothing(self):
        async def work():
            self.event_loop.interrupt("another", GivenUpError())
            await asyncio.sleep(0.01)
            return 3

        self.event_loop.interrupt("earlier", GivenUpError())
        self.assertEqual(self.event_loop.call("token", work), 3)
        self.event_loop.interrupt("token", GivenUpError())
        self.assertEqual(self.event_loop.call("next", work), 3)

    def test_a_reason_that_comes_just_before_the_call_counts(self):
        self.running = threading.Event()
        self.event_loop.interrupt("token", GivenUpError())
        with self.assertRaises(GivenUpError):
            self.event_loop.call("token", self.sleep)
        self.assertFalse(self.running.is_set())

    def test_a_cancellation_of_its_own_stays_one(self):
        async def give_up():
            raise asyncio.CancelledError

        with self.assertRaises(asyncio.CancelledError):
            self.event_loop.call("token", give_up)

    def test_what_takes_the_loop_away_leaves_nothing_half_done(self):
        """
        The next task must not be given the end of this one.
        """
        ended = []

        async def leave():
            sys.exit("as it should")

        async def work():
            try:
                self.beside = asyncio.create_task(leave())
                await asyncio.sleep(PATIENCE)
            finally:
                ended.append("work")

        with self.assertRaises(SystemExit):
            self.event_loop.call("token", work)
        self.assertEqual(ended, ["work"])
        self.assertIsInstance(self.beside.exception(), SystemExit)
