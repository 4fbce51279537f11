"""The fairness benchmark: what it reads, what it finds, and that processors do as simulated."""

import contextlib
import dataclasses
import io
import itertools
import json
import math
import sys
import unittest
from collections import Counter
from unittest import mock

import hypothesis.strategies as st
from django.db import connection
from django.test import SimpleTestCase, TransactionTestCase, tag
from hypothesis import example, given, settings

from ..databases import UnavailableError
from ..databases.environment import SERVERS, kind_of
from .command import ROOT, Command

SMALL = """
title = "Small"
tasks = 600

[[users]]
name = "one"
task = 0.004
backlog = 400

[[users]]
name = "three"
weight = 3
task = 0.008
backlog = 600

[[users]]
name = "nobody"
user = ""
task = 0.002
backlog = 800
"""
BY_SCHEDULES = """
[[users]]
name = "by schedules"
task = 0.002
backlog = 200
scheduled = true
"""
AGREE = 0.05
"""How far apart a group's part of the time may be when run and when simulated."""


def setUpModule():
    if not (ROOT / "benchmarks").is_dir():
        raise unittest.SkipTest("The benchmarks are not beside the tests.")


class Folder(Command):
    """Its command, and files for it."""

    module = "benchmarks.fairness"

    def scenario_file(self, text, name="small.toml"):
        path = self.folder / name
        path.write_text(text)
        return path


@tag("thorough")
class CommandTests(Folder, TransactionTestCase):
    def test_processors_share_as_the_simulation_says(self):
        kind = kind_of(connection)
        if kind not in SERVERS:
            self.skipTest(f"The tests can't start {kind}.")
        try:
            with SERVERS[kind]():
                pass
        except UnavailableError as error:
            self.skipTest(str(error))
        small, results = self.scenario_file(SMALL + BY_SCHEDULES), self.folder / "results.jsonl"
        common = ("--scenarios", small, "--processors", "2")
        code, _printed, complained = self.run_command(
            *common, "--databases", kind, "--output", results, "--into", self.folder / "out"
        )
        self.assertEqual(code, 0, complained)
        head, run = map(json.loads, results.read_text().splitlines())
        self.assertEqual(list(head["machine"]["servers"]), [kind])
        self.assertGreaterEqual(run["tasks"], 600)
        self.assertAlmostEqual(sum(group["got"] for group in run["groups"]), 1.0)
        self.assertAlmostEqual(sum(group["asked"] for group in run["groups"]), 1.0, places=2)
        self.assertIn("| small |", (self.folder / "out" / "report.md").read_text())

        code, _printed, complained = self.run_command(*common, "--simulate", "--output", results)
        self.assertEqual(code, 0, complained)
        _head, simulated = map(json.loads, results.read_text().splitlines())
        for real, counted in zip(run["groups"], simulated["groups"], strict=True):
            with self.subTest(real["name"]):
                self.assertAlmostEqual(real["got"], counted["got"], delta=AGREE)
        self.assert_nothing_is_left()


