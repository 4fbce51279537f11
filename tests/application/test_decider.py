from django.test import SimpleTestCase, TestCase, override_settings

from django_perfectqueue.application import Application, Decider
from django_perfectqueue.exceptions import UndefinedDecisionError
from django_perfectqueue.models import Attempt
from django_perfectqueue.queue import Queue

from ..factories import status, submit


class Shipping(Decider):
    def shipped(self, to):
        self.queue.submit(f"invoice-{self.task.key}", "invoice", {"to": to})
        return "on its way"


class Ship(Application):
    decider = Shipping
    max_attempts = 2
    retry_wait = 0


class DecisionTests(TestCase):
    def setUp(self):
        submit("parcel", now=None)
        self.handler = Ship(Queue().poll())

    def test_a_decision_is_a_method_of_the_decider(self):
        self.assertEqual(self.handler.decide("shipped", to="Bern"), "on its way")
        self.assertEqual(Queue()["invoice-parcel"].metadata().data, {"to": "Bern"})

    def test_an_error_has_the_task_tried_again(self):
        self.handler.decide("unexpected_error_raised", error=ValueError("no stamps"))

        attempt = Attempt.objects.get()
        self.assertEqual((attempt.error, attempt.message), ("builtins.ValueError", "no stamps"))
        self.assertEqual(self.handler.task.settled, "retried")

    def test_the_last_error_fails_it(self):
        self.handler.decide("unexpected_error_raised", error=ValueError("no stamps"))
        handler = Ship(Queue().poll())
        handler.decide("unexpected_error_raised", error=ValueError("still none"))

        row = Queue()["parcel"].metadata()
        self.assertEqual((row.status, row.dead_letter.message), ("failed", "still none"))

    @override_settings(PERFECTQUEUE={"MAX_ATTEMPTS": 1})
    def test_a_handler_without_limits_has_those_of_the_settings(self):
        Application(self.handler.task).decide("unexpected_error_raised", error=ValueError())
        self.assertEqual(self.handler.task.settled, "failed")

    def test_crashes_are_no_errors(self):
        """
        A task that lost its processor twice still has its attempts, which are counted apart.
        """
        task = self.handler.task
        task.lease = task.lease._replace(crashes=2)
        self.handler.decide("unexpected_error_raised", error=ValueError())
        self.assertEqual(status(Queue()["parcel"], now=None), "waiting")


class UnknownDecisionTests(SimpleTestCase):
    def test_an_unknown_decision_is_named_with_its_neighbour(self):
        with self.assertRaisesMessage(
            UndefinedDecisionError, "Shipping has no decision 'shiped'. Did you mean 'shipped'?"
        ):
            Ship(None).decide("shiped")

    def test_what_is_no_decision_can_not_be_asked_for(self):
        for name in ("decide", "task", "queue", "__init__"):
            with self.subTest(name), self.assertRaises(UndefinedDecisionError):
                Ship(None).decide(name)
