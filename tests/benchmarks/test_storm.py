"""The auditor finds what is planted, and a short storm has nothing to be found."""

import json
import signal
import tempfile
import unittest
from dataclasses import replace
from pathlib import Path
from unittest import mock

from django.db import OperationalError, connection
from django.test import SimpleTestCase, TransactionTestCase, tag

from django_perfectqueue.models import Task

from ..databases.environment import kind_of
from ..databases.lifetime import processes_with
from ..waiting import wait_until
from .command import ROOT, Command

LEASE = 3.0


def setUpModule():
    if not (ROOT / "benchmarks").is_dir():
        raise unittest.SkipTest("The benchmarks are not beside the tests.")


class Book:
    """Writes a record, a call after another; each takes a tenth of a second."""

    def __init__(self):
        from benchmarks.chaos.history import Row, Strike
        from benchmarks.storm import calls, record

        self.kinds, self.row_kind, self.strike_kind = calls, Row, Strike
        self.record_kind = record.Record
        self.calls, self.rows, self.strikes = [], {}, []

    def call(self, at, verb, *, answer="done", by="client-1", took=0.1, reported=None, **given):
        self.calls.append(self.kinds.Call(by, verb, at, at + took, answer, given, reported or {}))
        return self

    def task(self, life, **more):
        given = {"queue": "apart", "key": f"key-{life}", "type": "steady", "user": "ann"}
        return {"life": life, **given, "limits": [], "delay": None, "expires": None, **more}

    def submit(self, at, *lives, how="", answer="done", more=None, **given):
        tasks = [self.task(life, **(more or {})) for life in lives]
        return self.call(at, "submit", answer=answer, how=how, tasks=tasks, **given)

    def taken(self, life, attempt, edit=None):
        return {"ref": [life, attempt, attempt * 10], "edit": edit}

    def take(self, at, life="a", attempt=1, *, edit=None, **more):
        reported = {"taken": [self.taken(life, attempt, edit)], "refused": []}
        return self.call(at, "acquire", leases=[], reported=reported, **more)

    def run(self, at, life="a", attempt=1, *, took=0.1, answer="done"):
        taken = [self.taken(life, attempt)]
        return self.call(at, "run", by="worker", took=took, answer=answer, taken=taken)

    def settle(
        self, at, verb="finish", life="a", attempt=1, *, answer="done", reported=None, **more
    ):
        ref = [life, attempt, attempt * 10]
        reported = {"refused": [], **(reported or {})}
        if verb == "finish" and answer == "done" and not reported["refused"]:
            self.row(life, attempt)
        return self.call(at, verb, leases=[ref], answer=answer, reported=reported, **more)

    def operate(self, at, verb, life="a", **reported):
        return self.call(at, verb, queue="apart", key=f"key-{life}", reported=reported)

    def row(self, life="a", attempt=1, **more):
        given = {"outcome": "finished", "result": [life, attempt, attempt * 10], **more}
        self.rows[life] = self.row_kind(
            id=len(self.rows) + 1,
            key=f"key-{life}",
            type="steady",
            data={"life": life},
            attempt=attempt,
            **given,
        )
        return self

    def strike(self, fault, at, restored, **more):
        self.strikes.append(self.strike_kind(fault, at, restored, **more))
        return self

    def record(self, **more):
        calls = sorted(self.calls, key=lambda call: call.asked)
        rows = list(self.rows.values())
        return self.record_kind(calls=calls, rows=rows, strikes=self.strikes, **more)


def good():
    """Return a task whose first holder has retried it, and that its second has finished."""
    book = Book().submit(10.0, "a").take(11.0).settle(12.0, "retry", reported={"cancelled": []})
    return book.take(13.0, attempt=2).settle(14.0, attempt=2)


