import asyncio
import threading
from functools import partial, wraps

from asgiref.sync import markcoroutinefunction
from django.test import SimpleTestCase

from django_perfectqueue.application import Application, Decider
from django_perfectqueue.application.base import from_function
from django_perfectqueue.exceptions import (
    CancelRequestedError,
    GracefulProcessStopError,
    ImmediateProcessStopError,
    PreemptedError,
    UndefinedDecisionError,
)


class Steps(Application):
    willing = True
    error = None

    def __init__(self):
        super().__init__(None)
        self.steps = []

    def before_perform(self):
        self.steps.append("before")
        return self.willing

    def perform(self):
        self.steps.append("perform")
        if self.error:
            raise self.error
        return "result"

    def after_perform(self):
        self.steps.append("after")


class RunTests(SimpleTestCase):
    def test_what_perform_returns_is_the_result(self):
        handler = Steps()
        self.assertEqual(handler.run(), "result")
        self.assertEqual(handler.steps, ["before", "perform", "after"])

    def test_an_unwilling_handler_performs_nothing(self):
        handler = Steps()
        handler.willing = None
        self.assertIsNone(handler.run())
        self.assertEqual(handler.steps, ["before"])

    def test_what_comes_after_comes_after_an_error_too(self):
        handler = Steps()
        handler.error = ValueError()
        with self.assertRaises(ValueError):
            handler.run()
        self.assertEqual(handler.steps, ["before", "perform", "after"])


class KillTests(SimpleTestCase):
    def test_a_graceful_stop_lets_the_handler_end(self):
        self.assertEqual(self.raised_by(GracefulProcessStopError()), [])

    def test_any_other_reason_is_raised_in_it(self):
        for reason in (PreemptedError(), CancelRequestedError(), ImmediateProcessStopError()):
            self.assertEqual(self.raised_by(reason), [reason])

    def raised_by(self, reason):
        raised = []
        handler = Application(None)
        handler.interrupter = raised.append
        handler.kill(reason)
        return raised

    def test_outside_a_processor_it_does_nothing(self):
        Application(None).kill(PreemptedError())


class AsyncSteps(Steps):
    async def before_perform(self):
        return super().before_perform()

    async def perform(self):
        return super().perform()


class AsyncTests(SimpleTestCase):
    def test_a_coroutine_function_is_seen_however_it_is_written(self):
        async def function(task):
            """Do nothing."""

        class Callable:
            async def __call__(self, task):
                """Do nothing."""

        @wraps(function)
        def wrapped(task):
            return function(task)

        for form in (function, partial(function), Callable(), markcoroutinefunction(wrapped)):
            self.assertTrue(from_function(form).is_async, form)
        self.assertTrue(from_function(lambda task: function(task), is_async=True).is_async)
        self.assertFalse(from_function(lambda task: None).is_async)
        self.assertTrue(AsyncSteps.is_async)
        self.assertFalse(Steps.is_async)

    def test_all_steps_are_taken_be_they_coroutines_or_not(self):
        for kind in (AsyncSteps, self.with_coroutines_around()):
            handler = kind()
            self.assertEqual(handler.run(), "result")
            self.assertEqual(handler.steps, ["before", "perform", "after"])

    def test_an_unwilling_one_performs_nothing(self):
        for kind in (AsyncSteps, self.with_coroutines_around()):
            handler = kind()
            handler.willing = False
            self.assertIsNone(handler.run())
            self.assertEqual(handler.steps, ["before"])

    def test_a_decision_may_be_a_coroutine_or_not(self):
        class Choice(Decider):
            def function(self, number):
                return threading.current_thread() is not threading.main_thread(), number

            async def coroutine(self, number):
                return number

        class Deciding(Application):
            decider = Choice

        async def decide(decision):
            return await Deciding(None).adecide(decision, number=3)

        self.assertEqual(asyncio.run(decide("coroutine")), 3)
        self.assertEqual(asyncio.run(decide("function")), (True, 3))
        with self.assertRaises(UndefinedDecisionError):
            asyncio.run(decide("adecide"))

    def with_coroutines_around(self):
        class Around(Steps):
            async def before_perform(self):
                return super().before_perform()

            async def after_perform(self):
                return super().after_perform()

        return Around
