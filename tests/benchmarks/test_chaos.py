"""The checker finds what is planted, and a short run of chaos has nothing to be found."""

import json
import signal
import unittest
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

from django.db import connection
from django.test import SimpleTestCase, tag

from ..databases.environment import kind_of
from ..databases.lifetime import processes_with
from ..waiting import wait_until
from .command import ROOT, Command

LEASE = 5.0
RUNNING, WAITING, SCHEDULED, GONE = 2, 0, 1, -1


def setUpModule():
    if not (ROOT / "benchmarks").is_dir():
        raise unittest.SkipTest("The benchmarks are not beside the tests.")


class Book:
    """Writes a history, a step after another; times are seconds."""

    def __init__(self):
        from benchmarks.chaos import history

        self.kinds = history
        self.changes, self.closes, self.runs, self.verbs = [], [], [], []
        self.strikes, self.reported, self.rows = [], [], {}
        self.given = {"caps": {"capped": 1}, "limits": {"narrow": 1}}

    def task(self, task, **columns):
        given = {"key": f"steady-{task}", "type": "steady", "data": {}, **columns}
        self.rows[task] = self.kinds.Row(id=task, **given)
        return self

    def change(self, at, task, was, state, attempt, holder, alarm=None):
        number = len(self.changes) + 1
        self.changes.append(self.kinds.Change(number, at, task, was, state, attempt, holder, alarm))
        return self

    def acquire(self, at, task=1, attempt=1, holder=10, was=WAITING):
        return self.change(at, task, was, RUNNING, attempt, holder, at + LEASE)

    def renew(self, at, task=1, attempt=1, holder=10):
        return self.change(at, task, RUNNING, RUNNING, attempt, holder, at + LEASE)

    def give_back(self, at, task=1, attempt=1):
        return self.change(at, task, RUNNING, WAITING, attempt, None)

    def close(self, at, task=1, attempt=1, outcome="finished", holder=10):
        self.change(at, task, RUNNING, GONE, attempt, holder)
        self.closes.append(self.kinds.Close(at, task, outcome, attempt))
        if task not in self.rows:
            self.task(task)
        self.rows[task] = replace(
            self.rows[task], attempt=attempt, outcome=outcome, result={"attempt": attempt}
        )
        return self

    def run(self, began, ended, task=1, attempt=1, holder=10, *, rival=None, how="returned"):
        how = "" if ended is None else how
        self.runs.append(
            self.kinds.Run(
                task, attempt, holder, holder + 90, f"host-{holder}", began, ended, how, rival
            )
        )
        return self

    def verb(self, asked, verb="heartbeat", task=1, attempt=1, answer="done"):
        self.verbs.append(self.kinds.Verb(task, attempt, 100, verb, asked, asked + 0.1, answer))
        return self

    def strike(self, fault, at, restored, **more):
        self.strikes.append(self.kinds.Strike(fault, at, restored, **more))
        return self

    def history(self, **more):
        rows = list(self.rows.values())
        given = {"stored": frozenset(row.key for row in rows), **self.given, **more}
        return self.kinds.History(
            rows=rows,
            changes=self.changes,
            closes=self.closes,
            runs=self.runs,
            verbs=self.verbs,
            reported=self.reported,
            strikes=self.strikes,
            **given,
        )


def good():
    """Return a task that a dead processor held, and that another has finished."""
    book = Book().acquire(10.0).run(10.1, None).give_back(11.0)
    book.acquire(11.1, attempt=2, holder=20).run(11.2, 12.0, attempt=2, holder=20)
    return book.close(12.1, attempt=2, holder=20)


def waited(began):
    """Return the same, and a second task that began then."""
    book = good().acquire(began - 0.1, task=2, holder=30).run(began, began + 0.1, 2, holder=30)
    return book.close(began + 0.2, task=2, holder=30)


class CheckerCase(SimpleTestCase):
    def found(self, book, **more):
        from benchmarks.chaos import checker

        return [one.kind for one in checker.violations(book.history(**more))]

    def assert_found(self, kind, book, **more):
        self.assertEqual(set(self.found(book, **more)), {kind})


