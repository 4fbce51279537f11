"""Sustained work: a short run, what a run is held to, and what grows with time or by deaths."""

import json

from django.db import connection
from django.test import SimpleTestCase, TransactionTestCase, tag

from benchmarks.deaths import ALLOWED, NAMES, grown
from benchmarks.sustained.__main__ import Sustained
from benchmarks.sustained.live import KINDS, NOTED, portions
from benchmarks.sustained.report import growing, is_pinned, reaches, report, trends

from ..databases import UnavailableError
from ..databases.environment import SERVERS, kind_of
from .test_fairness import Folder, setUpModule

__all__ = ["setUpModule"]

EVERY = 60.0
STEADY = {
    "rate": 1_000.0,
    "wait": 4.0,
    "data_mib": 8.0,
    "indexes_mib": 2.0,
    "dead": 10.0,
    "rows_task": 5.0,
    "memory_mib": 100.0,
    "files": 90.0,
    "server": 50.0,
    "purge": 5.0,
}


def samples(count=60, **changing):
    """Return those of a steady run; what changes is given by the number of the interval."""
    return [
        {**STEADY, "at": number * EVERY, **{name: of(number) for name, of in changing.items()}}
        for number in range(count)
    ]


@tag("thorough")
class CommandTests(Folder, TransactionTestCase):
    module = "benchmarks.sustained"

    def test_a_short_run_ends_with_its_tables_and_its_picture(self):
        """How fast anything is, and so what it has missed, is no test's business."""
        kind = kind_of(connection)
        if kind not in SERVERS:
            self.skipTest(f"The tests can't start {kind}.")
        try:
            with SERVERS[kind]():
                pass
        except UnavailableError as error:
            self.skipTest(str(error))
        results = self.folder / "results.jsonl"
        _code, printed, complained = self.run_command(
            *("--minutes", "0.5", "--databases", kind, "--output", results, "--into", self.folder)
        )
        run, _head = map(json.loads, results.read_text().splitlines())
        self.assertNotIn("error", run, complained)
        self.assertEqual(len(run["samples"]), run["terms"]["intervals"])
        self.assertGreater(run["submitted"], 0)
        self.assertTrue(all(sample["waits"] and sample["rate"] for sample in run["samples"]))
        self.assertIn("rate, last tenth ÷ first tenth", printed)
        self.assertIn("<svg", (self.folder / f"{kind}.svg").read_text())
        self.assert_nothing_is_left()


class ReachTests(SimpleTestCase):
    def missed(self, **changing):
        return Sustained().wrong({"samples": samples(**changing)})

    def test_a_steady_run_misses_nothing(self):
        self.assertEqual(self.missed(), [])

    def test_the_snapshot_is_open_in_the_middle_third(self):
        pinned = [number for number in range(30) if is_pinned(number, 30)]
        self.assertEqual(pinned, list(range(10, 20)))

    def test_what_is_slower_at_the_end_or_beside_the_snapshot_is_found(self):
        [of_end] = self.missed(rate=lambda number: 1_000.0 - 100 * (number > 53))
        self.assertIn("last tenth", of_end)
        [of_pin] = self.missed(rate=lambda number: 1_000.0 - 500 * is_pinned(number, 60))
        self.assertIn("beside the snapshot", of_pin)
        [of_lone] = self.missed(wait=lambda number: 4.0 + 5 * is_pinned(number, 60))
        self.assertIn("latency", of_lone)

    def test_what_goes_on_growing_once_the_snapshot_has_closed_is_found(self):
        self.assertEqual(self.missed(data_mib=lambda number: 8.0 + min(number, 39)), [])
        self.assertEqual(len(self.missed(indexes_mib=lambda number: 8.0 + number)), 1)

    def test_a_costly_purge_is_found(self):
        self.assertEqual(len(self.missed(purge=lambda number: 8.0)), 1)

    def test_only_what_the_database_shows_is_asked_for(self):
        run = samples(indexes_mib=lambda number: 0.0)
        for sample in run:
            del sample["purge"]
        self.assertEqual(len(reaches(run)), 4)

    def test_the_report_names_what_is_missed_and_what_grows(self):
        record = {
            "database": "sqlite",
            "terms": {"minutes": 60, "processors": 2, "retention": 60},
            "submitted": 7,
            "samples": samples(
                rate=lambda number: 1_000.0 - 10 * number, memory_mib=lambda number: 100.0 + number
            ),
        }
        lines = report(record).splitlines()
        self.assertTrue(any("last tenth" in line and "missed" in line for line in lines))
        self.assertTrue(any("MiB (PSS)" in line and "grows" in line for line in lines))
        self.assertTrue(any("open files" in line and "flat" in line for line in lines))


class TrendTests(SimpleTestCase):
    def test_a_leak_is_found_below_what_goes_up_and_down(self):
        run = samples(memory_mib=lambda number: 100.0 + number / 60 + number % 2 / 100)
        self.assertAlmostEqual(trends(run)["memory_mib"].growth, 24.0, places=0)
        self.assertEqual(growing(run), ["memory_mib"])

    def test_chance_is_no_growth(self):
        self.assertEqual(growing(samples(memory_mib=lambda number: 100.0 + 7 * (number % 3))), [])

    def test_what_grows_at_first_only_is_left_out(self):
        found = trends(samples(memory_mib=lambda number: float(min(number, 15))))
        self.assertEqual(found["memory_mib"].growth, 0.0)

    def test_a_short_run_has_no_trend(self):
        self.assertEqual(trends(samples(count=20)), {})


class DeathsTests(SimpleTestCase):
    def test_a_file_more_at_the_end_is_growth(self):
        first = {**dict.fromkeys(NAMES, 8.0), "deaths": 200.0}
        self.assertEqual(grown([first, {**first, "deaths": 900.0}]), [])
        self.assertEqual(grown([first, {**first, "files": 9.0}]), ["files"])

    def test_what_the_allocator_keeps_is_no_growth(self):
        first = dict.fromkeys(NAMES, 8.0)
        more = ALLOWED["memory_kib"]
        self.assertEqual(grown([first, {**first, "memory_kib": 8.0 + more}]), [])
        self.assertEqual(grown([first, {**first, "memory_kib": 9.0 + more}]), ["memory_kib"])


class LoadTests(SimpleTestCase):
    def test_there_is_all_kinds_of_work_and_each_key_once(self):
        coming = portions(2000, seed=1)
        some = [next(coming) for _portion in range(4)]
        keys = {task["key"] for portion in some for task in portion.tasks}
        self.assertEqual(len(keys), 8000)
        kinds = [key.split("-")[0] for key in keys]
        self.assertEqual(set(kinds), set(KINDS))
        noted = sum(portion.noted for portion in some)
        self.assertEqual(noted, sum(kind in NOTED for kind in kinds))
