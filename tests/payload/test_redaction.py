from importlib import import_module
from unittest import mock

from django.contrib.auth.models import User
from django.test import SimpleTestCase, TestCase, override_settings
from django.urls import reverse

from django_perfectqueue.checks.settings import check_settings
from django_perfectqueue.exceptions import PayloadError, TimeLimitError
from django_perfectqueue.models import Attempt, DeadLetter, Task
from django_perfectqueue.payload.codecs import decode
from django_perfectqueue.payload.context import STARS, masked, secrets_of, without
from django_perfectqueue.queue import Queue
from django_perfectqueue.store import Failure
from django_perfectqueue.test import drain

from ..helpers import cases  # noqa: F401

DATA = {
    "user": "ann",
    "password": "hunter22",
    "login": {"API-Key": "k-123456", "tries": 3, "secret": None},
    "list": [{"access_token": ["one-token", 7654321]}],
    "pin": {"secret": "abc"},
}


def redacted(text, value):
    return without(text, secrets_of(value))


class MaskTests(SimpleTestCase):
    def test_stars_stand_for_what_has_a_sensitive_name(self):
        self.assertEqual(
            masked(DATA),
            {
                "user": "ann",
                "password": STARS,
                "login": {"API-Key": STARS, "tries": 3, "secret": None},
                "list": [{"access_token": STARS}],
                "pin": {"secret": STARS},
            },
        )

    def test_it_disappears_from_texts(self):
        reported = redacted("hunter22 k-123456 one-token 7654321 ann abc", DATA)
        self.assertEqual(reported, f"{STARS} {STARS} {STARS} {STARS} ann abc")

    def test_it_is_found_however_deep_it_lies(self):
        """
        JSON takes what is nested deeper than Python's functions; an error names it, too.
        """
        deep = {"password": "hunter22"}
        for _layer in range(3000):
            deep = {"a": [deep]}
        self.assertEqual(redacted("It was hunter22.", deep), f"It was {STARS}.")

    def test_of_one_that_begins_another_nothing_is_left(self):
        for first, second in (("hunter", "hunter22"), ("hunter22", "hunter")):
            data = {"password": first, "secret": second}
            self.assertEqual(redacted("hunter22 hunter", data), f"{STARS} {STARS}")

    def test_it_disappears_as_a_part_of_a_path(self):
        self.assertEqual(redacted("/in/ab%2Fcd%20ef", {"password": "ab/cd ef"}), f"/in/{STARS}")

    def test_yes_and_no_are_no_secrets(self):
        self.assertEqual(redacted("True story", {"token": True}), "True story")

    @override_settings(PERFECTQUEUE={"SENSITIVE": ["iban"]})
    def test_the_words_can_be_others(self):
        self.assertEqual(masked({"IBAN": 1, "password": 2}), {"IBAN": STARS, "password": 2})

    def test_words_that_would_never_match_are_reported(self):
        for words in (["Password"], ["api-key"], ["api key"], "password"):
            with self.subTest(words), override_settings(PERFECTQUEUE={"SENSITIVE": words}):
                self.assertEqual([one.id for one in check_settings()], ["perfectqueue.E001"])


class UnreadableTests(TestCase):
    """What can't be read has no secrets; its task is settled as that of any other error."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        # Drained tasks may import it first, and it would keep a mock that it imports.
        import_module("django_perfectqueue.backend.results")

    def test_an_error_of_a_codec_is_an_error_of_the_attempt(self):
        broken = mock.patch(
            "django_perfectqueue.payload.codecs.decode", side_effect=KeyError("no key")
        )
        Queue().submit("k1", "helpers.polite", {})
        with broken:
            [run] = drain(raise_errors=False)
        self.assertEqual((run.word, str(run.error)), ("retried", "'no key'"))

    def test_an_attempt_that_is_broken_off_meanwhile_is_broken_off(self):
        slow = mock.patch(
            "django_perfectqueue.payload.codecs.decode", side_effect=TimeLimitError("Now.")
        )
        Queue().submit("k1", "report")
        [task] = Queue().acquire()
        with slow, self.assertRaises(TimeLimitError):
            task.redacted("x")

    def test_what_is_nested_too_deep_to_be_read_is_reported_as_such(self):
        with self.assertRaisesMessage(PayloadError, "The stored text is not JSON: "):
            decode("[" * 100_000)


class SeenTests(TestCase):
    def test_what_is_nested_too_deep_is_not_shown_unmasked(self):
        self.client.force_login(User.objects.create_superuser("admin"))
        Queue().submit("k1", "report")
        for depth in (600, 1_200, 100_000):
            deep = "[" * depth + "]" * depth
            Task.objects.update(payload='{"password":"hunter22","deep":' + deep + "}")
            url = reverse("admin:perfectqueue_task_change", args=[Task.objects.get().pk])
            page = self.client.get(url).content.decode()
            with self.subTest(depth=depth):
                self.assertEqual((STARS in page, "hunter22" in page), (True, False))

    def test_the_admin_shows_stars(self):
        self.client.force_login(User.objects.create_superuser("admin"))
        Queue().submit("k1", "report", DATA)
        Queue().poll().finish({"token": "t-9876543"})
        url = reverse("admin:perfectqueue_task_change", args=[Task.objects.get().pk])
        page = self.client.get(url).content.decode()
        self.assertIn("ann", page)
        self.assertIn(STARS, page)
        for secret in ("hunter22", "k-123456", "one-token", "t-9876543"):
            self.assertNotIn(secret, page)

    def test_what_is_kept_of_errors_has_stars(self):
        for key in ("retried", "failed"):
            Queue().submit(key, "report", DATA)
        why = Failure(error="E", message="no hunter22", traceback="login('hunter22')")
        Queue().poll().retry(0, why=why)
        Queue().poll().fail(why=why)
        for attempt in Attempt.objects.all():
            self.assertEqual(attempt.message, f"no {STARS}")
            self.assertEqual(attempt.traceback, f"login('{STARS}')")
        self.assertEqual(DeadLetter.objects.get().message, f"no {STARS}")

    def test_data_that_can_not_be_read_does_not_keep_a_task_from_failing(self):
        Queue().submit("k1", "report")
        Task.objects.update(payload="{broken")
        Queue().poll().fail("E", "message")
        self.assertEqual(DeadLetter.objects.get().message, "message")