@tag("no-database")
class CheckerTests(CheckerCase):
    """Each kind of violation, planted in a history that is good but for that."""

    def test_every_kind_that_there_is_is_planted_here(self):
        from benchmarks.chaos import checker

        reported = Path(__file__).read_text()
        for kind in checker.KINDS:
            with self.subTest(kind):
                self.assertIn(f'"{kind}"', reported)

    def test_nothing_is_found_in_a_good_history(self):
        self.assertEqual(self.found(good()), [])

    def test_a_confirmed_submit_that_is_not_there_is_lost(self):
        self.assert_found("lost", good(), stored=frozenset({"steady-1", "steady-2"}))

    def test_a_task_that_nobody_submitted_is_found(self):
        self.assert_found("lost", good(), stored=frozenset())
        self.assertEqual(self.found(good(), stored=frozenset(), maybe_committed={"steady-1"}), [])

    def test_a_key_that_is_there_twice_is_found(self):
        book = good()
        book.rows[2] = replace(book.rows[1], id=2, outcome="cancelled", type="cancelled")
        self.assert_found("lost", book)

    def test_a_tick_that_is_lost_or_invented_or_miscounted_is_found(self):
        at = datetime(2026, 11, 22, 12, tzinfo=timezone.utc)

        def ticks(*minutes, fired=2):
            book = good()
            for number, minute in enumerate(minutes, 2):
                key = f"tick@2026-11-22T12:{minute:02}:00Z"
                book.close(12.1, task=number, attempt=0)
                book.rows[number] = replace(book.rows[1], id=number, key=key, attempt=0)
            noted = book.kinds.Ticks(at, at + timedelta(minutes=2), 60, fired)
            return {one for one in self.found(book, ticks={"tick": noted}) if one == "ticks"}

        self.assertEqual(ticks(0, 1), set())
        self.assertEqual(ticks(0), {"ticks"})
        self.assertEqual(ticks(0, 1, 2), {"ticks"})
        self.assertEqual(ticks(0, 1, fired=3), {"ticks"})

    def test_a_task_without_its_transactions_row_is_half_stored(self):
        book = good()
        book.rows[1] = replace(book.rows[1], key="parent-1/child")
        self.assertEqual(self.found(book, effects=["parent-1/child"]), [])
        for effects in ([], ["parent-1/child"] * 2, ["parent-1/child", "parent-2/child"]):
            with self.subTest(effects):
                self.assert_found("half-stored", book, effects=effects)

    def test_a_task_without_an_end_is_found(self):
        self.assert_found("never ended", good().task(2, outcome=""))

    def test_a_ticket_that_has_outlived_its_task_is_found(self):
        book = good()
        book.rows[1] = replace(book.rows[1], has_ticket=True)
        self.assert_found("never ended", book)

    def test_an_end_that_the_task_can_not_have_is_found(self):
        book = Book().acquire(10.0).run(10.1, 11.0).close(11.1, outcome="cancelled")
        self.assert_found("ended wrongly", book)

    def test_an_error_that_was_counted_twice_is_found(self):
        book = good()
        book.rows[1] = replace(book.rows[1], type="flaky", data={"errors": 1}, errors=2)
        self.assert_found("errors miscounted", book)

    def test_a_retry_that_was_counted_not_at_all_is_found(self):
        """But not one that never came, since its process was broken off before."""
        book = good()
        book.rows[1] = replace(book.rows[1], type="settler", data={"first": "retry"}, errors=0)
        self.assertEqual(self.found(book), [])
        book.verb(10.5, "retry")
        self.assert_found("errors miscounted", book)

    def test_a_call_in_which_the_handler_was_interrupted_may_have_been_done(self):
        from benchmarks.chaos.history import Interruption, Verb, broken_off

        reported = [Interruption(1, 2, 100, 5.0, "PreemptedError")]
        for asked, answered, attempt, answer in (
            (4.9, 5.1, 2, "broken"),
            (5.1, 5.2, 2, "refused"),
            (4.9, 5.1, 1, "refused"),
        ):
            verb = Verb(1, attempt, 100, "finish", asked, answered, "refused")
            self.assertEqual(broken_off(verb, reported).answer, answer)

    def test_a_task_that_began_before_its_parent_had_ended_is_found(self):
        for began, kinds in ((13.0, []), (11.5, ["out of order"])):
            self.assertEqual(self.found(waited(began), graph=self.graph("wait")), kinds)

    def test_a_task_that_ran_though_its_parent_died_is_found(self):
        book = waited(13.0)
        book.task(1, type="doomed", outcome="failed")
        self.assertIn("out of order", self.found(book, graph=self.graph("cancel")))
        self.assertNotIn("out of order", self.found(book, graph=self.graph("run")))

    def test_a_callback_that_came_too_early_or_not_at_all_is_found(self):
        from benchmarks.chaos.graph import Callback

        for began, key, kinds in (
            (13.0, "steady-2", []),
            (11.5, "steady-2", ["out of order"]),
            (13.0, "mail", ["out of order"]),
        ):
            graph = ((), [Callback(key, "done", ("steady-1",))])
            self.assertEqual(self.found(waited(began), graph=graph), kinds)

    def graph(self, if_failed):
        from benchmarks.chaos.graph import Node

        return [Node("steady-2", ("steady-1",), if_failed)], ()

    def test_a_second_end_is_found(self):
        book = good()
        book.closes.append(book.kinds.Close(12.2, 1, "finished", 2))
        self.assert_found("ended twice", book)

    def test_an_acquire_after_the_end_is_found(self):
        book = good().acquire(13.0, attempt=3, holder=30)
        self.assertIn("taken after its end", self.found(book))

    def test_an_attempt_that_was_acquired_twice_is_found(self):
        book = Book().acquire(10.0).run(10.1, None).give_back(11.0)
        book.acquire(11.1, attempt=1, holder=20).run(11.2, 12.0, attempt=1, holder=20)
        self.assert_found("taken twice", book.close(12.1, attempt=1, holder=20))

    def test_an_acquire_of_what_another_holds_is_found(self):
        book = Book().acquire(10.0).run(10.1, None)
        book.acquire(11.1, attempt=2, holder=20, was=RUNNING)
        book.run(11.2, 12.0, attempt=2, holder=20).close(12.1, attempt=2, holder=20)
        self.assert_found("taken twice", book)

    def test_two_that_run_at_once_under_a_live_lease_overlap(self):
        """Whether by the lock, or by the times of two that lived to their end."""
        witnesses = {"lock": (100, None), "times": (None, 11.5)}
        for word, (rival, ended) in witnesses.items():
            with self.subTest(word):
                book = Book().acquire(10.0).run(10.1, ended).give_back(11.0)
                book.acquire(11.1, attempt=2, holder=20)
                book.run(11.2, 12.0, attempt=2, holder=20, rival=rival)
                self.assert_found("overlap", book.close(12.1, attempt=2, holder=20))

    def test_two_at_once_after_a_lease_has_run_out_are_allowed(self):
        book = Book().acquire(10.0).run(10.1, 17.0).give_back(15.1)
        book.acquire(15.2, attempt=2, holder=20)
        book.run(15.3, 16.0, attempt=2, holder=20, rival=100)
        self.assertEqual(self.found(book.close(16.1, attempt=2, holder=20)), [])

    def test_a_renewal_makes_the_lease_live_for_longer(self):
        book = Book().acquire(10.0).run(10.1, 17.0).renew(12.0).give_back(15.1)
        book.acquire(15.2, attempt=2, holder=20)
        book.run(15.3, 16.0, attempt=2, holder=20, rival=100)
        self.assert_found("overlap", book.close(16.1, attempt=2, holder=20))

    def test_a_handler_that_begins_on_what_it_never_had_is_found(self):
        self.assert_found("without a lease", good().run(10.3, 10.4, attempt=1, holder=30))

    def test_an_acquire_that_a_crash_has_made_forgotten_is_listed_apart(self):
        from benchmarks.chaos import checker

        book = Book().run(8.0, None, attempt=1, holder=30)
        book.acquire(10.0, holder=20).run(10.1, 11.0, holder=20, rival=120).close(11.1)
        self.assertEqual(checker.forgotten(book.history()), [])
        self.assert_found("without a lease", book)
        book.strike("crashed-server", 8.5, 9.5, crash=True)
        self.assertEqual(self.found(book), [])
        self.assertEqual(len(checker.forgotten(book.history())), 1)

    def test_a_handler_that_begins_when_its_task_was_taken_away_is_found(self):
        self.assert_found("without a lease", self.late_beginner(11.05))

    def test_a_handler_that_begins_long_after_its_lease_is_found(self):
        book = Book().acquire(10.0).run(17.0, 17.1).close(17.2)
        self.assert_found("without a lease", book)

    def test_one_that_was_frozen_until_just_then_may_begin(self):
        book = Book().acquire(10.0).run(17.0, 17.1).close(17.2)
        book.strike("frozen-processor", 11.0, 16.9, pids=(100,), freezes=True)
        self.assertEqual(self.found(book), [])
        book = Book().acquire(10.0).run(17.0, 17.1).close(17.2)
        book.strike("frozen-processor", 11.0, 16.9, pids=(101,), freezes=True)
        self.assert_found("without a lease", book)

    def late_beginner(self, at):
        """Return a good history in which the first processor lived, and began late."""
        book = Book().acquire(10.0).give_back(11.0).run(at, at + 0.01)
        book.acquire(11.1, attempt=2, holder=20).run(11.2, 12.0, attempt=2, holder=20)
        return book.close(12.1, attempt=2, holder=20)

    def test_a_delivery_after_the_end_is_found(self):
        self.assertIn("delivered after its end", self.found(self.late_beginner(12.5)))

    def test_a_write_that_should_have_been_refused_is_found(self):
        self.assert_found("fence", good().verb(11.5))
        self.assertEqual(self.found(good().verb(11.5, answer="refused")), [])
        self.assertEqual(self.found(good().verb(11.5, attempt=2)), [])
        self.assertEqual(self.found(good().verb(10.5)), [])

    def test_an_end_by_an_attempt_that_had_lost_the_task_is_found(self):
        book = good()
        book.rows[1] = replace(book.rows[1], attempt=1)
        self.assert_found("ended by another", book)

    def test_an_end_without_a_handler_that_came_to_its_end_is_found(self):
        for ended, how in ((None, ""), (12.0, "RuntimeError")):
            book = Book().acquire(10.0).run(10.1, ended, how=how).close(12.1)
            with self.subTest(how):
                self.assert_found("ended by another", book)

    def test_the_result_of_another_attempt_is_found(self):
        book = good()
        book.rows[1] = replace(book.rows[1], result={"attempt": 1})
        self.assert_found("ended by another", book)

    def test_one_more_than_a_cap_allows_is_found(self):
        for columns in ({"user": "capped"}, {"limits": ("narrow",)}):
            with self.subTest(columns):
                book = Book().task(1, **columns).task(2, **columns)
                book.acquire(10.0).run(10.1, 10.9)
                book.acquire(10.5, 2, holder=20).run(10.6, 10.9, 2, holder=20)
                book.close(11.0).close(11.0, 2, holder=20)
                self.assert_found("cap exceeded", book)

    def test_tasks_that_were_acquired_while_others_ran_are_counted(self):
        from benchmarks.chaos import checker

        book = Book().acquire(10.0).run(10.1, 10.9).close(11.0)
        book.acquire(11.1, 2).run(11.2, 11.9, 2).close(12.0, 2)
        self.assertEqual(checker.acquired_ahead(book.history()), 0)
        book.acquire(11.5, 3).run(11.95, 12.1, 3).close(12.2, 3)
        book.acquire(11.6, 4, holder=20).run(11.7, 12.1, 4, holder=20).close(12.2, 4, holder=20)
        self.assertEqual(checker.acquired_ahead(book.history()), 1)

    def test_as_many_as_a_cap_allows_one_after_another_are_no_violation(self):
        book = Book().task(1, user="capped").task(2, user="capped")
        book.acquire(10.0).run(10.1, 10.9).close(11.0)
        book.acquire(11.0, 2, holder=20).run(11.1, 11.2, 2, holder=20)
        self.assertEqual(self.found(book.close(11.3, 2, holder=20)), [])

    def test_accounts_that_are_wrong_at_the_end_are_found(self):
        self.assert_found("drift", good(), drift=["lane 1 counts 1 that run; there are 0"])

    def test_a_worker_that_does_not_stop_is_found(self):
        self.assert_found("did not stop", good(), leftovers=["host-a: 2 processes did not end"])