class ReportTests(Folder, SimpleTestCase):
    def test_results_become_a_report_at_once_and_later(self):
        results = self.folder / "results.jsonl"
        code, printed, complained = self.run_command(
            "--simulate", "--scenarios", self.scenario_file(SMALL), "--output", results
        )
        self.assertEqual(code, 0, complained)
        self.assertIn("### Share error, % of all time given", printed)
        self.assertIn("|  | simulated, 1 | simulated, 4 |", printed)
        self.assertIn("| three | 1 | 3 | - | 8 |", printed)
        self.assertEqual(self.run_command("--report", results), (0, printed, ""))

    def test_without_matplotlib_there_is_a_report_without_charts(self):
        from benchmarks.fairness import __main__

        options = mock.Mock(into=self.folder / "out")
        with (
            mock.patch.dict(sys.modules, {"matplotlib": None}),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()) as said,
        ):
            __main__.Fairness().hand_over(options, [record()])
        self.assertIn("No charts: matplotlib is not installed.", said.getvalue())
        self.assertEqual([file.name for file in options.into.iterdir()], ["report.md"])

    def test_charts_are_drawn_where_matplotlib_is(self):
        from benchmarks.fairness import charts

        try:
            import matplotlib  # noqa: F401
        except ImportError:
            self.skipTest("matplotlib is not installed.")
        files = charts.drawn([record()], self.folder)
        self.assertEqual([file.name for file in files], ["one.svg"])
        self.assertTrue(all("<svg" in file.read_text() for file in files))

    def test_a_missed_reach_and_a_failure_are_reported(self):
        from benchmarks.fairness.__main__ import Fairness

        reported = Fairness().report(
            [
                {**record(), "share_error": 0.02, "reach": 1.0},
                {"scenario": "two", "database": "sqlite", "processors": 4, "error": "No.\nMore."},
            ]
        )
        self.assertIn("| one | 2.00**!** |", reported)
        self.assertIn("- two, sqlite, 4: No.\n", reported + "\n")

    def test_what_can_not_be_done_is_said_in_one_line(self):
        bad = self.scenario_file("[[users]]\nrate = -1\n")
        nonsense = self.scenario_file("nonsense", "results.jsonl")
        reported = {
            ("--simulate", "--scenarios", "nobody"): "There is no scenario 'nobody'.",
            ("--simulate", "--scenarios", bad): "rate is -1; it must be from 0 on.",
            ("--simulate", "--output", "/nowhere/results"): "No such file or directory",
            ("--report", nonsense): "holds no results",
        }
        for arguments, expected in reported.items():
            with self.subTest(expected):
                code, _printed, complained = self.run_command(*arguments)
                self.assertEqual(code, 1)
                self.assertEqual(complained.count("\n"), 1, complained)
                self.assertIn(expected, complained)

    def test_options_that_can_not_be_are_refused(self):
        for arguments in (("--processors", "0"), ("--databases", "oracle")):
            with self.subTest(arguments):
                code, _printed, complained = self.run_command(*arguments)
                self.assertEqual(code, 2)
                self.assertIn(f"argument {arguments[0]}", complained)


def record():
    """Return what a scenario came to, computed in an instant."""
    from benchmarks.fairness.audit import Run, audited
    from benchmarks.fairness.scenario import Group, Scenario

    scenario = Scenario(name="one", title="One", groups=(Group(name="ann", user="ann"),))
    found = audited(scenario, [Run("ann", 0.0, 0.0, 1.0, 1.0)], processors=1, seconds=2.0)
    about = {"scenario": "one", "title": "One", "about": "", "reach": 1.0}
    return {**about, "database": "simulated", "processors": 1, **found}


