"""The benchmarks still run; how fast anything is, is no test's business."""

import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import unittest

from django.test import SimpleTestCase, tag

from ..waiting import wait_until
from .command import ROOT, Command

SMALLEST = ("--databases", "sqlite", "--tasks", "20", "--metrics", "drain")


def setUpModule():
    if not (ROOT / "benchmarks").is_dir():
        raise unittest.SkipTest("The benchmarks are not beside the tests.")


class ImportTests(SimpleTestCase):
    def test_each_program_begins_before_django_is_set_up(self):
        """So it imports nothing at its head that defines or uses a model."""
        files = {file: file.read_text() for file in (ROOT / "benchmarks").rglob("*.py")}
        programs = [file for file, text in files.items() if '__name__ == "__main__"' in text]
        names = {".".join(file.relative_to(ROOT).with_suffix("").parts) for file in programs}
        self.assertIn("benchmarks.chaos.process", names)
        parts = re.findall(r'"(benchmarks\.[a-z_.]+):[A-Za-z.]+"', "".join(files.values()))
        self.assertIn("benchmarks.chaos.run", parts)
        # The worker of another queue needs the drivers of that.
        names.update(part for part in parts if not part.startswith("benchmarks.workers."))
        code = "; ".join(f"import {name}" for name in sorted(names))
        environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "benchmarks.settings"}
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True
        )
        self.assertEqual((done.returncode, done.stderr), (0, ""))


class CommandTests(Command, SimpleTestCase):
    def run_to_the_end(self, *arguments):
        """Return what it printed; fail when it did not end well."""
        code, printed, complained = self.run_command(*arguments)
        self.assertEqual(code, 0, complained)
        return printed

    @tag("thorough")
    def test_the_smallest_run_drains_and_makes_its_tables(self):
        peers = "perfectqueue,raw-100"
        printed = self.run_to_the_end(
            *SMALLEST, "--rounds", "1", "--peers", peers, "--output", str(self.results)
        )
        head, *samples = map(json.loads, self.results.read_text().splitlines())
        self.assertEqual(list(head["machine"]["servers"]), ["sqlite"])
        self.assertEqual({sample["peer"] for sample in samples}, set(peers.split(",")))
        for sample in samples:
            with self.subTest(f"{sample['peer']} {sample['variant']}"):
                self.assertTrue(sample["whole"], sample)
                self.assertEqual(sample["ran"], sample["n"])
        self.assertIn("| raw-100 |", printed)
        self.assert_nothing_is_left()
        self.assertEqual(self.run_to_the_end("--report", str(self.results)), printed)

    def test_an_interrupted_run_leaves_nothing_running(self):
        arguments = (*SMALLEST, "--peers", "raw-100", "--rounds", "500")
        process = self.start(*arguments, "--output", str(self.results))
        wait_until(
            lambda: self.results.exists() and self.results.read_text().count("\n") > 1, within=60
        )
        process.send_signal(signal.SIGINT)
        _, complained = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130, complained)
        self.assert_nothing_is_left()

    def test_a_killed_run_leaves_nothing_running(self):
        process = self.start(*SMALLEST, "--peers", "perfectqueue", "--output", str(self.results))
        wait_until(lambda: len(self.processes()) > 4, within=60)
        process.kill()
        process.communicate(timeout=60)
        self.assert_nothing_is_left()

    def test_what_can_not_be_done_is_said_in_one_line(self):
        alone = ("--databases", "sqlite", "--peers", "raw-100")
        self.results.write_text("nonsense")
        reported = {
            (*alone, "--output", "/nowhere/results"): "can't be written",
            (*alone, "--metrics", "latency"): "nothing to measure",
            ("--report", str(self.results)): "holds no results",
        }
        for arguments, expected in reported.items():
            with self.subTest(expected):
                process = self.start(*arguments)
                _, complained = process.communicate(timeout=60)
                self.assertEqual(process.returncode, 1)
                self.assertEqual(complained.count("\n"), 1, complained)
                self.assertIn(expected, complained)

    def test_an_unknown_peer_is_refused_with_those_there_are(self):
        process = self.start("--peers", "nobody")
        _, complained = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 2)
        self.assertIn("there is no 'nobody'; there are perfectqueue", complained)


class ReportTests(SimpleTestCase):
    def test_ratios_are_of_the_same_round(self):
        from benchmarks.__main__ import Benchmarks

        rates = {"perfectqueue": [100, 900], "huey": [10, 300]}
        records = [
            {
                "metric": "submit",
                "variant": "one",
                "database": "sqlite",
                "peer": peer,
                "round": number,
                "rate": rate,
            }
            for peer, measured in rates.items()
            for number, rate in enumerate(measured)
        ]
        reported = Benchmarks().report(records)
        self.assertIn("| huey on sqlite | 155 (10-300) | 6.50 |", reported)

    def test_what_failed_and_what_is_not_whole_is_reported(self):
        from benchmarks.__main__ import Benchmarks

        name = {"metric": "drain", "database": "sqlite", "peer": "huey", "round": 1}
        reported = Benchmarks().report(
            [
                {**name, "variant": "1", "rate": 5.0, "n": 10, "whole": False},
                {**name, "variant": "2", "error": "StuckError: no task ran\nmore"},
            ]
        )
        self.assertIn("| huey | 5‡ |", reported)
        self.assertIn("- drain 2, huey on sqlite: StuckError: no task ran\n", reported + "\n")

    def test_a_peer_that_is_not_there_is_said_and_passed_over(self):
        from unittest import mock

        from benchmarks import __main__, peers

        with (
            mock.patch.object(peers, "installed", return_value=""),
            contextlib.redirect_stderr(io.StringIO()) as said,
        ):
            self.assertEqual(__main__.those_installed(["huey", "raw-1"]), ["raw-1"])
        self.assertEqual(said.getvalue(), "huey: not installed: pip install huey peewee\n")
