"""Restarts under load: a short form of the benchmark, and what its audit finds."""

import json

from django.db import connection
from django.test import SimpleTestCase, TransactionTestCase, tag

from ..databases import UnavailableError
from ..databases.environment import SERVERS, kind_of
from .test_fairness import Folder, setUpModule

__all__ = ["setUpModule"]


@tag("thorough")
class CommandTests(Folder, TransactionTestCase):
    module = "benchmarks.restarts"

    def test_three_restarts_go_unnoticed(self):
        """
        Nothing is lost or run twice, and at every moment a processor is at work.
        """
        kind = kind_of(connection)
        if kind not in SERVERS:
            self.skipTest(f"The tests can't start {kind}.")
        try:
            with SERVERS[kind]():
                pass
        except UnavailableError as error:
            self.skipTest(str(error))
        results = self.folder / "results.jsonl"
        code, printed, complained = self.run_command(
            *("--times", "3", "--before", "2", "--processors", "2"),
            *("--databases", kind, "--output", results),
        )
        self.assertEqual(code, 0, printed + complained)
        run, _head = map(json.loads, results.read_text().splitlines())
        self.assertEqual(run["restarts"], 3)
        for name in ("lost", "unfinished", "twice", "attempts", "unattended"):
            self.assertEqual(run[name], 0, name)
        self.assertGreater(run["lowest"], 0)
        self.assertIn(f"| {kind}, 2 | 3 |", printed)
        self.assert_nothing_is_left()

    def test_what_can_not_be_done_is_said_in_one_line(self):
        code, _printed, complained = self.run_command("--report", "/nowhere/results")
        self.assertEqual(code, 1)
        self.assertIn("No such file or directory", complained)
        self.assertEqual(complained.count("\n"), 1)


class AuditTests(SimpleTestCase):
    def test_what_is_lost_run_twice_or_unattended_is_found(self):
        from benchmarks.probe import Start
        from benchmarks.restarts import Restart, Restarts, audited

        moments = {1: (1.2, 1.8, 2.5, 3.5, 4.3), 2: (5.5, 9.0)}
        ends = [(pid, moment) for pid, its in moments.items() for moment in its]
        notes = [Start(2, 3, int(5.0e9))]
        for task, (pid, moment) in enumerate(ends):
            notes.append(Start(pid, task, int((moment - 0.1) * 1e9)))
            notes.append(Start(pid, ~task, int(moment * 1e9)))
        found = audited(notes, [Restart(3.0, 6.0)], submitted=8, began=0.0)
        self.assertEqual((found["lost"], found["twice"]), (1, 1))
        self.assertAlmostEqual(found["unattended"], 5.0 - 4.3)
        self.assertEqual((found["usual"], found["lowest"]), (1.5, 1))
        self.assertEqual(found["took"], 3.0)
        self.assertTrue(Restarts().is_bad({**found, "unfinished": 0, "attempts": 0}))

    def test_the_time_without_a_processor_is_what_no_tenure_covers(self):
        from benchmarks.restarts import uncovered

        spans = [(0.0, 2.0), (1.0, 3.0), (3.5, 4.0)]
        self.assertEqual(uncovered(spans, 0.5, 5.0), [(3.0, 3.5), (4.0, 5.0)])
        self.assertEqual(uncovered(spans, 0.5, 3.0), [])
        self.assertEqual(uncovered([], 0.5, 3.0), [(0.5, 3.0)])