class ScenarioTests(Folder, SimpleTestCase):
    def test_a_file_tells_who_submits_what(self):
        from benchmarks.fairness.scenario import arrivals, read

        text = """
        seconds = 10
        per_processor = true
        [[users]]
        name = "burst"
        count = 2
        task = { least = 0.1, most = 0.2 }
        backlog = 3
        at = [0, 5]
        scheduled = true
        [[users]]
        name = "stream"
        task = { mean = 0.5 }
        rate = 4
        from = 2
        until = 6
        """
        scenario = read(self.scenario_file(text))
        coming = arrivals(scenario, 2)
        bursts = [one for one in coming if one.user == "burst-1"]
        stream = [one for one in coming if one.user == "stream"]

        self.assertEqual([one.at for one in bursts], [0.0] * 6 + [5.0] * 6)
        self.assertTrue(all(0.1 <= one.seconds <= 0.2 for one in bursts))
        self.assertTrue(all(2 < one.at < 6 for one in stream))
        self.assertAlmostEqual(len(stream), 2 * 4 * 4, delta=20)
        self.assertEqual(coming, arrivals(scenario, 2))
        self.assertEqual(coming, sorted(coming, key=lambda one: one.at))
        self.assertEqual([group.scheduled for group in scenario.groups], [True, False])

    def test_what_is_wrong_in_a_file_is_said(self):
        from benchmarks.fairness.scenario import ScenarioError, read

        reported = {
            "users = 3": "users is 3, which is not a list of tables",
            "title = 'a'": "has no users. Add a table [[users]]",
            "a = [": "is not TOML",
            "[[users]]": "users 1: nothing ever comes. Give a backlog, a rate or at_once.",
            "[[users]]\nbacklog = 1\nwait = 2": "users 1: there is no 'wait'; there are name,",
            "[[users]]\nbacklog = 1.5": "backlog is 1.5, which is not a whole number",
            "[[users]]\nbacklog = true": "backlog is True, which is not a whole number",
            "[[users]]\nbacklog = 1\nweight = 0": "weight is 0; it must be from 0.001 to 1e+06",
            "[[users]]\nbacklog = 1\ntask = 'x'": "task is 'x', which is not a number of seconds",
            "[[users]]\nbacklog = 1\ntask = { most = 1 }": "task is a number of seconds, { least",
            "[[users]]\nbacklog = 1\nat = [0, 'x']": "at is 'x', which is not a number.",
            "[[users]]\nrate = inf": "rate is inf; it must be from 0 on.",
            "[[users]]\nrate = nan": "rate is nan, which is not a number.",
            "[[users]]\nname='a'\nbacklog = 1\n" * 2: "names the user 'a' twice",
            "[[users]]\nuser=''\ncount=2\nbacklog = 1": "tasks without a user are one line",
            "seconds = 0\n[[users]]\nbacklog = 1": "seconds is 0; it must be from 0.01 on.",
        }
        for text, expected in reported.items():
            with self.subTest(expected), self.assertRaises(ScenarioError) as raised:
                read(self.scenario_file(text))
            with self.subTest(expected):
                self.assertIn(expected, str(raised.exception))
                self.assertIn("small.toml", str(raised.exception))


class ShippedTests(SimpleTestCase):
    @tag("thorough")
    def test_each_keeps_its_promise_when_simulated(self):
        from benchmarks.fairness.__main__ import can_be_simulated
        from benchmarks.fairness.audit import audited
        from benchmarks.fairness.scenario import find, shipped
        from benchmarks.fairness.simulation import simulated

        for scenario in filter(can_be_simulated, find(shipped())):
            for processors in (1, 4):
                with self.subTest(f"{scenario.name}, {processors}"):
                    runs, seconds = simulated(scenario, processors)
                    found = audited(scenario, runs, processors=processors, seconds=seconds)
                    self.assertGreater(found["used"], 0.95)
                    if scenario.reach is not None:
                        self.assertLessEqual(found["share_error"] * 100, scenario.reach)

    def test_a_newcomer_begins_within_a_batch_and_a_task(self):
        """However long others' tasks are, and however many of them wait."""
        from benchmarks.fairness.audit import audited
        from benchmarks.fairness.scenario import find
        from benchmarks.fairness.simulation import simulated
        from django_perfectqueue.worker.processor.pacing import SPAN, TOO_FAR

        for scenario in find(["newcomer", "suddenly-long"]):
            for processors in (1, 4):
                runs, seconds = simulated(scenario, processors)
                found = audited(scenario, runs, processors=processors, seconds=seconds)
                for one in found["newcomers"]:
                    with self.subTest(f"{scenario.name}, {processors}, {one['user']}"):
                        self.assertLess(one["wait"], SPAN * TOO_FAR + found["longest"])