@tag("no-database")
class SteeredTests(CheckerCase):
    """What is asked for at random: graphs, batches and bulk work."""

    def operations(self, *asked, **more):
        """Return what was asked, each as a verb, a key and a moment, with whatever else."""
        from benchmarks.chaos.operations import Asked, Operations

        calls = [Asked(verb, key, at, at, **terms) for verb, key, at, terms in asked]
        return Operations(asked=calls, **more)

    def put_back(self, outcome):
        """Return a task that has ended, was put back, and has finished."""
        book = Book().acquire(10.0).run(10.1, 10.9, how="x").close(11.0, outcome=outcome)
        book.closes.append(book.kinds.Close(12.0, 1, "", 1))
        book.acquire(13.0, attempt=2, holder=20).run(13.1, 13.9, attempt=2, holder=20)
        book.close(14.0, attempt=2, holder=20)
        book.rows[1] = replace(book.rows[1], type="strand")
        return book

    def test_one_that_was_put_back_may_run_and_end_again(self):
        self.assertEqual(self.found(self.put_back("failed")), [])

    def test_one_that_has_finished_is_never_put_back(self):
        self.assert_found("ended twice", self.put_back("finished"))

    def test_one_that_was_cancelled_and_not_put_back_does_not_run(self):
        book = self.put_back("cancelled")
        book.closes = [close for close in book.closes if close.outcome != ""]
        self.assertLessEqual({"ended twice", "taken after its end"}, set(self.found(book)))

    def test_a_link_that_was_made_holds(self):
        link = ("link", "steady-2", 11.0, {"other": "steady-1"})
        for began, kinds in ((13.0, []), (11.5, ["out of order"])):
            self.assertEqual(self.found(waited(began), operations=self.operations(link)), kinds)
        unlink = ("unlink", "steady-2", 11.3, {})
        self.assertEqual(self.found(waited(11.5), operations=self.operations(link, unlink)), [])

    def callback(self, when, outcome, began=13.0, *asked):
        """Return what is found where a batch's task has ended so, and a callback began then."""
        from benchmarks.chaos.operations import Web

        book, key = waited(began), f"web-1!{when}"
        book.closes = [
            replace(one, outcome=outcome) if one.task == 1 else one for one in book.closes
        ]
        book.rows[1] = replace(book.rows[1], key="web-1-0", type="strand", outcome=outcome)
        book.rows[2] = replace(book.rows[2], key=key, type="strand")
        web = Web("web-1", {"web-1": ["web-1-0"]}, {key: "web-1"})
        return self.found(book, operations=self.operations(*asked, webs=[web]))

    def test_a_callback_comes_after_its_batch_and_as_that_has_ended(self):
        for when, outcome in (("done", "failed"), ("finished", "finished"), ("failed", "failed")):
            self.assertEqual(self.callback(when, outcome), [])
        self.assertEqual(self.callback("done", "finished", 11.5), ["out of order"])
        for when, outcome in (("finished", "failed"), ("failed", "finished")):
            self.assertEqual(self.callback(when, outcome), ["out of order"])

    def test_tasks_that_wait_for_one_another_are_found(self):
        book = good().close(12.2, task=2, attempt=0).close(12.2, task=3, attempt=0)
        chain, circle = [(1, 2), (2, 3)], [(1, 2), (2, 3), (3, 1)]
        self.assertNotIn("circle", self.found(book, operations=self.operations(edges=chain)))
        self.assertIn("circle", self.found(book, operations=self.operations(edges=circle)))

    def test_a_batch_that_says_other_than_its_tasks_is_found(self):
        from benchmarks.chaos.operations import Counted

        for there, kinds in ((Counted(2, 2, 0), []), (Counted(2, 1, 1), ["batch"])):
            operations = self.operations(batches={"web-1": (Counted(2, 2, 0), there)})
            self.assertEqual(self.found(good(), operations=operations), kinds)

    def test_a_batch_that_refuses_a_task_of_its_own_is_found(self):
        refused = {"refused": ["web-1.in-2+1"]}
        self.assert_found("batch", good(), operations=self.operations(**refused))
        stopped = ("cancel batch", "web-1", 10.0, {})
        self.assertEqual(self.found(good(), operations=self.operations(stopped, **refused)), [])

    def bulk(self, verb, done, outcome="finished", *asked, edits=(), whom="pond"):
        """Return what is found of an operation on two tasks, of which it has edited some."""
        book = good()
        book.rows[1] = replace(book.rows[1], key="bulk-1", type="perfectqueue.bulk")
        book.rows[1] = replace(book.rows[1], data={"done": done}, outcome=outcome)
        for task in (2, 3):
            data = {"edits": {"m": 1}} if task in edits else {}
            book.close(12.2, task=task, attempt=0, outcome="cancelled")
            book.changes.pop()
            book.rows[task] = replace(book.rows[task], key=f"pond-{task}", type="strand", data=data)
        call = (f"bulk {verb}", "m", 9.0, {"other": whom, "value": "bulk-1"})
        return self.found(book, operations=self.operations(call, *asked))

    def test_bulk_work_that_says_other_than_it_did_is_found(self):
        self.assertEqual(self.bulk("edit", {"edited": 2}, edits=(2, 3)), [])
        self.assertEqual(self.bulk("edit", {"edited": 2}, edits=(2,)), ["bulk"])
        self.assertEqual(self.bulk("edit", {"edited": 1}, "cancelled", edits=(2,)), [])
        self.assertEqual(self.bulk("edit", {"edited": 1, "refused": 1}, edits=(2,)), ["bulk"])
        self.assertEqual(self.bulk("cancel", {"cancelled": 2}), [])
        self.assertEqual(self.bulk("cancel", {"cancelled": 1}), ["bulk"])
        self.assertEqual(self.bulk("retry", {"retried": 1}, whom="web-1"), ["bulk"] * 2)

    def test_bulk_work_that_goes_on_when_it_is_to_stop_is_found(self):
        for at, kinds in ((11.0, []), (2.0, ["bulk"])):
            stop = ("cancel bulk", "m", at, {"other": "bulk-1"})
            done = {"edited": 2}
            self.assertEqual(self.bulk("edit", done, "finished", stop, edits=(2, 3)), kinds)


