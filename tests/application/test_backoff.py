import math
from datetime import timedelta
from itertools import pairwise

from django.test import SimpleTestCase

from django_perfectqueue.application import Backoff, Exponential, Fixed, Steps
from django_perfectqueue.exceptions import ConfigError


class WaitTests(SimpleTestCase):
    def test_each_has_its_waits(self):
        table = (
            (Fixed("5m", jitter=0), [300, 300, 300, 300]),
            (Fixed(timedelta(seconds=1), jitter=0), [1, 1, 1, 1]),
            (Exponential(jitter=0), [15, 30, 60, 120]),
            (Exponential(1, 50, 10, jitter=0), [1, 10, 50, 50]),
            (Steps(0, 1, "1m", jitter=0), [0, 1, 60, 60]),
        )
        for backoff, waits in table:
            with self.subTest(backoff):
                self.assertEqual([backoff.wait(errors) for errors in (1, 2, 3, 4)], waits)

    def test_however_many_errors_there_were_there_is_a_wait(self):
        self.assertEqual(Exponential(1, 50, 10, jitter=0).wait(32_767), 50)

    def test_chance_spreads_them_unless_configured_otherwise(self):
        """
        Tasks that failed together must not come back in one wave.
        """
        for backoff, least, most in (
            (Fixed(100), 75, 125),
            (Fixed(100, jitter=1), 0, 200),
            (Exponential(100, 100), 75, 100),
        ):
            waits = [backoff.wait(1) for _time in range(50)]
            self.assertGreater(len(set(waits)), 10)
            self.assertTrue(all(least <= wait <= most for wait in waits), waits)

    def test_what_is_no_wait_is_refused_where_it_is_written(self):
        wrong = (
            lambda: Fixed("soon"),
            lambda: Fixed(-1),
            lambda: Fixed(None),
            lambda: Fixed(5, jitter=2),
            lambda: Fixed(math.nan),
            lambda: Exponential(5, factor=0.5),
            lambda: Exponential(True),
            lambda: Steps(),
            lambda: Steps(1, "x"),
        )
        for make in wrong:
            with self.assertRaisesRegex(ConfigError, r"must be|needs"):
                make()

    def test_one_of_your_own_needs_a_usual_wait_only(self):
        class Squares(Backoff):
            def usual(self, errors):
                return errors**2

        waits = [Squares(jitter=0, longest="10s").wait(errors) for errors in (1, 2, 3, 4)]
        self.assertEqual(waits, [1, 4, 9, 10])
        self.assertTrue(all(one <= two for one, two in pairwise(waits)))
