import logging
from datetime import timedelta

from django.test import SimpleTestCase, override_settings

from django_perfectqueue.application import (
    Application,
    Discard,
    Dispatch,
    Exponential,
    Fixed,
    Registry,
    Retry,
    Snooze,
    Steps,
    handler,
)
from django_perfectqueue.application.error_policy import Ruling, failure, ruling
from django_perfectqueue.exceptions import ConfigError, InvalidTaskError
from django_perfectqueue.queue import AcquiredTask

from ..factories import lease


def held(errors=0, crashes=0):
    return AcquiredTask(lease(errors=errors, crashes=crashes))


def no_waits(error, task):
    raise RuntimeError("as it should")


class PolicyCase(SimpleTestCase):
    def rule(self, error, *, errors=0, crashes=0, **attributes):
        """Return what becomes of a task whose handler has these attributes and raised this."""
        kind = type("Handler", (Application,), {"max_attempts": 3, **attributes})
        return ruling(held(errors, crashes), kind(held(errors, crashes)), error)


class VerdictTests(PolicyCase):
    def test_the_handler_says_it_itself(self):
        self.assertEqual(self.rule(Retry("5m")), Ruling("retry", 300))
        self.assertEqual(self.rule(Retry(0)), Ruling("retry", 0))
        self.assertEqual(self.rule(Snooze(timedelta(hours=1))), Ruling("snooze", 3600))
        self.assertEqual(self.rule(Discard("gone")), Ruling("discard", reason="gone"))

    def test_a_retry_counts_and_the_others_do_not(self):
        self.assertEqual(self.rule(Retry(5), errors=2), Ruling("fail"))
        self.assertEqual(self.rule(Snooze(5), errors=2), Ruling("snooze", 5))
        self.assertEqual(self.rule(Discard(), errors=2), Ruling("discard"))

    def test_crashes_are_no_errors(self):
        self.assertEqual(self.rule(Retry(5), errors=1, crashes=4), Ruling("retry", 5))
        self.assertEqual(
            self.rule(ValueError(), crashes=4, backoff=Steps(1, 2, jitter=0)), Ruling("retry", 1)
        )

    def test_a_retry_without_a_wait_has_the_usual_one(self):
        self.assertEqual(self.rule(Retry(), backoff=Fixed(7, jitter=0)), Ruling("retry", 7))
        waits = {ConnectionError: Fixed(9, jitter=0)}
        self.assertEqual(self.rule(raised_from(ConnectionError()), retry_on=waits).wait, 9)

    def test_what_is_asked_for_goes_before_rules(self):
        rules = {"fail_on": Exception, "discard_on": ()}
        self.assertEqual(self.rule(Retry(5), **rules), Ruling("retry", 5))
        self.assertEqual(self.rule(raised_from(OSError()), **rules, retry_wait=0).word, "retry")

    def test_what_has_passed_is_now_and_a_snooze_lasts_a_second_at_least(self):
        """
        One that waits for a moment that has just come must not go round without a rest.
        """
        self.assertEqual(Snooze(-5).after, 1.0)
        self.assertEqual(Snooze(timedelta(seconds=-5)).after, 1.0)
        self.assertEqual(Retry(-5).after, 0.0)

    def test_what_is_no_time_is_refused_where_it_is_raised(self):
        for after in ("soon", None, True, float("nan"), [], 1e12):
            with self.subTest(after), self.assertRaises(InvalidTaskError):
                Snooze(after)
        with self.assertRaisesMessage(
            InvalidTaskError, "The wait of Retry must be a timedelta, seconds"
        ):
            Retry("soon")

    def test_the_cause_is_what_is_reported(self):
        reported = failure(raised_from(KeyError("k1"), "no such document"))
        self.assertEqual(
            (reported.error, reported.message), ("builtins.KeyError", "no such document")
        )
        self.assertIn("KeyError: 'k1'", reported.traceback)
        self.assertIn("Retry: no such document", reported.traceback)
        self.assertEqual(failure(raised_from(KeyError("k1"))).message, "'k1'")


def raised_from(error, reason=""):
    try:
        try:
            raise error
        except type(error) as cause:
            raise Retry(reason=reason) from cause
    except Retry as verdict:
        return verdict