@tag("no-database")
class RecoveryTests(SimpleTestCase):
    def measured(self, book):
        from benchmarks.chaos.recovery import recoveries
        from benchmarks.chaos.terms import Terms

        terms = Terms("postgresql", 60.0, alive_time=LEASE)
        return {one.fault: one for one in recoveries(book.history(), terms)}

    def test_a_death_is_over_when_another_may_have_the_task(self):
        book = good().strike("processor", 10.75, 10.75, host="host-10", pids=(100,))
        self.assertEqual(self.measured(book)["processor"].seconds, (0.25,))

    def test_what_took_longer_than_it_may_is_late(self):
        book = good().strike("processor", 10.5, 10.5, host="host-10", pids=(100,))
        self.assertEqual(self.measured(book)["processor"].late, 0)
        book = good().strike("processor", 9.9, 9.9, host="host-10", pids=(100,))
        book.changes[0] = replace(book.changes[0], at=9.8)
        self.assertEqual(self.measured(book)["processor"].late, 1)

    def test_the_return_of_a_database_is_measured_by_processors_that_are_free(self):
        book = Book().run(10.0, 14.0, 1).run(14.5, 15.0, 2).run(10.0, 11.0, 3, holder=20)
        book.run(13.25, 13.5, 4, holder=20).strike("restarted-server", 11.5, 13.0)
        self.assertEqual(self.measured(book)["restarted-server"].seconds, (0.5,))

    def test_what_another_fault_has_disturbed_is_not_measured(self):
        book = good().strike("processor", 10.75, 10.75, host="host-10", pids=(100,))
        book.strike("restarted-server", 10.8, 10.9)
        self.assertEqual(self.measured(book)["processor"].seconds, ())


