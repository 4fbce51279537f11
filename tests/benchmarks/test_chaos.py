"""The checker finds what is planted, and a short run of chaos has nothing to be found."""

import inspect
import itertools
import json
import signal
import unittest
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from unittest import mock

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
        from benchmarks.chaos import calls, scenario
        from benchmarks.chaos.audit import history

        self.kinds = history
        self.call_kind = calls.Call
        self.changes, self.closes, self.runs, self.calls = [], [], [], []
        self.strikes, self.rows, self.born, self.gone = [], {}, {}, {}
        caps = {"user:capped in default": 1, "name:narrow": 1}
        rates = {"name:metered": scenario.Rate(rate=6, period=1.0, burst=4)}
        self.given = {"caps": caps, "rates": rates, "pauses": ["user:halted", "name:halted"]}

    def task(self, task, *, user="", limits=(), queue="default", life="", **columns):
        given = {"key": f"steady-{task}", "type": "steady", "data": {}, **columns}
        self.rows[task] = self.kinds.Row(id=task, **given)
        key, kind = given["key"], given["type"]
        self.born[task] = self.kinds.Born(0.0, task, queue, key, kind, user, limits, life or key)
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
        who = (holder + 90, f"host-{holder}")
        self.runs.append(self.kinds.Run(task, attempt, holder, *who, began, ended, how, rival))
        return self

    def call(self, asked, verb, *, answer="done", took=0.1, reported=None, **given):
        called = self.call_kind("client", verb, asked, asked + took, answer, given, reported or {})
        self.calls.append(called)
        return self

    def verb(self, asked, verb="heartbeat", task=1, attempt=1, **more):
        return self.call(asked, verb, leases=[(task, attempt, attempt * 10)], **more)

    def take(self, asked, task=1, attempt=1, *, edit=None):
        """Have a client acquire a task."""
        self.acquire(asked + 0.05, task, attempt, attempt * 10)
        taken = [{"ref": [task, attempt, attempt * 10], "edit": edit}]
        return self.call(asked, "acquire", leases=[], reported={"taken": taken})

    def finish(self, asked, task=1, attempt=1):
        self.close(asked + 0.05, task, attempt, holder=attempt * 10)
        return self.verb(asked, "finish", task, attempt)

    def submit(self, asked, *lives, took=0.1, answer="done", more=None, **given):
        tasks = [
            {"life": life, "queue": "default", "key": life, "delay": None, "expires": None}
            for life in lives
        ]
        tasks = [{**task, **(more or {})} for task in tasks]
        return self.call(asked, "submit", took=took, answer=answer, tasks=tasks, **given)

    def strike(self, fault, at, restored, **more):
        self.strikes.append(self.kinds.Strike(fault, at, restored, **more))
        return self

    def history(self, **more):
        lives = {one["life"] for call in self.calls for one in call.given.get("tasks", ())}
        keys = [born.life for born in self.born.values() if born.life not in lives]
        stored = self.call_kind("feeder", "submit", 0.0, 0.1, "done", {"keys": keys})
        calls = sorted([stored, *self.calls], key=lambda call: call.asked)
        return self.kinds.History(
            **{
                "rows": list(self.rows.values()),
                "born": list(self.born.values()),
                "gone": self.gone,
                "changes": self.changes,
                "closes": self.closes,
                "begun": self.runs,
                "calls": calls,
                "strikes": self.strikes,
                **self.given,
                **more,
            }
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
        from benchmarks.chaos.audit import checker

        return [one.kind for one in checker.violations(book.history(**more))]

    def assert_good(self, book, **more):
        from benchmarks.chaos.audit import checker

        found = checker.violations(book.history(**more))
        self.assertEqual(list(map(str, found)), [])

    def assert_found(self, kind, book, **more):
        self.assertEqual(set(self.found(book, **more)), {kind})


class CheckerTests(CheckerCase):
    """Each kind of violation, planted in a history that is good but for that."""

    def test_every_kind_that_there_is_is_planted_here(self):
        from benchmarks.chaos.audit import checker

        reported = "".join(one.read_text() for one in Path(__file__).parent.glob("test_*.py"))
        for kind in checker.CHECKS:
            with self.subTest(kind):
                self.assertIn(f'"{kind}"', reported)

    def test_nothing_is_found_in_a_good_history(self):
        self.assertEqual(self.found(good()), [])

    def test_a_confirmed_submit_that_is_not_there_is_lost(self):
        self.assert_found("lost", good().submit(5.0, "b"))
        self.assert_good(good().submit(5.0, "b", answer="broken").strike("backend", 5.0, 5.0))
        book = good().task(2)
        del book.rows[2]
        self.assert_found("lost", book)

    def test_one_that_is_purged_cleared_or_replaced_is_not_lost(self):
        def without(task, at=13.05):
            book = good().task(2, type="quick").close(12.6, 2, attempt=0, outcome="expired")
            book.rows.pop(task)
            book.gone = {task: at}
            return book

        self.assert_found("lost", without(1))
        self.assert_found("lost", without(1).call(14.0, "purge"))
        self.assert_good(without(1).call(13.0, "purge"))
        self.assert_found("lost", without(2, 12.0).call(11.95, "purge"))
        # In the moment in which it ended; and a clock that is late at the turn of a second.
        self.assert_good(without(2, 12.602).call(12.6, "purge"))
        self.assert_good(without(1, 13.9999).call(14.0, "purge"))
        self.assert_good(without(2, 12.0).call(11.95, "clear", queue="default"))
        self.assert_found("lost", without(2, 12.0).call(11.95, "clear", queue="other"))
        more = {"key": "steady-2"}
        self.assert_good(
            without(2, 12.0)
            .submit(11.95, "c", more=more, on_conflict="replace")
            .task(3, key="steady-2", life="c", type="quick")
            .close(14.0, 3, attempt=0, outcome="expired")
        )

    def test_what_nobody_submitted_or_was_rolled_back_is_from_nowhere(self):
        for given in ({"answer": "undone"}, {"answer": "refused"}, {"dropped": ["b"]}):
            book = good().submit(5.0, "b", **given).task(2, key="b", type="quick")
            book.close(14.0, 2, attempt=0, outcome="expired")
            self.assert_found("from nowhere", book)
        self.assert_found("from nowhere", good(), calls=[])

    def test_a_new_key_that_is_refused_is_found(self):
        error = {"error": "AlreadyExistsError: it is there"}
        book = good().submit(5.0, "b", answer="refused", reported=error)
        self.assert_found("refused as known", book)
        self.assert_good(book.submit(4.0, "b", answer="broken").strike("backend", 4.0, 4.0))

    def test_a_run_without_a_task_is_found(self):
        self.assert_found("no tasks", Book())

    def test_a_key_that_is_there_twice_is_found(self):
        book = good()
        book.rows[2] = replace(book.rows[1], id=2, outcome="cancelled", type="cancelled")
        book.born[2] = replace(book.born[1], task=2)
        self.assert_found("lost", book)

    def test_a_tick_that_is_lost_or_invented_or_miscounted_is_found(self):
        at = datetime(2026, 11, 22, 12, tzinfo=timezone.utc)

        def ticks(*minutes, fired=2):
            book = good()
            for number, minute in enumerate(minutes, 2):
                key = f"tick@2026-11-22T12:{minute:02}:00Z"
                book.close(12.1, task=number, attempt=0)
                book.task(number, key=key, attempt=0, result={"attempt": 0})
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
        from benchmarks.chaos.audit.history import Interruption, broken_off
        from benchmarks.chaos.calls import Call

        reported = [Interruption(1, 2, 100, 5.0, "PreemptedError")]
        error = {"error": "PreemptedError: it was"}
        for asked, answered, pid, answer in (
            (4.9, 5.1, 100, "broken"),
            (5.1, 5.2, 100, "refused"),
            (4.9, 5.1, 101, "refused"),
        ):
            call = Call("host", "finish", asked, answered, "refused", {}, error, pid)
            self.assertEqual(broken_off(call, reported).answer, answer)

    def test_a_task_that_began_before_its_parent_had_ended_is_found(self):
        for began, kinds in ((13.0, []), (11.5, ["out of order"])):
            self.assertEqual(self.found(waited(began), webs=self.graph("wait")), kinds)

    def test_a_task_that_ran_though_its_parent_died_is_found(self):
        book = waited(13.0)
        book.task(1, type="strand", outcome="failed")
        self.assertIn("out of order", self.found(book, webs=self.graph("cancel")))
        self.assertNotIn("out of order", self.found(book, webs=self.graph("run")))

    def test_a_callback_that_came_too_early_or_not_at_all_is_found(self):
        from benchmarks.chaos.workload.webs import Web

        for began, key, kinds in (
            (13.0, "steady-2", []),
            (11.5, "steady-2", ["out of order"]),
            (13.0, "mail!done", ["out of order"]),
        ):
            web = Web("still", True, {"still": ["steady-1"]}, {key: "still"})
            self.assertEqual(self.found(waited(began), webs=[web]), kinds)

    def graph(self, if_failed):
        from benchmarks.chaos.workload.webs import Web

        return [Web("still", True, nodes={"steady-2": (["steady-1"], if_failed)})]

    def test_a_second_end_is_found(self):
        book = good()
        book.closes.append(book.kinds.Close(12.2, 1, "finished", 2))
        self.assert_found("ended twice", book)

    def test_an_acquire_after_the_end_is_found(self):
        book = good().acquire(13.0, attempt=3, holder=30)
        self.assertIn("taken after its end", self.found(book))

    def test_an_attempt_that_was_acquired_twice_is_found(self):
        for attempt in (0, 1):
            book = Book().acquire(10.0).run(10.1, None).give_back(11.0, attempt=attempt)
            book.acquire(11.1, attempt=1, holder=20).run(11.2, 12.0, attempt=1, holder=20)
            self.assert_found("taken twice", book.close(12.1, attempt=1, holder=20))

    def test_what_is_given_back_and_has_not_begun_keeps_its_number(self):
        book = Book().acquire(10.0).give_back(11.0, attempt=0)
        book.acquire(11.1, holder=20).run(11.2, 12.0, holder=20)
        self.assert_good(book.close(12.1, holder=20))

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
        self.assert_found("without a lease", good().run(10.3, 10.4, attempt=3, holder=30))

    def test_an_acquire_that_a_crash_has_made_forgotten_is_listed_apart(self):
        from benchmarks.chaos.audit import attempts

        book = Book().run(8.0, None, attempt=1, holder=30)
        book.acquire(10.0, holder=20).run(10.1, 11.0, holder=20, rival=120).close(11.1)
        self.assertEqual(attempts.forgotten(book.history()), [])
        self.assertEqual(set(self.found(book)), {"without a lease", "taken twice"})
        book.strike("crashed-server", 8.5, 9.5, crash=True)
        self.assertEqual(self.found(book), [])
        self.assertEqual(len(attempts.forgotten(book.history())), 1)

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
        for verb in ("heartbeat", "release", "snooze"):
            for asked, attempt in ((11.5, 1), (13.0, 2)):
                self.assert_found("fence", good().verb(asked, verb, attempt=attempt))
        error = {"error": "PreemptedError: it is lost"}
        self.assert_good(good().verb(11.5, answer="refused", reported=error))
        self.assert_good(good().verb(11.5, attempt=2))
        self.assert_good(good().verb(10.5))

    def test_a_finish_may_be_repeated(self):
        self.assert_good(good().verb(13.0, "finish", attempt=2))

    def test_two_leases_that_one_call_finishes_are_found(self):
        both = [(1, 1, 10), (1, 2, 20)]
        book = good().call(12.05, "finish", leases=both)
        self.assertEqual(set(self.found(book)), {"fence", "end not kept"})
        self.assert_good(good().call(12.05, "finish", leases=both, reported={"refused": both[:1]}))

    def test_a_holder_that_is_refused_is_found(self):
        error = {"error": "PreemptedError: it is lost"}
        for given in (
            {"answer": "refused", "reported": error},
            {"reported": {"refused": [(1, 1, 10)]}},
        ):
            self.assert_found("refused though held", good().verb(10.5, **given))
            self.assert_good(good().verb(10.95, **given))
            late = Book().acquire(10.0).run(10.1, None).give_back(18.0)
            late.acquire(18.1, attempt=2, holder=20).run(18.2, 19.0, attempt=2, holder=20)
            self.assert_good(late.close(19.1, attempt=2, holder=20).verb(16.0, **given))

    def test_what_was_done_and_said_to_be_refused_is_found(self):
        def book(**reported):
            book = Book().task(1, type="quick").take(10.0).close(11.05)
            reported["refused"] = [(1, 1, 10)]
            return book.verb(11.0, "finish", reported=reported)

        kinds = {"refused though held", "cut short", "ended by another"}
        self.assertEqual(set(self.found(book())), kinds)
        self.assertEqual(set(self.found(book(reconnected=True))), kinds)
        purged = book(reconnected=True).call(11.0, "purge")
        purged.gone = {1: 11.08}
        purged.rows.clear()
        self.assert_good(purged)

    def test_an_end_that_is_not_kept_is_found(self):
        self.assert_found("end not kept", good().verb(10.95, "fail"))
        cancelled = {"cancelled": [(1, 1, 10)]}
        self.assert_found("end not kept", good().verb(10.95, "retry", reported=cancelled))
        for verb, reported in (("force_finish", {}), ("cancel_request", {"cancelled": True})):
            book = good().task(2, type="quick", outcome="expired")
            operated = {"queue": "default", "key": "steady-2", "reported": reported}
            self.assert_found("end not kept", book.call(13.0, verb, **operated))
            operated["key"] = "steady-1"
            kinds = set(self.found(good().call(13.0, verb, **operated)))
            self.assertEqual(kinds, set() if verb == "force_finish" else {"end not kept"})
        book = good()
        book.rows[1] = replace(book.rows[1], type="quick", outcome="cancelled")
        self.assert_found("end not kept", book)

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

    def test_a_holder_may_see_late_that_someone_has_forced_an_end(self):
        book = self.late_beginner(12.5).call(12.0, "force_finish", queue="default", key="steady-1")
        self.assert_good(book)

    def test_tasks_that_were_acquired_while_others_ran_are_counted(self):
        from benchmarks.chaos.audit import attempts

        book = Book().acquire(10.0).run(10.1, 10.9).close(11.0)
        book.acquire(11.1, 2).run(11.2, 11.9, 2).close(12.0, 2)
        self.assertEqual(attempts.acquired_ahead(book.history()), 0)
        book.acquire(11.5, 3).run(11.95, 12.1, 3).close(12.2, 3)
        book.acquire(11.6, 4, holder=20).run(11.7, 12.1, 4, holder=20).close(12.2, 4, holder=20)
        self.assertEqual(attempts.acquired_ahead(book.history()), 1)

    def test_as_many_as_a_cap_allows_one_after_another_are_no_violation(self):
        book = Book().task(1, user="capped").task(2, user="capped")
        book.acquire(10.0).run(10.1, 10.9).close(11.0)
        book.acquire(11.0, 2, holder=20).run(11.1, 11.2, 2, holder=20)
        self.assertEqual(self.found(book.close(11.3, 2, holder=20)), [])

    def test_accounts_that_are_wrong_at_the_end_are_found(self):
        self.assert_found("drift", good(), drift=["lane 1 counts 1 that run; there are 0"])

    def test_a_worker_that_does_not_stop_is_found(self):
        self.assert_found("did not stop", good(), leftovers=["host-a: 2 processes did not end"])


class ClientTests(CheckerCase):
    """What clients take and settle, and what they ask for besides."""

    def taken(self, count=1, **columns):
        """Return so many tasks that are taken at the same time, and finished later."""
        book = Book()
        for task in range(1, count + 1):
            book.task(task, type="quick", **columns).take(11.0, task)
        for task in range(1, count + 1):
            book.finish(12.0 + task / 10, task)
        return book

    def test_two_leases_at_one_moment_are_found(self):
        def second(asked, **settled):
            book = Book().task(1, type="quick").take(10.0)
            if settled:
                book.verb(11.0, "release", reported={"cancelled": []})
            book.give_back(asked).take(asked, attempt=2)
            return book.finish(asked + 0.5, attempt=2)

        self.assertEqual(set(self.found(second(11.05))), {"cut short", "overlap"})
        self.assert_good(second(11.05, settled=True))
        self.assert_good(second(15.5))

    def test_a_lease_that_ends_before_its_time_is_found(self):
        def cut(at, *, renewed=False):
            book = Book().task(1, type="quick").take(10.0)
            if renewed:
                book.verb(12.0)
            book.give_back(at).acquire(16.0, attempt=2, holder=20).run(16.1, 16.5, 1, 2, 20)
            return book.close(17.0, attempt=2, holder=20)

        self.assert_found("cut short", cut(14.0))
        self.assert_good(cut(15.2))
        kinds = self.found(cut(15.2, renewed=True), alive_time=5.0)
        self.assertEqual(set(kinds), {"cut short", "overlap"})
        self.assert_good(
            cut(14.0).call(13.95, "force_finish", queue="default", key="steady-1", answer="broken")
        )

    def test_a_worker_and_a_client_at_one_moment_are_found(self):
        book = Book().task(1, type="quick").acquire(10.0).run(10.1, 12.0).give_back(11.0)
        self.assert_found("overlap", book.take(11.0, attempt=2).finish(12.5, attempt=2))

    def test_what_a_client_is_given_after_the_end_is_found(self):
        self.assertIn("taken after its end", self.found(good().take(13.0, attempt=3)))

    def test_the_result_of_a_stale_attempt_is_found(self):
        book = self.taken()
        book.rows[1] = replace(book.rows[1], result={"attempt": 3})
        self.assert_found("ended by another", book)
        book.rows[1] = replace(book.rows[1], result=None)
        self.assert_good(book)

    def test_an_end_that_was_forced_is_nobodys(self):
        book = Book().task(1, type="quick").acquire(11.0).run(11.1, 12.0, how="RuntimeError")
        book.close(12.05).rows[1] = replace(book.rows[1], result=None)
        self.assert_found("ended by another", book)
        self.assert_good(book.call(12.0, "force_finish", queue="default", key="steady-1"))

    def test_more_starts_than_a_rate_allows_are_found(self):
        self.assert_good(self.taken(4, limits=("metered",)))
        self.assert_found("rate passed", self.taken(7, limits=("metered",)))

    def test_what_is_given_out_in_a_pause_is_found(self):
        for whom, columns in (
            ("user:halted", {"user": "halted"}),
            ("name:halted", {"limits": ("halted",)}),
        ):
            with self.subTest(whom):
                book = self.taken(**columns).call(5.0, "pause", whom=whom)
                self.assert_found("ran while paused", book)
                self.assert_good(book.call(10.0, "unpause", whom=whom))

    def test_what_is_given_out_too_early_or_too_late_is_found(self):
        def given(**more):
            book = self.taken(life="a").submit(10.0, "a", more=more)
            book.born[1] = replace(book.born[1], key="a")
            return book

        for more in ({"delay": 2.0}, {"expires": 0.5}):
            self.assert_found("at the wrong time", given(**more))
            operated = {"queue": "default", "key": "a"}
            self.assert_good(given(**more).call(10.5, "retry_ended", answer="broken", **operated))
        self.assert_good(given(delay=0.5, expires=2.0))

    def test_what_is_given_out_before_what_it_waits_for_is_found(self):
        def child(at, *, linked=False):
            book = Book().task(1, type="quick").take(11.0)
            more = {} if linked else {"after": ["steady-1"]}
            book.submit(10.5, "b", more=more).task(2, key="b", life="b", type="quick")
            if linked:
                book.call(10.8, "link", queue="default", key="b", other="steady-1")
            return book.take(at, 2).finish(at + 0.3, 2).finish(12.0)

        for linked in (False, True):
            self.assert_good(child(12.5, linked=linked))
            self.assert_found("out of order", child(11.2, linked=linked))
        self.assert_good(child(11.2).call(11.0, "unlink", queue="default", key="b"))

    def test_an_attempt_that_does_not_see_an_edit_is_found(self):
        def edited(seen, **more):
            book = Book().task(1, type="quick").take(11.0)
            book.verb(11.5, "update", edit="new", **more).give_back(16.5)
            return book.take(17.0, attempt=2, edit=seen).finish(18.0, attempt=2)

        self.assert_good(edited("new"))
        self.assert_found("edit lost", edited(None))
        self.assert_found("edit lost", edited("other"))
        refused = {"error": "PreemptedError: it is lost"}
        late = {"answer": "refused", "took": 5.0}
        self.assert_found("edit lost", edited("new", reported=refused, **late))
        self.assert_good(edited("new", reported={**refused, "reconnected": True}, **late))

    def test_an_error_that_no_verb_may_raise_is_found(self):
        error = {"error": "IntegrityError: twice"}
        self.assert_found("stumbled", good().call(13.0, "x", answer="stumbled", reported=error))

    def test_a_broken_connection_needs_a_cause(self):
        error = {"error": "OperationalError: deadlock"}
        book = good().call(33.0, "x", answer="broken", reported=error)
        self.assert_found("stumbled", book)
        self.assert_good(book.strike("backend", 19.0, 19.0))


class SteeredTests(CheckerCase):
    """What is asked for at random: graphs, batches and bulk work."""

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
        def linked(began):
            given = {"queue": "default", "key": "steady-2", "other": "steady-1"}
            return waited(began).call(11.0, "link", **given)

        self.assert_good(linked(13.0))
        self.assert_found("out of order", linked(11.5))
        self.assert_good(linked(11.5).call(11.3, "unlink", queue="default", key="steady-2"))

    def callback(self, when, outcome, began=13.0):
        """Return what is found where a batch's task has ended so, and a callback began then."""
        from benchmarks.chaos.workload.webs import Web

        book, key = waited(began), f"web-1!{when}"
        book.closes = [
            replace(one, outcome=outcome) if one.task == 1 else one for one in book.closes
        ]
        book.rows[1] = replace(book.rows[1], key="web-1-0", type="strand", outcome=outcome)
        book.rows[2] = replace(book.rows[2], key=key, type="strand")
        web = Web("web-1", False, {"web-1": ["web-1-0"]}, {key: "web-1"})
        return self.found(book, webs=[web])

    def test_a_callback_comes_after_its_batch_and_as_that_has_ended(self):
        for when, outcome in (("done", "failed"), ("finished", "finished"), ("failed", "failed")):
            self.assertEqual(self.callback(when, outcome), [])
        self.assertEqual(self.callback("done", "finished", 11.5), ["out of order"])
        for when, outcome in (("finished", "failed"), ("failed", "finished")):
            self.assertEqual(self.callback(when, outcome), ["out of order"])

    def test_tasks_that_wait_for_one_another_are_found(self):
        book = good().close(12.2, task=2, attempt=0).close(12.2, task=3, attempt=0)
        chain, circle = [(1, 2), (2, 3)], [(1, 2), (2, 3), (3, 1)]
        self.assertNotIn("circle", self.found(book, edges=chain))
        self.assertIn("circle", self.found(book, edges=circle))

    def test_a_batch_that_says_other_than_its_tasks_is_found(self):
        from benchmarks.chaos.audit.history import Counted

        for there, kinds in ((Counted(2, 2, 0), []), (Counted(2, 1, 1), ["batch"])):
            batches = {"web-1": (Counted(2, 2, 0), there)}
            self.assertEqual(self.found(good(), batches=batches), kinds)

    def test_a_batch_that_refuses_a_task_of_its_own_is_found(self):
        given = {"key": "web-1.in-2+1", "reported": {"error": "BatchEndedError"}}
        book = good().call(13.0, "submit", answer="refused", **given)
        self.assert_found("batch", book)
        self.assert_good(book.call(10.0, "cancel batch", key="web-1"))

    def bulk(self, verb, done, outcome="finished", *, stops=(), edits=(), whom="pond"):
        """Return what is found of an operation on two tasks, of which it has edited some."""
        book = good()
        row = {"key": "bulk-1", "type": "perfectqueue.bulk", "data": {"done": done}}
        book.task(1, **row, attempt=2, outcome=outcome).closes[0] = replace(
            book.closes[0], outcome=outcome
        )
        for task in (2, 3):
            data = {"edits": {"m": 1}} if task in edits else {}
            book.close(12.2, task=task, attempt=0, outcome="cancelled")
            book.changes.pop()
            book.rows[task] = replace(book.rows[task], key=f"pond-{task}", type="strand", data=data)
        book.call(9.0, f"bulk {verb}", key="m", other=whom, reported={"value": "bulk-1"})
        for at in stops:
            book.call(at, "cancel bulk", key="m", other="bulk-1", took=0.0)
        return self.found(book)

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
            found = self.bulk("edit", {"edited": 2}, stops=[at], edits=(2, 3))
            self.assertEqual(found, kinds)


class WordsTests(SimpleTestCase):
    def test_what_is_looked_for_in_logs_is_what_the_package_says(self):
        from benchmarks.chaos import calls, run
        from django_perfectqueue.store.database import transaction
        from django_perfectqueue.worker.helpers import janitor
        from django_perfectqueue.worker.processor import processor

        [corrected], [_level, raised] = run.CORRECTED, run.SAID_SO
        self.assertIn(raised, inspect.getsource(processor))
        self.assertIn(f'"{corrected} ', inspect.getsource(janitor))
        self.assertIn(f'"{calls.RECONNECTING}"', inspect.getsource(transaction))


class SettlingTests(SimpleTestCase):
    """The clock goes on by 100 s each time that what has died is looked for."""

    def looks(self, *found):
        """Return how often the end of a run, of 180 s, looks for what has died."""
        from benchmarks.chaos.workload import load

        now, answers = itertools.count(0.0, 100.0), iter(found)
        clock = mock.Mock(value=next(now))

        def put_back():
            clock.value = next(now)
            return next(answers)

        with (
            mock.patch.multiple(load, ended=mock.DEFAULT, send_signals=mock.DEFAULT),
            mock.patch.object(load, "put_back_some", side_effect=put_back) as looked,
            mock.patch.object(load.time, "monotonic", side_effect=lambda: clock.value),
            load.Load.settling(mock.MagicMock(terms=mock.Mock(drain=180.0)), mock.Mock()),
        ):
            return looked.call_count

    def test_it_goes_on_while_something_is_put_back(self):
        self.assertEqual(self.looks(2, 2, 1, 0, None), 5)

    def test_it_ends_where_nothing_comes_of_what_is_left(self):
        self.assertEqual(self.looks(0, 0, 0, None), 2)


class RecoveryTests(SimpleTestCase):
    def measured(self, book):
        from benchmarks.chaos.audit.recovery import recoveries
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