class RuleTests(PolicyCase):
    def test_each_class_has_its_rule(self):
        rules = {
            "retry_on": {ConnectionError: Fixed(5, jitter=0), TimeoutError: "1m"},
            "discard_on": LookupError,
            "fail_on": (ValueError, TypeError),
            "backoff": Fixed(3, jitter=0),
        }
        for error, expected in (
            (ConnectionResetError(), Ruling("retry", 5)),
            (KeyError(), Ruling("discard")),
            (UnicodeError(), Ruling("fail")),
            (RuntimeError(), Ruling("retry", 3)),
        ):
            with self.subTest(error):
                self.assertEqual(self.rule(error, **rules), expected)
        self.assertTrue(45 <= self.rule(TimeoutError(), **rules).wait <= 75)

    def test_the_nearest_class_wins(self):
        rules = {"retry_on": (ConnectionError,), "fail_on": Exception, "retry_wait": 0}
        self.assertEqual(self.rule(ConnectionResetError(), **rules), Ruling("retry"))
        self.assertEqual(self.rule(OSError(), **rules), Ruling("fail"))

    def test_a_rule_gives_no_more_attempts(self):
        self.assertEqual(self.rule(OSError(), errors=2, retry_on=OSError), Ruling("fail"))

    def test_what_is_wrong_is_said_before_anything_runs(self):
        table = (
            ({"retry_on": 3}, "retry_on must be classes of exceptions, not 3"),
            (
                {"discard_on": "ValueError"},
                "discard_on must be classes of exceptions, not 'ValueError'.",
            ),
            ({"fail_on": (dict,)}, "fail_on must be classes of exceptions, not <class 'dict'>."),
            (
                {"fail_on": OSError, "discard_on": OSError},
                "must not have OSError, which discard",
            ),
            ({"retry_on": {OSError: "soon"}}, "a wait or a backoff for OSError, not 'soon'."),
            ({"fail_on": {OSError: 5}}, "must have no wait for OSError, not 5."),
            ({"backoff": Exponential}, "or an instance such as"),
            ({"backoff": 5}, "backoff must be a function"),
            ({"max_attempts": 0}, "max_attempts must be a whole number of at least 1"),
            ({"retry_wait": "5m"}, "retry_wait must be a number of seconds"),
        )
        for attributes, message in table:
            kind = type("Handler", (Application,), attributes)
            with self.subTest(attributes), self.assertRaisesMessage(ConfigError, message):
                type("Routes", (Dispatch,), {"routes": {"report": kind}}).load()


class BackoffTests(PolicyCase):
    def test_a_method_gets_the_error(self):
        def backoff(self, error):
            return timedelta(seconds=self.task.attempt) if str(error) else None

        self.assertEqual(self.rule(ValueError("x"), errors=1, backoff=backoff), Ruling("retry", 2))
        self.assertEqual(self.rule(ValueError(), backoff=backoff), Ruling("fail"))

    def test_what_it_returns_below_zero_is_now(self):
        self.assertEqual(self.rule(ValueError(), backoff=lambda self, error: -5), Ruling("retry"))

    def test_it_gets_the_error_that_a_retry_was_raised_from(self):
        seen = []

        def backoff(*given):
            seen.append(given[-1])
            return 5

        verdict = raised_from(KeyError("k1"))
        for attributes in (
            {"backoff": backoff},
            {"retry_on": {KeyError: lambda error, task: backoff(error)}},
        ):
            self.assertEqual(self.rule(verdict, **attributes), Ruling("retry", 5))
            self.assertIs(seen.pop(), verdict.__cause__)

    def test_a_function_of_the_decorator_gets_the_task_too(self):
        self.addCleanup(Registry._found.clear)
        self.addCleanup(Registry.routes.pop, "with-backoff")

        @handler("with-backoff", backoff=lambda error, task: task.attempt * 100)
        def fail(task):
            """Fail."""

        kind = Registry.handler_for("with-backoff")
        self.assertEqual(ruling(held(1), kind(held(1)), ValueError()), Ruling("retry", 200))

    def test_one_that_will_not_do_is_logged_and_the_usual_wait_holds(self):
        """
        It runs in the processor, which must not die of it.
        """

        def leave(self, error):
            raise SystemExit("as it should")

        wrong = (leave, lambda self, error: "soon", lambda self: 5, lambda self, error: 1e300)
        wrong += (lambda self, error: float("nan"), lambda self, error: True)
        for backoff in wrong:
            with self.assertLogs("django_perfectqueue.runner", logging.ERROR) as log:
                reported = self.rule(ValueError(), backoff=backoff, retry_wait=100)
            self.assertTrue(75 <= reported.wait <= 125, reported)
            self.assertIn("A backoff failed", log.output[0])

    def test_the_settings_have_one_for_all(self):
        for backoff in (lambda error, task: 40, "tests.application.test_policy.forty"):
            with override_settings(PERFECTQUEUE={"BACKOFF": backoff, "MAX_ATTEMPTS": 2}):
                self.assertEqual(self.rule(ValueError(), max_attempts=None), Ruling("retry", 40))
                self.assertEqual(
                    self.rule(ValueError(), max_attempts=None, errors=1), Ruling("fail")
                )
                self.assertTrue(75 <= self.rule(ValueError(), retry_wait=100).wait <= 125)
                self.assertEqual(self.rule(OSError(), retry_on={OSError: 0}), Ruling("retry", 0))

    @override_settings(PERFECTQUEUE={"BACKOFF": "tests.application.test_policy.no_waits"})
    def test_what_is_in_the_settings_may_fail_too(self):
        with self.assertLogs("django_perfectqueue.runner", logging.ERROR):
            self.assertTrue(11 <= self.rule(ValueError()).wait <= 19)

    def test_a_handler_that_can_not_be_made_has_what_its_class_tells(self):
        """
        So it is asked for a task that was ended by force.
        """

        class Fragile(Application):
            max_attempts = 9
            retry_on = {OSError: Fixed(4, jitter=0)}

            def backoff(self, error):
                raise AssertionError("There is no instance.")

        self.assertEqual(ruling(held(6), Fragile, OSError()), Ruling("retry", 4))
        self.assertEqual(ruling(held(6), Fragile, ValueError()).word, "retry")


def forty(error, task):
    return 40
