from django.test import SimpleTestCase

from django_perfectqueue.application import Application
from django_perfectqueue.exceptions import (
    CancelRequestedError,
    GracefulProcessStopError,
    ImmediateProcessStopError,
    PreemptedError,
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
