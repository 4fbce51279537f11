"""Numbers and spans that no database can store."""

from django.test import TestCase

from .running import refused, run

HUGE = "9" * 30


class NumberTests(TestCase):
    def test_numbers_that_are_too_large_are_refused(self):
        for arguments, reported in (
            (("pq_task", "list", "--after", HUGE), "must be the id of a task"),
            (("pq_task", "list", "--after", "-1"), "must be the id of a task"),
            (("pq_task", "list", "--first", HUGE), "to 2,147,483,647"),
            (("pq_batch", "list", "--first", HUGE), "to 2,147,483,647"),
        ):
            with self.subTest(arguments):
                self.assertIn(reported, refused(self, *arguments))

    def test_a_span_that_is_too_long_is_a_hundred_years(self):
        run("pq_schedule", "put", "daily", "report", "--every", "7300d")
        out = run("pq_schedule", "backfill", "daily", "--since", f"{HUGE}d", "--dry-run")

        self.assertIn("tasks would be submitted", out)