class OverrunTests(SimpleTestCase):
    """
    Ten users have tasks of 20 ms, and one more does what it can to have more than its part.

    It may have its share of the processors, rounded up to a whole one, but no more.
    """

    LONG = 30.0

    def others(self, processors, tasks, *, seconds=10.0, after=3.0, others=(0.02, 1000)):
        """
        Return how much of their share ten others have got in the seconds from a moment on, when
        another user comes with tasks: of each when it is due, how long it takes and how often
        it is released before it ends.
        """
        from benchmarks.fairness.audit import Run, spread
        from benchmarks.fairness.lines import Lines, Task
        from benchmarks.fairness.simulation import Simulation

        took, backlog = others
        coming = [(0.0, Task(user, 0.0, took)) for user in range(1, 11) for _ in range(backlog)]
        coming += [(due, Task(0, due, took, *again)) for due, took, *again in tasks]
        coming.sort(key=lambda one: one[0])
        simulation = Simulation(Lines([(1.0, None)] * 11), coming, processors=processors)
        simulation.run(seconds=after + seconds)
        got = [0.0]
        for task, started, ended in simulation.began:
            if task.lane:
                spread(got, Run("", 0.0, started - after, ended - after, 0.0), seconds)
        return got[0] / (seconds * processors * 10 / 11)

    def assert_one_processor(self, tasks, **terms):
        for processors, least in ((4, 0.80), (8, 0.92)):
            with self.subTest(processors=processors):
                self.assertGreaterEqual(self.others(processors, tasks, **terms), least)

    def test_who_was_always_quick_and_is_suddenly_not(self):
        history = [(0.0, 0.01)] * 60
        self.assert_one_processor([*history, *[(3.0, self.LONG)] * 8])

    def test_who_was_never_seen_before(self):
        self.assert_one_processor([(3.0, self.LONG)] * 8)

    def test_who_alternates(self):
        short_and_long = [(3.0, 0.01), (3.0, self.LONG)] * 8
        self.assert_one_processor([*[(0.0, 0.01)] * 60, *short_and_long])

    def test_who_comes_with_many_at_one_moment_when_some_have_ended(self):
        tasks = [(3.0 + 0.1 * number, 0.01) for number in range(20)]
        self.assert_one_processor([*tasks, *[(5.0, self.LONG)] * 100], after=5.0)

    def test_who_releases_just_before_it_would_be_charged_again(self):
        """It is charged for what it ran each time."""
        for took in (0.095, 0.145, 0.39):
            with self.subTest(took=took):
                self.assert_one_processor([(3.0, took, 30)] * 20)

    @tag("thorough")
    def test_over_five_minutes_everybody_is_within_a_task_of_its_share(self):
        seconds, processors = 300.0, 4
        history = [(0.0, 0.01)] * 60
        part = self.others(
            processors,
            [*history, *[(3.0, self.LONG)] * 40],
            seconds=seconds,
            others=(0.1, 1300),
        )
        share = seconds * processors * 10 / 11
        self.assertLessEqual(abs(part - 1) * share, self.LONG)

    def test_alone_it_has_all_processors(self):
        from benchmarks.fairness.lines import Lines, Task
        from benchmarks.fairness.simulation import Simulation

        for long in (0.3, self.LONG):
            lines = Lines([(1.0, None)])
            coming = [(0.0, Task(0, 0.0, long)) for _ in range(8)]
            simulation = Simulation(lines, coming, processors=4)
            simulation.run()
            ended = max(ended for _task, _started, ended in simulation.began)
            self.assertLess(ended, 2 * long + 1.5)


AMOUNTS = st.floats(0.0, 100.0)
CLAIMS = st.lists(st.tuples(st.floats(0.1, 100.0), AMOUNTS), max_size=8)


class RulesTests(SimpleTestCase):
    """Others' rules on the same arrivals: each fails where its source says that it does."""

    def play(self, name, rule, processors, **changed):
        from benchmarks.fairness import rules, scenario

        [found] = scenario.find([name])
        found = dataclasses.replace(found, **changed)
        return found, *rules.played(rules.RULES[rule])(found, processors)

    def error(self, name, rule, **changed):
        from benchmarks.fairness.audit import audited

        scenario, runs, seconds = self.play(name, rule, 4, **changed)
        return audited(scenario, runs, processors=4, seconds=seconds)

    def test_dispatches_give_time_by_length(self):
        found = self.error("lengths-20-1", "by dispatches")
        self.assertGreater(found["share_error"], 0.2)
        self.assertLess(self.error("weights-1-3", "by dispatches")["share_error"], 0.01)

    def test_a_cap_leaves_processors_idle(self):
        found = self.error("light-beside-heavy", "a cap of 1", seconds=60)
        self.assertLess(found["used"], 0.4)
        self.assertEqual(self.error("light-beside-heavy", "by slots", seconds=60)["used"], 1.0)

    def test_first_in_first_out_lets_the_light_wait_for_the_backlog(self):
        found = self.error("light-beside-heavy", "first in, first out", seconds=60)
        self.assertEqual(found["groups"][1]["started"], 0)
        for rule in ("round robin", "quiet first"):
            found = self.error("light-beside-heavy", rule, seconds=60)
            self.assertGreater(found["groups"][1]["started"], 50)
            self.assertLess(found["groups"][1]["p95"], 6.0)

    def test_all_that_comes_is_run_or_left(self):
        from benchmarks.fairness.rules import RULES

        for rule in RULES:
            _scenario, runs, _seconds = self.play("comers-back", rule, 2)
            running = [run for run in runs if run.started is not None]
            moments = [run.started for run in running]
            self.assertEqual(moments, sorted(moments), rule)
            for run in running[:200]:
                at_once = sum(one.started <= run.started < one.ended for one in running)
                self.assertLessEqual(at_once, 2, rule)