@tag("thorough")
class CommandTests(Command, unittest.TestCase):
    """One short run on each database: some faults of each family."""

    ON_SERVERS = (
        *("processor", "supervisor", "host", "frozen-processor"),
        *("usr1", "backend", "crashed-server", "cut", "clock"),
    )
    FAULTS = {
        "sqlite": ("processor", "host", "frozen-processor", "usr1", "locked-file"),
        "postgresql": ON_SERVERS,
        "mariadb": ON_SERVERS,
    }

    module = "benchmarks.chaos"

    def setUp(self):
        super().setUp()
        self.database = kind_of(connection)
        self.always = ("--output", self.results, "--databases", self.database)
        if self.database not in self.FAULTS:
            self.skipTest(f"The benchmarks cannot start {self.database}.")
        self.faults = self.FAULTS[self.database]

    def test_a_short_run_has_nothing_to_be_found(self):
        process = self.start(
            *("--faults", ",".join(self.faults)),
            *("--strikes", str(len(self.faults)), "--minutes", "3", "--seed", "5"),
            *("--hosts", "2", "--alive-time", "2", "--pause", "0.8"),
        )
        printed, complained = process.communicate(timeout=400)
        self.assertEqual(process.returncode, 0, f"{complained}\n{printed}")
        found, head = map(json.loads, self.results.read_text().splitlines())
        self.assertEqual(list(head["machine"]["servers"]), [self.database])
        self.assertEqual(found["violations"], [])
        self.assertEqual(found["said"], [])
        self.assertEqual(found["strikes"], dict.fromkeys(self.faults, 1))
        self.assertGreater(found["tasks"], 50)
        self.assert_nothing_is_left()

    def test_an_interrupted_run_leaves_nothing_running(self):
        process = self.start("--minutes", "5", "--hosts", "1")

        def is_at_work():
            ours = self.processes()
            return len(set(ours).intersection(processes_with("CHAOS_HOST=host-a"))) > 4

        wait_until(is_at_work, within=120)
        process.send_signal(signal.SIGINT)
        _, complained = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130, complained)
        self.assert_nothing_is_left()
