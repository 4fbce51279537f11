from django.test import SimpleTestCase

from django_perfectqueue.application import next_wait


class NextWaitTests(SimpleTestCase):
    def test_the_wait_doubles_up_to_its_limit(self):
        """
        What fails again and again should be tried less and less often, but not never.
        """
        table = [(1, 15), (2, 30), (3, 60), (4, 120), (8, 1920), (9, 3600), (2000, 3600)]
        for tries, wait in table:
            with self.subTest(tries=tries):
                self.assertEqual(next_wait(tries, first=15, longest=3600), wait)

    def test_chance_spreads_it_by_a_quarter_to_both_sides(self):
        """
        Tasks that failed together must not come back in one wave.
        """
        waits = [next_wait(1, first=100, longest=3600, chance=chance) for chance in (0, 0.5, 1)]
        self.assertEqual(waits, [75, 100, 125])

    def test_chance_never_exceeds_the_limit(self):
        self.assertEqual(next_wait(9, first=100, longest=3600, chance=1), 3600)

    def test_no_wait_stays_no_wait(self):
        self.assertEqual(next_wait(5, first=0, longest=3600, chance=1), 0)
