from django.test import SimpleTestCase, tag

from benchmarks.soak.load import BUSY, CYCLE, KINDS, is_busy, portions
from benchmarks.soak.report import (
    ALLOWED_BY_DEATHS,
    OF_DEATHS,
    growing,
    grown_by_deaths,
    report,
    trend,
    trends,
)

HOUR = 3600


def series(value, *, hours=1.0, every=10.0):
    moments = [number * every for number in range(int(hours * HOUR / every))]
    return [(moment, value(moment)) for moment in moments]


@tag("no-database")
class TrendTests(SimpleTestCase):
    def test_what_goes_up_and_down_with_the_work_does_not_grow(self):
        found = trend(series(lambda at: 100.0 if is_busy(at) else 20.0), CYCLE)
        self.assertEqual((found.slope, found.mean), (0.0, 100.0))
        self.assertFalse(found.grows(0.1))

    def test_a_leak_below_the_work_is_found(self):
        found = trend(series(lambda at: 100.0 + at / HOUR + 5 * is_busy(at)), CYCLE)
        self.assertAlmostEqual(found.slope, 1.0, places=3)
        self.assertAlmostEqual(found.after_a_day, 24.0, places=1)
        self.assertTrue(found.grows(0.1))

    def test_what_grows_at_first_only_is_left_out(self):
        found = trend(series(lambda at: min(at, HOUR / 4)), CYCLE)
        self.assertEqual(found.slope, 0.0)

    def test_chance_is_no_growth(self):
        found = trend(series(lambda at: 100.0 + 7 * (at // CYCLE % 2), hours=0.3), CYCLE)
        self.assertFalse(found.grows(0.1))

    def test_too_short_a_soak_has_no_trend(self):
        with self.assertRaisesMessage(ValueError, "run it for longer"):
            trend(series(lambda at: 1.0, hours=0.05), CYCLE)


@tag("no-database")
class ReportTests(SimpleTestCase):
    def test_it_names_what_grows(self):
        samples = [
            {"at": at, "memory_mib": 100.0 + at / 60, "rows_task": 5.0}
            for at, _value in series(lambda at: 0.0)
        ]
        self.assertEqual(growing(trends(samples)), ["memory_mib"])
        record = {
            "database": "sqlite",
            "terms": {"minutes": 60, "processors": 2},
            "submitted": 7,
            "samples": samples,
        }
        lines = report(record).splitlines()
        self.assertIn("grows", next(line for line in lines if "MiB (PSS)" in line))
        self.assertIn("flat", next(line for line in lines if "rows of `task`" in line))


@tag("no-database")
class DeathsTests(SimpleTestCase):
    def test_a_file_more_at_the_end_is_growth(self):
        first = {**dict.fromkeys(OF_DEATHS, 8.0), "deaths": 200.0}
        self.assertEqual(grown_by_deaths([first, {**first, "deaths": 900.0}]), [])
        self.assertEqual(grown_by_deaths([first, {**first, "files": 9.0}]), ["files"])

    def test_what_the_allocator_keeps_is_no_growth(self):
        first = dict.fromkeys(OF_DEATHS, 8.0)
        more = ALLOWED_BY_DEATHS["memory_kib"]
        self.assertEqual(grown_by_deaths([first, {**first, "memory_kib": 8.0 + more}]), [])
        self.assertEqual(
            grown_by_deaths([first, {**first, "memory_kib": 9.0 + more}]), ["memory_kib"]
        )


@tag("no-database")
class LoadTests(SimpleTestCase):
    def test_there_is_all_kinds_of_work_and_each_key_once(self):
        coming = portions(2000, 0.5, seed=1)
        tasks = [task for _portion in range(4) for task in next(coming).tasks]
        keys = {task["key"] for task in tasks}
        self.assertEqual(len(keys), 4000)
        self.assertEqual({key.split("-")[0] for key in keys}, set(KINDS))

    def test_work_and_rest_take_turns(self):
        self.assertTrue(is_busy(0) and is_busy(BUSY - 1) and is_busy(CYCLE))
        self.assertFalse(is_busy(BUSY) or is_busy(CYCLE - 1))