@tag("no-database")
class AuditorTests(SimpleTestCase):
    """Each kind of violation, planted in a record that is good but for that."""

    def found(self, book, **more):
        from benchmarks.storm import auditor

        return [one.kind for one in auditor.violations(book.record(**more))]

    def assert_found(self, kind, book, **more):
        self.assertEqual(set(self.found(book, **more)), {kind})

    def assert_good(self, book, **more):
        from benchmarks.storm import auditor

        self.assertEqual(list(map(str, auditor.violations(book.record(**more)))), [])

    def test_every_kind_that_there_is_is_planted_here(self):
        from benchmarks.storm import auditor

        written = Path(__file__).read_text()
        for kind in auditor.KINDS:
            with self.subTest(kind):
                self.assertIn(f'"{kind}", ', written)

    def test_nothing_is_found_in_a_good_record(self):
        self.assert_good(good())

    def test_a_storm_without_a_task_is_found(self):
        self.assert_found("no tasks", Book().call(10.0, "purge"))

    def test_a_confirmed_submit_that_is_not_there_is_lost(self):
        self.assert_found("lost", good().submit(20.0, "b"))
        self.assert_found("lost", good().submit(20.0, "b").call(30.0, "purge"))
        book = good().submit(20.0, "b", answer="broken").strike("backend", 20.0, 20.0)
        self.assert_good(book)
        self.assert_found("lost", book.take(21.0, "b"))

    def test_a_finish_whose_answer_was_lost_is_refused_where_its_task_was_purged_meanwhile(self):
        def book(*, reconnected=True, purged=12.5, took=2.3, **more):
            reported = {"refused": [["b", 1, 10]], "reconnected": reconnected}
            book = good().submit(10.5, "b").take(11.5, "b").call(purged, "purge")
            book.settle(12.0, "finish", "b", reported=reported, took=took)
            return book.row("b", **more) if more else book

        both = {"lost", "refused though held"}
        self.assert_good(book())
        self.assertEqual(set(self.found(book(reconnected=False))), both)
        self.assertEqual(set(self.found(book(purged=14.5))), both)
        self.assertEqual(set(self.found(book(purged=11.7))), both)
        self.assert_found("refused though held", book(outcome="cancelled", result=None))

    def test_one_that_has_ended_may_have_been_purged(self):
        for verb, reported in (("fail", {}), ("release", {"cancelled": [["b", 1, 10]]})):
            book = (
                good().submit(20.0, "b").take(21.0, "b").settle(22.0, verb, "b", reported=reported)
            )
            self.assert_found("lost", book)
            self.assert_good(book.call(23.0, "purge"))

    def test_one_that_is_replaced_or_cleared_is_not_lost(self):
        book = good().submit(20.0, "b")
        queue_key = {"queue": "apart", "key": "key-b"}
        book.submit(21.0, "c", more=queue_key, on_conflict="replace")
        self.assert_good(book.row("c", result=None).operate(22.0, "force_finish", "b"))
        self.assert_good(good().submit(20.0, "b").call(21.0, "clear", queue="apart"))

    def test_one_in_the_place_of_another_may_be_cancelled_with_its_batch(self):
        def book(**more):
            taken = {"queue": "apart", "key": "key-b"}
            there = good().submit(20.0, "b", more={"batch": "its"})
            return there.submit(21.0, "c", more=taken, **more).call(23.0, "purge")

        replaced = {"on_conflict": "replace"}
        self.assert_found("lost", book(**replaced).call(22.0, "batch", whom="other", what="cancel"))
        self.assert_found("lost", book(**replaced).call(22.0, "batch", whom="its", what="retry"))
        self.assert_good(book(**replaced).call(22.0, "batch", whom="its", what="cancel"))
        # One that has a key after another is in no batch.
        self.assert_found("lost", book().call(22.0, "batch", whom="its", what="cancel"))

    def test_what_was_rolled_back_or_refused_and_is_there_is_from_nowhere(self):
        for given in (
            {"how": "rolled back", "answer": "undone"},
            {"how": "savepoint", "dropped": ["b"]},
        ):
            book = good().submit(20.0, "b", **given).take(21.0, "b")
            self.assert_found("from nowhere", book.settle(22.0, "finish", "b"))
        self.assert_found("from nowhere", good().row("c", result=None))

    def test_what_nobody_has_submitted_and_is_given_out_is_from_nowhere(self):
        self.assert_found("from nowhere", good().take(20.0, "b"))

    def test_a_new_key_that_is_refused_is_found(self):
        book = good().submit(20.0, "b")
        refused = replace(
            book.calls[-1], answer="refused", reported={"error": "AlreadyExistsError"}
        )
        book.calls[-1] = refused
        self.assert_found("refused as known", book)

    def test_a_task_without_an_end_is_found(self):
        self.assert_found("never ended", good().submit(20.0, "b").row("b", outcome=""))
        stands = good().submit(20.0, "b").take(21.0, "b").settle(22.0, life="b")
        self.assert_found("never ended", stands.row("b", has_ticket=True))

    def test_an_attempt_that_is_given_out_twice_is_found(self):
        book = Book().submit(10.0, "a").take(11.0).take(15.0)
        self.assert_found("taken twice", book.settle(16.0))
        book = Book().submit(10.0, "a").take(11.0, attempt=2).take(15.0)
        self.assert_found("taken twice", book.row(result=None).operate(16.0, "force_finish"))

    def test_a_crash_of_postgresql_may_have_forgotten_an_acquire(self):
        book = Book().submit(10.0, "a").take(11.0).strike("crashed-server", 11.5, 12.0, crash=True)
        book.take(15.0).settle(16.0)
        self.assert_good(book, forgets=True)
        self.assert_found("taken twice", book)

    def test_two_leases_at_one_moment_are_found(self):
        book = Book().submit(10.0, "a").take(11.0).take(13.5, attempt=2)
        self.assert_found("held twice", book.settle(15.0, attempt=2))
        book = Book().submit(10.0, "a").take(11.0).settle(12.0, "heartbeat")
        self.assert_found("held twice", book.take(14.5, attempt=2).settle(15.0, attempt=2))

    def test_one_after_the_other_they_are_no_violation(self):
        book = Book().submit(10.0, "a").take(11.0).take(14.0, attempt=2)
        self.assert_good(book.settle(15.0, attempt=2))
        book = Book().submit(10.0, "a").take(11.0).operate(12.0, "force_finish")
        self.assert_good(book.row(result=None))

    def test_a_worker_and_a_client_at_one_moment_are_found(self):
        book = Book().submit(10.0, "a").run(11.0, took=1.5).take(11.5, attempt=2)
        self.assert_found("held twice", book.settle(13.0, attempt=2))
        book = book.strike("frozen-processor", 11.1, 11.4)
        self.assert_good(book)

    def test_what_is_given_out_after_its_end_is_found(self):
        self.assert_found("ran after its end", good().take(20.0, attempt=3))
        self.assert_found("ran after its end", good().run(20.0, attempt=3))
        book = Book().submit(10.0, "a").take(11.0).settle(12.0, "fail")
        book.take(20.0, attempt=2).row(outcome="failed", result=None)
        self.assert_found("ran after its end", book)
        self.assert_good(book.operate(13.0, "retry_ended"))

    def test_two_ends_are_found(self):
        book = good().row(attempt=2).settle(14.05, "finish", attempt=3)
        book.row(attempt=2)
        self.assertIn("ended twice", self.found(book))
        book = Book().submit(10.0, "a").take(11.0).settle(12.0, "fail")
        book.settle(12.05, "cancel").row(outcome="failed", result=None)
        self.assertIn("ended twice", self.found(book))
        self.assertEqual(self.kinds_but(book, "end not kept"), {"ended twice"})

    def kinds_but(self, book, kind):
        return {one for one in self.found(book) if one != kind}

    def test_a_finish_may_be_repeated(self):
        self.assert_good(good().settle(15.0, attempt=2))

    def test_a_write_of_one_who_no_longer_holds_it_is_found(self):
        for verb in ("heartbeat", "update", "release", "snooze"):
            with self.subTest(verb):
                more = {"edit": "new"} if verb == "update" else {}
                book = good().settle(13.5, verb, attempt=1, reported={"cancelled": []}, **more)
                self.assert_found("fence passed", book)
                book = good().settle(20.0, verb, attempt=2, reported={"cancelled": []}, **more)
                self.assert_found("fence passed", book)

    def test_a_write_after_someone_has_ended_it_is_found(self):
        book = Book().submit(10.0, "a").take(11.0).operate(11.5, "force_finish")
        self.assert_found("fence passed", book.settle(12.0, "heartbeat").row(result=None))

    def test_a_write_after_it_was_put_back_is_none(self):
        book = Book().submit(10.0, "a").take(11.0).settle(11.5, "fail").operate(12.0, "retry_ended")
        self.assert_good(book.take(13.0, attempt=2).settle(14.0, attempt=2))

    def test_two_leases_that_one_call_finishes_are_found(self):
        book = Book().submit(10.0, "a").take(11.0).take(15.0, attempt=2)
        both = [["a", 1, 10], ["a", 2, 20]]
        book.call(16.0, "finish", leases=both, reported={"refused": []}).row(attempt=2)
        self.assertIn("both leases done", self.found(book))
        book.calls[-1] = replace(book.calls[-1], reported={"refused": both[:1]})
        self.assert_good(book)

    def test_a_holder_that_is_refused_is_found(self):
        reported = {"refused": [["a", 1, 10]]}
        book = Book().submit(10.0, "a").take(11.0).settle(12.0, reported=reported)
        book.take(15.0, attempt=2).settle(16.0, attempt=2)
        self.assert_found("refused though held", book)
        book = Book().submit(10.0, "a").take(11.0).settle(14.5, reported=reported)
        self.assert_good(book.take(15.0, attempt=2).settle(16.0, attempt=2))
        error = {"error": "PreemptedError"}
        book = (
            Book()
            .submit(10.0, "a")
            .take(11.0)
            .settle(12.0, "fail", answer="refused", reported=error)
        )
        self.assert_found("refused though held", book.row(outcome="failed", result=None))

    def test_the_result_of_a_stale_attempt_is_found(self):
        self.assert_found("stale result kept", stale().row(result=["a", 1, 10]))
        self.assert_found("stale result kept", stale().row(attempt=1))
        self.assert_good(stale().row(attempt=2))

    def test_an_end_that_is_not_kept_is_found(self):
        book = Book().submit(10.0, "a").take(11.0).settle(12.0)
        self.assert_found("end not kept", book.row(outcome="failed", result=None))
        book = Book().submit(10.0, "a").take(11.0).settle(12.0, "fail")
        book.settle(12.05, "finish", answer="broken").strike("backend", 12.0, 12.0).row()
        self.assert_found("end not kept", book)

    def test_more_at_once_than_a_cap_allows_are_found(self):
        for more, cap in (
            ({"user": "capped"}, 3),
            ({"limits": ["narrow"]}, 2),
            ({"type": "counted"}, 4),
        ):
            with self.subTest(more):
                self.assert_good(at_once(cap, more))
                self.assert_found("cap passed", at_once(cap + 1, more))

    def test_more_starts_than_a_rate_allows_are_found(self):
        more = {"limits": ["metered"]}
        self.assert_good(at_once(4, more))
        self.assert_found("rate passed", at_once(7, more))

    def test_what_is_released_has_started_all_the_same(self):
        book = at_once(7, {"limits": ["metered"]})
        for number in range(7):
            book.settle(11.5, "release", f"t{number}", reported={"cancelled": []})
        self.assert_found("rate passed", book)

    def test_what_is_given_out_in_a_pause_is_found(self):
        for key, more in (
            ("user:halted", {"user": "halted"}),
            ("name:halted", {"limits": ["halted"]}),
        ):
            book = at_once(1, more).call(5.0, "pause", whom=key)
            self.assert_found("ran while paused", book)
            self.assert_good(book.call(10.9, "unpause", whom=key))

    def test_what_is_given_out_too_early_is_found(self):
        self.assert_found("before its time", at_once(1, {"delay": 2.0}))
        self.assert_good(at_once(1, {"delay": 0.5}))

    def test_what_is_given_out_before_what_it_waits_for_is_found(self):
        def child(taken, *, linked=False):
            more = {} if linked else {"after": [["apart", "key-a"]]}
            book = Book().submit(10.0, "a").take(11.0).submit(10.5, "b", more=more)
            book.take(taken, "b").settle(taken + 0.3, life="b")
            if linked:
                book.call(10.8, "link", queue="apart", key="key-b", parent="key-a")
            return book.settle(12.0)

        for linked in (False, True):
            self.assert_good(child(12.5, linked=linked))
            self.assert_found("before what it waits for", child(11.2, linked=linked))
        self.assert_good(child(11.2).call(11.0, "unlink", queue="apart", key="key-b"))

    def test_what_is_changed_with_others_may_have_ended_or_come_back(self):
        more = {"user": "herd"}
        book = Book().submit(10.0, "a", more=more).take(11.0)
        refused = {"refused": [["a", 1, 10]]}
        book.settle(11.5, reported=refused).row(outcome="cancelled", result=None)
        self.assert_found("refused though held", book)
        self.assert_good(book.call(11.2, "bulk", whom="herd", what="cancel"))
        book = Book().submit(10.0, "a", more={"batch": "b"}).take(11.0).settle(12.0, "fail")
        book.take(14.0, attempt=2).settle(15.0, attempt=2)
        self.assertIn("ran after its end", self.found(book))
        self.assert_good(book.call(13.0, "batch", whom="b", what="retry"))

    def test_what_is_given_out_too_late_is_found(self):
        self.assert_found("after it expired", at_once(1, {"expires": 0.5}))
        self.assert_good(at_once(1, {"expires": 2.0}))

    def test_an_attempt_that_does_not_see_an_edit_is_found(self):
        def edited(seen):
            book = Book().submit(10.0, "a").take(11.0).settle(11.5, "update", edit="new")
            return book.take(15.0, attempt=2, edit=seen).settle(16.0, attempt=2)

        self.assert_good(edited("new"))
        self.assert_found("edit lost", edited(None))
        self.assert_found("edit lost", edited("other"))

    def test_an_edit_that_was_refused_is_seen_only_where_its_connection_was_lost(self):
        def refused(**reported):
            reported = {"error": "PreemptedError", **reported}
            book = Book().submit(10.0, "a").take(11.0)
            book.settle(13.0, "update", answer="refused", reported=reported, took=2.0, edit="new")
            return book.take(16.0, attempt=2, edit="new").settle(17.0, attempt=2)

        self.assert_good(refused(reconnected=True))
        self.assert_found("edit lost", refused())

    def test_counters_that_are_wrong_at_the_end_are_found(self):
        reported = "lane 1 counts 1 that run; there are 0"
        self.assert_found("counters differ from rows", good(), drift=[reported])

    def test_an_error_that_no_verb_may_raise_is_found(self):
        error = {"error": "IntegrityError"}
        book = good().operate(20.0, "retry_ended", error="")
        book.calls[-1] = replace(book.calls[-1], answer="stumbled", reported=error)
        self.assert_found("stumbled", book)

    def test_a_broken_connection_needs_a_cause(self):
        book = good().submit(20.0, "b", answer="broken")
        book.calls[-1] = replace(book.calls[-1], reported={"error": "deadlock"})
        self.assert_found("stumbled", book)
        self.assert_good(book.strike("backend", 19.0, 19.0))

    def test_a_client_that_does_not_stop_is_found(self):
        self.assert_found("did not stop", good(), stuck=["client 7 did not end"])