class EntitledTests(SimpleTestCase):
    def divided(self, amount, **claims):
        from benchmarks.fairness.entitled import Claim, divided

        return divided(amount, {user: Claim(*claim) for user, claim in claims.items()})

    def test_what_one_can_not_use_goes_to_the_others_by_weight(self):
        shares = self.divided(12.0, ann=(1, 100.0), bob=(2, 100.0), eve=(3, 3.0))
        self.assertEqual(shares, {"ann": 3.0, "bob": 6.0, "eve": 3.0})

    def test_what_nobody_can_use_is_given_to_none(self):
        self.assertEqual(self.divided(9.0, ann=(1, 2.0), bob=(1, 3.0)), {"ann": 2.0, "bob": 3.0})

    @settings(derandomize=True)
    @given(AMOUNTS, CLAIMS)
    def test_nobody_could_have_more_but_from_one_who_has_less(self, amount, claims):
        from benchmarks.fairness.entitled import LEAST, Claim, divided

        claims = {number: Claim(*claim) for number, claim in enumerate(claims)}
        shares = divided(amount, claims)
        usable = sum(claim.most for claim in claims.values() if claim.most > LEAST)
        self.assertAlmostEqual(sum(shares.values()), min(amount, usable), places=6)
        for user, claim in claims.items():
            self.assertLessEqual(shares[user], claim.most)
            if shares[user] < claim.most - 1e-6:
                level = shares[user] / claim.weight
                for other, theirs in claims.items():
                    self.assertLessEqual(shares[other] / theirs.weight, level + 1e-6)

    def test_who_comes_later_is_entitled_from_then_on(self):
        from benchmarks.fairness.entitled import Competitor, entitled

        had = entitled(
            {
                "ann": Competitor(1.0, None, [100.0, 0.0, 0.0, 0.0]),
                "bob": Competitor(3.0, None, [0.0, 3.0, 0.0, 0.0]),
                "eve": Competitor(1.0, 0, [100.0, 0.0, 0.0, 0.0]),
            },
            [2.0] * 4,
            1.0,
        )
        self.assertEqual(had["ann"], [2.0, 0.5, 0.5, 2.0])
        self.assertEqual(had["bob"], [0.0, 1.5, 1.5, 0.0])
        self.assertEqual(had["eve"], [0.0] * 4)


