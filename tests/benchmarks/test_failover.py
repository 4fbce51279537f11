"""The benchmark that kills the primary of a cluster: its command, and what it measures."""

import json
from unittest import mock

from django.test import SimpleTestCase

from .command import Command
from .test_storm import setUpModule

__all__ = ["setUpModule"]


def sample(**changes):
    """Return a run of two kills as the command stores it."""
    recovery = {"fault": "primary", "struck": 2, "measured": 2, "p50": 0.5, "max": 1.5}
    return {
        "database": "mariadb",
        "terms": {"strikes": 2, "seed": 7, "nodes": 3},
        "seconds": 60.0,
        "tasks": 7000,
        "strikes": {"primary": 2},
        "kinds": {},
        "violations": [],
        "said": [],
        "recoveries": [{**recovery, "what": "a task starts, from then", "bound": 2.0, "late": 0}],
        **changes,
    }


class CommandTests(Command, SimpleTestCase):
    module = "benchmarks.failover"

    def reported(self, **changes):
        self.results.write_text(json.dumps(sample(**changes)))
        return self.run_command("--report", self.results)

    def test_its_help_names_the_clusters_and_the_fault(self):
        code, printed, complained = self.run_command("--help")
        self.assertEqual(code, 0, complained)
        for name in ("--patroni", "--galera N", "--kills", "primary"):
            self.assertIn(name, printed)

    def test_what_is_no_cluster_is_said_in_one_line(self):
        for arguments, expected in (
            ((), "Say which cluster"),
            (("--galera", "2"), "fewer than 3"),
        ):
            with self.subTest(arguments):
                code, _printed, complained = self.run_command(*arguments)
                self.assertEqual((code, complained.count("\n")), (1, 1), complained)
                self.assertIn(expected, complained)

    def test_a_stored_run_makes_tables(self):
        code, printed, complained = self.reported()
        self.assertEqual(code, 0, complained)
        self.assertIn("| primary: a task starts, from then | 2 | 2; 0.50, 1.50 |", printed)
        self.assertIn("| mariadb | 1.0 | 7 | 0 | 2 | 0 | 0 | 0 | 0 | 0 | 7,000 |", printed)

    def test_a_lost_task_or_a_late_return_is_a_failure(self):
        lost = {"kinds": {"lost": 1}, "violations": ["lost: k0 was submitted, and was never there"]}
        code, printed, _complained = self.reported(**lost)
        self.assertEqual(code, 1)
        self.assertIn("python -m benchmarks.failover --galera 3 --kills 2 --seed 7", printed)
        [recovery] = sample()["recoveries"]
        code, _printed, _complained = self.reported(recoveries=[{**recovery, "late": 1}])
        self.assertEqual(code, 1)


class MeasureTests(SimpleTestCase):
    def test_what_was_acquired_before_the_kill_or_is_forgotten_does_not_count(self):
        from benchmarks.chaos.audit.history import RUNNING, Change, Run, Strike
        from benchmarks.chaos.calls import Call
        from benchmarks.failover.primary import submit_commits, task_starts

        def run(task, began):
            return Run(task=task, attempt=1, holder=1, pid=1, host="", began=began)

        def change(task, at):
            known = {"was": 0, "state": RUNNING, "attempt": 1, "holder": 1, "alarm": None}
            return Change(id=task, at=at, task=task, **known)

        runs = [run(1, 31.0), run(2, 32.0), run(3, 33.0), run(4, 30.5)]
        changes = [change(1, 9.0), change(2, 31.5), change(3, 32.5)]
        calls = [
            Call("", "submit", 9.0, 29.0, "done"),
            Call("", "submit", 10.0, 30.5, "broken"),
            Call("", "submit", 31.0, 34.0, "done"),
        ]
        history = mock.Mock(runs=runs, calls=calls, acquires_of={})
        for run_, taken in zip(runs, changes, strict=False):
            history.acquires_of[run_.ref] = [taken]
        strike = Strike("primary", 10.0, 30.0)
        self.assertEqual(task_starts(history, strike), 2.0)
        self.assertEqual(submit_commits(history, strike), 4.0)