def stale():
    """Return a task whose first holder was refused when a worker had run it again."""
    book = Book().submit(10.0, "a").take(11.0).run(15.0, attempt=2)
    return book.settle(17.0, reported={"refused": [["a", 1, 10]]})


def at_once(count, more):
    """Return so many tasks that are taken at the same time, and finished one after another."""
    book = Book()
    for number in range(count):
        life = f"t{number}"
        book.submit(10.0, life, more=more).take(11.0, life)
        book.settle(12.0 + number / 10, life=life)
    return book


class ClientTests(TransactionTestCase):
    def test_what_is_rolled_back_with_a_lost_savepoint_is_not_said_to_be_stored(self):
        from benchmarks.chaos.terms import Files
        from benchmarks.storm.calls import read_calls
        from benchmarks.storm.client import Client
        from benchmarks.storm.terms import Terms

        with tempfile.TemporaryDirectory() as folder:
            client = Client(Terms(kind_of(connection), 1.0), Files(Path(folder)), "client-1")
            client.submit_in_savepoint()
            lost = OperationalError("The server is gone.")
            with mock.patch.object(connection, "savepoint_rollback", side_effect=lost):
                client.submit_in_savepoint()
            calls = read_calls(Path(folder, "calls"))
        self.assertEqual([call.answer for call in calls], ["done", "undone"])
        [kept] = Task.objects.all()
        self.assertEqual(kept.key, calls[0].given["tasks"][0]["key"])