class JudgeTests(SimpleTestCase):
    def test_time_is_counted_inside_what_was_measured(self):
        from benchmarks.fairness.audit import Run, spread

        steps = [0.0] * 4
        for started, ended in ((-1.0, 0.5), (0.75, 2.25), (3.5, 9.0), (None, None)):
            spread(steps, Run("ann", 0.0, started, ended, 1.0), 1.0)
        self.assertEqual(steps, [0.75, 1.0, 0.25, 0.5])

    def test_the_longest_time_without_a_start(self):
        from benchmarks.fairness.audit import Run, longest_gap

        def gap(*times):
            return longest_gap([Run("ann", *time, None, 1.0) for time in times], 10.0)

        self.assertEqual(gap((0.0, 0.0), (0.0, 4.0), (0.0, 5.0)), 4.0)
        self.assertEqual(gap((0.0, 0.0), (6.0, 7.0)), 1.0)
        self.assertEqual(gap((2.0, None)), 8.0)
        self.assertEqual(gap((0.0, 1.0), (3.0, None), (4.0, None)), 7.0)

    def test_jain_is_one_of_equals_and_a_part_of_one_who_has_all(self):
        from benchmarks.fairness.audit import jain

        self.assertEqual(jain([2.0, 2.0, 2.0]), 1.0)
        self.assertEqual(jain([4.0, 0.0, 0.0, 0.0]), 0.25)

    def test_shares_are_of_what_was_given(self):
        """Half of the time went to each, and one was to have three quarters."""
        from benchmarks.fairness.audit import Run, audited
        from benchmarks.fairness.scenario import Group, Scenario

        groups = (
            Group(name="ann", user="ann", backlog=1),
            Group(name="bob", user="bob", weight=3.0, backlog=1),
        )
        runs = [
            Run(user, 0.0, start, start + 1.0, 1.0)
            for user, starts in (("ann", range(0, 8, 2)), ("bob", range(1, 8, 2)))
            for start in starts
        ]
        runs += [Run(user, 0.0, None, None, 1.0) for user in ("ann", "bob") for _ in range(9)]
        scenario = Scenario(name="two", title="Two", groups=groups)
        found = audited(scenario, runs, processors=1, seconds=8.0)

        self.assertAlmostEqual(found["share_error"], 0.25)
        self.assertAlmostEqual(found["used"], 1.0)
        self.assertAlmostEqual(found["gap"], 2.0)
        self.assertEqual([round(group["asked"], 6) for group in found["groups"]], [0.25, 0.75])
        self.assertEqual(found["groups"][0]["p50"], 2.0)
        self.assertEqual(found["groups"][0]["p95"], 6.0)


USERS = st.lists(
    st.tuples(
        st.sampled_from([0.001, 0.5, 1.0, 3.0, 100.0, 1e6]),
        st.sampled_from([None, None, 0, 1, 2]),
        st.lists(
            st.tuples(
                st.sampled_from([0.0, 0.1, 5.0, 3600.0, 86_400.0]),
                st.sampled_from([0.0, 0.0001, 0.01, 0.2, 2.0, 900.0]),
            ),
            max_size=25,
        ),
    ),
    min_size=1,
    max_size=6,
)
JUMPS = st.lists(
    st.tuples(st.floats(0.0, 90_000.0), st.sampled_from([-86_400.0, 1.0, 3600.0, 1e7])),
    max_size=5,
)


TASKS = 800
"""How many tasks run."""
OTHERS = TASKS + 100
"""So many users that none comes twice."""
ADVERSARY = st.fixed_dictionaries(
    {
        "processors": st.integers(1, 4),
        "weight": st.sampled_from([0.5, 1.0, 3.0]),
        "task": st.sampled_from([0.01, 0.3, 2.0]),
        "weights": st.lists(st.sampled_from([0.1, 0.5, 1.0, 2.0]), min_size=1, max_size=4),
        "at_once": st.integers(1, 10),
        "users": st.sampled_from([2, 12, 60, OTHERS]),
        "costs": st.lists(
            st.lists(st.sampled_from([0.001, 0.05, 0.5, 2.0]), min_size=1, max_size=4),
            min_size=1,
            max_size=5,
        ),
        "pauses": st.lists(st.integers(0, 400), max_size=6),
    }
)
LIGHT = {
    "processors": 1,
    "weight": 0.5,
    "task": 2.0,
    "weights": [0.1],
    "at_once": 2,
    "users": 2,
    "costs": [[0.001, 2.0]],
    "pauses": [],
}
"""Light users whose tasks are longer than expected each second time."""
NEW = {**LIGHT, "weight": 3.0, "task": 0.01, "at_once": 3, "users": OTHERS}
NEW["costs"] = [[2.0], [0.001], [2.0]]
"""Light users who come for ever, of whose tasks most are long."""


@tag("thorough")
class AdversaryTests(SimpleTestCase):
    """
    How far a user with a backlog falls behind its entitlement, whatever the others do.

    Entitled is what generalised processor sharing gives for the same arrivals (Parekh and
    Gallager, 1993). There a user competes until it has been entitled to all of its work,
    even if that has ended already.

    ``docs/explanation/decisions.md`` has the argument for the bounds.
    """

    @settings(max_examples=120, derandomize=True)
    @example(LIGHT)
    @example({**LIGHT, "weight": 1.0, "weights": [0.5]})
    @example({**LIGHT, "weight": 1.0, "weights": [1.0]})
    @example({**LIGHT, "weights": [1.0], "weight": 1.0, "costs": [[0.5]], "users": OTHERS})
    @example({**LIGHT, "weights": [0.1, 2.0], "costs": [[0.001], [2.0]], "users": OTHERS})
    @example(NEW)
    @given(ADVERSARY)
    def test_no_backlog_falls_behind_its_part(self, plan):
        self.assertLessEqual(self.lag(plan), self.bound(plan), plan)

    def test_the_lag_does_not_grow_with_time(self):
        self.assertLessEqual(self.lag(LIGHT, tasks=8 * TASKS), self.bound(LIGHT))

    def bound(self, plan):
        """Return by how many seconds the user with a backlog may be behind at the worst."""
        from django_perfectqueue.store.arithmetic.fair_order import FIRST_COST, MEMORY
        from django_perfectqueue.worker.processor.pacing import SPAN, TOO_FAR

        processors, at_once, weights = plan["processors"], plan["at_once"], plan["weights"]
        if plan["users"] == OTHERS:
            tasks = at_once * (1 + max(weights) / min(weights) / 2) + processors / (1 - MEMORY)
        else:
            tasks = plan["users"] * (1 + min(processors, at_once))
        longest = max(FIRST_COST, *itertools.chain(*plan["costs"]))
        own = plan["task"] * (1 + processors)
        return own + longest * tasks + processors * SPAN * TOO_FAR

    def lag(self, plan, tasks=TASKS):
        """Return by how many seconds the user with a backlog was behind at the worst."""
        from benchmarks.fairness.entitled import Claim, divided
        from benchmarks.fairness.lines import Lines, Task
        from benchmarks.fairness.simulation import Simulation

        weights = [plan["weight"], *itertools.islice(itertools.cycle(plan["weights"]), OTHERS)]
        lines = Lines([(weight, None) for weight in weights])
        users = itertools.cycle(range(1, plan["users"] + 1))
        costs = {
            user: itertools.cycle(plan["costs"][user % len(plan["costs"])])
            for user in range(1, OTHERS + 1)
        }
        wanted, came, ended = Counter({0: math.inf}), {0}, itertools.count()
        lag = worst = 0.0

        def come(now):
            task = Task(next(users), now, 0.0)
            task.seconds = next(costs[task.lane])
            wanted[task.lane] += task.seconds
            came.add(task.lane)
            return task

        def follow(task, now):
            nonlocal lag, worst
            claims = {user: Claim(weights[user], most) for user, most in wanted.items()}
            for user, seconds in divided(task.seconds, claims).items():
                wanted[user] -= seconds
                if wanted[user] <= 1e-9:
                    del wanted[user]
                if user == 0:
                    lag += seconds
            if task.lane == 0:
                lag -= task.seconds
            worst = max(worst, lag)
            if next(ended) in plan["pauses"]:
                lines.pause(1 + len(came) % plan["users"])
            return come(now) if task.lane else None

        coming = [(0.0, Task(0, 0.0, plan["task"])) for _ in range(tasks)]
        coming += [(0.0, come(0.0)) for _ in range(plan["at_once"])]
        Simulation(lines, coming, processors=plan["processors"], follow=follow).run(tasks=tasks)
        return worst