@tag("thorough")
class CommandTests(Command, unittest.TestCase):
    """One short storm on each database."""

    module = "benchmarks.storm"

    def setUp(self):
        super().setUp()
        self.database = kind_of(connection)
        self.always = ("--output", self.results, "--databases", self.database)
        if self.database not in ("sqlite", "postgresql", "mariadb"):
            self.skipTest(f"The benchmarks cannot start {self.database}.")

    def test_an_interrupted_storm_leaves_nothing_running(self):
        process = self.start("--minutes", "5", "--clients", "2")

        def is_at_work():
            ours = set(self.processes())
            return len(ours.intersection(processes_with("CHAOS_HOST=host-a"))) > 4

        wait_until(is_at_work, within=120)
        process.send_signal(signal.SIGINT)
        _, complained = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130, complained)
        self.assert_nothing_is_left()

    def test_a_storm_of_seconds_has_nothing_to_be_found(self):
        process = self.start("--minutes", "0.1", "--clients", "4")
        printed, complained = process.communicate(timeout=300)
        self.assertEqual(process.returncode, 0, f"{complained}\n{printed}")
        found, _head = map(json.loads, self.results.read_text().splitlines())
        self.assertEqual(found["violations"], [])
        self.assertGreater(found["tasks"], 10)
        self.assert_nothing_is_left()