class SimulationTests(SimpleTestCase):
    def started(self, users, *, watch=None, **options):
        """Return a simulation of users: of each its weight, its cap and its tasks."""
        from benchmarks.fairness.lines import Lines, Task
        from benchmarks.fairness.simulation import Simulation

        lines = Lines([(weight, cap) for weight, cap, _tasks in users])
        coming = sorted(
            (
                (due, Task(number, due, seconds))
                for number, (_weight, _cap, tasks) in enumerate(users)
                for due, seconds in tasks
            ),
            key=lambda one: one[0],
        )
        if watch:
            options["watch"] = lambda: watch(lines)
        return Simulation(lines, coming, **options)

    @settings(max_examples=60, derandomize=True)
    @given(USERS, st.integers(1, 5), st.sampled_from([None, 0, 3, 300]), JUMPS)
    def test_all_that_may_run_runs_and_no_account_goes_back(
        self, users, processors, prefetch, jumps
    ):
        """
        Nobody starves, whatever the weights, lengths, caps and jumps of the clock.

        Of a lane, what never falls is its virtual time less what it was charged in advance
        for tasks that have yet to end; the virtual time itself falls when a task turns
        out shorter than expected. Neither is ever more than all the seconds there were,
        and the largest first charge of each task, divided by the smallest weight.
        """
        reached = [-math.inf] * len(users)
        seconds = sum(max(took, 1.0) for *_share, tasks in users for _due, took in tasks)
        rounds = 2 + len(jumps)
        tasks = sum(len(tasks) for *_share, tasks in users)
        most = rounds * (tasks + 1) * (seconds + 1.0) / min(weight for weight, *_rest in users)

        def watch(lines):
            for number, lane in enumerate(lines.lanes):
                blur = 1e-9 * max(1.0, abs(lane.virtual_time), abs(reached[number]))
                self.assertGreaterEqual(lane.reached, reached[number] - blur)
                self.assertTrue(-blur <= lane.virtual_time <= most, lane)
                self.assertGreaterEqual(lane.running, 0)
                if lane.max_running is not None:
                    self.assertLessEqual(lane.running, lane.max_running)
                reached[number] = max(reached[number], lane.reached)

        done = self.started(
            users, processors=processors, prefetch=prefetch, jumps=jumps, watch=watch
        )
        done.run()
        ran = {id(task) for task, _started, _ended in done.began}
        for lane in done.lines.lanes:
            self.assertEqual(lane.running, 0)
            if lane.max_running != 0:
                self.assertEqual(len(lane.waiting), 0)
        self.assertEqual(len(ran), sum(len(tasks) for _weight, cap, tasks in users if cap != 0))

    def test_shares_hold_over_a_month_with_a_clock_that_jumps(self):
        """100 users with tasks of up to an hour, on four processors that are never free."""
        day, lengths, weights = 86_400.0, (200.0, 600.0, 3600.0), (1.0, 2.0, 5.0)
        users = [
            (weights[number % 3], None, [(0.0, length)] * int(3 * day / length))
            for number in range(100)
            for length in [lengths[number % 4 % 3]]
        ]
        jumps = [(day, 3600.0), (10 * day, -3600.0), (20 * day, 1e6)]
        simulation = self.started(users, processors=4, jumps=jumps)
        simulation.run(seconds=30 * day)

        got = [0.0] * len(users)
        for task, started, ended in simulation.began:
            got[task.lane] += min(ended, 30 * day) - started
        total, shares = sum(got), sum(weight for weight, *_rest in users)
        self.assertGreater(total, 0.999 * 4 * 30 * day)
        for number, (weight, *_rest) in enumerate(users):
            self.assertAlmostEqual(got[number] / total, weight / shares, delta=0.001)
        self.assertTrue(all(math.isfinite(lane.virtual_time) for lane in simulation.lines.lanes))

    def test_the_order_is_as_fine_after_years(self):
        """At a virtual time of thirty years tasks of a millisecond still differ."""
        from benchmarks.fairness.lines import Lines, Task

        lines = Lines([(1.0, None), (3.0, None)])
        for lane in lines.lanes:
            lane.virtual_time = 1e9
            for _ in range(400):
                lines.submit(Task(lane.id, 0.0, 0.001))
        for _ in range(40):
            held = lines.acquire(10)
            lines.finish((one, 0.001) for one in held)
        left = [400 - len(lane.waiting) for lane in lines.lanes]
        self.assertEqual(sum(left), 400)
        self.assertAlmostEqual(left[1], 300, delta=5)
