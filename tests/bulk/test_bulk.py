"""One verb for all tasks that match: what it would do, what it does, and who wanted it."""

import contextlib
from datetime import timedelta
from unittest import mock

from django.test import TestCase, TransactionTestCase
from django.utils import timezone

from django_perfectqueue.application import Dispatch
from django_perfectqueue.bulk import (
    TYPE,
    Operation,
    Selection,
    handler,
    preview,
    submit_bulk,
    verbs,
)
from django_perfectqueue.bulk import selection as selecting
from django_perfectqueue.exceptions import InvalidTaskError, TaskFailedError
from django_perfectqueue.inspection.steering import actions_of, describe_action
from django_perfectqueue.management.commands.pq_worker import exec_of
from django_perfectqueue.models import Change
from django_perfectqueue.queue import Queue
from django_perfectqueue.store.schedules import fire_due_timers
from django_perfectqueue.test import drain
from tests.factories import acquire, fail, running, submit


def failed(key, **options):
    task = submit(key, now=None, **options)
    [lease] = acquire(now=None)
    fail(lease, now=None)
    return task


def ask(verb, *, by="ann", queue="", to="", patch=None, rate=1e6, **selection):
    terms = {"to": to, "patch": patch, "rate": rate, "by": by}
    operation = Operation(verb=verb, selection=Selection(**selection), **terms)
    return submit_bulk(operation, queue=queue, using="default")


def do(verb, **terms):
    """Do it; return how often what was done."""
    task = ask(verb, **{"queue": "bulk", **terms})
    drain("bulk")
    return task.metadata().result


def statuses(*tasks):
    return [task.metadata().status for task in tasks]


def story(task):
    row = task.metadata()
    return [(change.by, describe_action(change)) for change in actions_of(row, using="default")]


class VerbTests(TestCase):
    def test_retry_puts_back_what_matches_and_nothing_else(self):
        mine, other = failed("a", user="ann"), failed("b", user="bob")
        cancelled = submit("c", user="ann")
        cancelled.cancel_request()

        self.assertEqual(do("retry", user="ann", status="failed"), {"retried": 1})

        self.assertEqual(statuses(mine, other, cancelled), ["waiting", "failed", "cancelled"])
        self.assertEqual(story(mine), [("ann", "put back in line")])
        self.assertEqual(story(other), [])

    def test_retry_in_another_queue_with_other_data(self):
        task = failed("a", data={"v": 1, "keep": 2})

        self.assertEqual(do("retry", to="slow", patch={"v": 2}), {"retried": 1})

        row = Queue("slow")["a"].metadata()
        self.assertEqual((row.data, row.status), ({"v": 2, "keep": 2}, "waiting"))
        self.assertFalse(task.exists())
        self.assertEqual({by for by, _what in story(Queue("slow")["a"])}, {"ann"})

    def test_cancel_asks_what_runs_and_cancels_what_waits(self):
        task, _lease = running("a", now=None)
        waiting = submit("b", now=None)

        self.assertEqual(do("cancel", by="bob"), {"requested": 1, "cancelled": 1})
        self.assertTrue(task.metadata().ticket.cancel_requested)
        self.assertEqual(story(waiting), [("bob", "cancelled")])

    def test_delete_takes_dead_letters_and_no_finished_task(self):
        dead, kept = failed("a"), submit("b")
        kept.force_finish()

        self.assertEqual(do("delete"), {"deleted": 1})
        self.assertEqual((dead.exists(), kept.exists()), (False, True))

    def test_move_and_edit_leave_alone_what_runs(self):
        running("held", now=None)
        submit("a", now=None, data={"n": 1})
        failed("b", queue="default")

        self.assertEqual(do("edit", patch={"n": 5}), {"edited": 2})
        self.assertEqual(do("move", to="slow"), {"moved": 2})
        self.assertEqual(Queue("slow")["a"].metadata().data, {"n": 5})
        self.assertEqual(Queue()["held"].metadata().data, {})

    def test_what_can_not_be_done_to_one_keeps_none_of_the_others_from_it(self):
        submit("a", now=None)
        submit("b", now=None)
        submit("a", queue="slow", now=None)

        self.assertEqual(do("move", to="slow"), {"refused": 2, "moved": 1})

    def test_each_filter_narrows(self):
        wanted = failed("key-1", type="report", user="ann", queue="default", tags=["x"])
        failed("key-2", type="report", user="bob")
        failed("other", type="report", user="ann")
        failed("key-3", type="mail", user="ann")
        submit("key-4", type="report", user="ann")

        terms = {"queue": "default", "type": "rep*", "user": "ann", "key": "key-", "group": "boom"}
        terms["tag"] = "x"
        found = preview("retry", Selection(**terms), using="default")

        self.assertEqual([task.key for task in found.sample], [wanted.key])
        self.assertEqual((found.statuses, found.users), ([("failed", 1)], [("ann", 1)]))
        shouted = Selection(type="REP*")
        self.assertEqual(preview("retry", shouted, using="default").total, 0)
        confined = Selection(users=("bob",))
        self.assertEqual(preview("retry", confined, using="default").total, 1)

    def test_what_is_submitted_later_is_left_alone(self):
        failed("a")
        task = ask("retry", queue="bulk")
        late = failed("b")

        drain("bulk")

        self.assertEqual((task.metadata().result, statuses(late)), ({"retried": 1}, ["failed"]))


class AskingTests(TestCase):
    def test_terms_that_do_not_fit_are_refused_and_nothing_is_stored(self):
        for verb, terms, reported in (
            ("destroy", {}, "no 'destroy'"),
            ("retry", {"status": "waiting"}, "'retry' is for tasks that are failed"),
            ("move", {}, "to which queue"),
            ("edit", {}, "how the data"),
            ("cancel", {"to": "slow"}, "moves no tasks"),
            ("delete", {"patch": {}}, "changes no data"),
            ("retry", {"rate": 0.0}, "The rate must be"),
            ("retry", {"rate": float("nan")}, "The rate must be"),
        ):
            with self.subTest(verb, **terms), self.assertRaisesMessage(InvalidTaskError, reported):
                ask(verb, **terms)
        self.assertFalse(Queue().list().exists())

    def test_data_that_submit_bulk_has_not_written_do_nothing(self):
        """Who may submit, copy or edit tasks may not therefore delete them all."""
        dead = failed("a")
        good = ask("retry", queue="bulk").metadata().data
        forged = {
            "without": {name: value for name, value in good.items() if name != "signature"},
            "copied": good,
            "changed": {**good, "verb": "delete"},
            "text": "delete",
            "sql": {**good, "filter": {"id__gt": 0}},
        }
        for key, data in forged.items():
            task = Queue("forged").submit(key, TYPE, data)
            with contextlib.suppress(InvalidTaskError):
                drain("forged")
            with self.subTest(key), self.assertRaises(TaskFailedError):
                task.wait(0)
        asked = Queue("bulk").list().get()
        Queue("bulk")[asked.key].edit_data({"verb": "delete"})
        with self.assertRaises(InvalidTaskError):
            drain("bulk")
        self.assertEqual(statuses(dead), ["failed"])

    def test_every_dispatch_knows_it_whatever_its_routes(self):
        class Own(Dispatch):
            routes = {"mail": lambda task: None}

        for dispatch in (Own, exec_of("true")):
            self.assertEqual(dispatch.handler_for(TYPE).__name__, "BulkHandler")

    def test_it_says_who_asked_in_its_own_story(self):
        self.assertEqual(
            story(ask("retry", by="bob")), [("bob", "bulk operation asked for: retry")]
        )


class ChunkTests(TransactionTestCase):
    def dead(self, count, **options):
        tasks = [submit(now=None, **options) for _number in range(count)]
        for lease in acquire(count, now=None, queues=[tasks[0].queue.name]):
            fail(lease, now=None)
        return tasks

    def signed(self):
        return list(Change.objects.filter(after__did="retried").values_list("name", flat=True))

    def test_an_attempt_that_breaks_off_leaves_whole_chunks_and_the_next_goes_on(self):
        tasks = self.dead(25)
        task = ask("retry", queue="bulk")
        act = verbs.revise
        with mock.patch.object(handler, "CHUNK", 10):
            calls = iter(range(1_000))

            def breaking(*given, **terms):
                if next(calls) == 14:
                    raise ZeroDivisionError
                return act(*given, **terms)

            broken = mock.patch.object(verbs, "revise", breaking)
            with broken, self.assertRaises(ZeroDivisionError):
                drain("bulk")
            self.assertEqual(len(self.signed()), 10)
            self.assertEqual(task.metadata().data["done"], {"retried": 10})
            # One that is behind the cursor fails again: it is not done twice.
            for lease in acquire(3, now=None):
                fail(lease, now=None)
            drain("bulk", ahead="1h")

        self.assertEqual(task.metadata().result, {"retried": 25})
        self.assertEqual(sorted(self.signed()), sorted(one.key for one in tasks))
        self.assertEqual(statuses(*tasks).count("failed"), 3)

    def test_where_few_match_it_goes_on_from_where_it_looked_last(self):
        self.dead(9, type="mail")
        [wanted] = self.dead(1, type="report")
        self.dead(4, type="mail")
        task = ask("retry", queue="bulk", type="report")
        cursors = []
        act = handler.BulkHandler.try_chunk

        def noting(itself, operation, chunk, reached):
            act(itself, operation, chunk, reached)
            cursors.append((len(chunk), itself.task.data["cursor"]))

        few = mock.patch.multiple(selecting, LOOKED=2, LOOKS=2)
        with few, mock.patch.object(handler.BulkHandler, "try_chunk", noting):
            drain("bulk")

        self.assertEqual((task.metadata().result, statuses(wanted)), ({"retried": 1}, ["waiting"]))
        self.assertEqual([count for count, _cursor in cursors], [0, 0, 1, 0])
        self.assertEqual(cursors[-1][1], task.metadata().data["until"])

    def test_one_whose_lease_has_passed_on_writes_nothing(self):
        self.dead(3)
        task = ask("retry", queue="bulk")
        look = handler.BulkHandler.next_chunk

        def taken_over(*given):
            chunk = look(*given)
            task.force_finish()
            return chunk

        with mock.patch.object(handler.BulkHandler, "next_chunk", taken_over):
            drain("bulk", raise_errors=False)
        self.assertEqual((self.signed(), task.metadata().status), ([], "finished"))

    def test_a_chunk_that_outlasts_its_lease_is_smaller_in_the_next_attempt(self):
        self.dead(60)
        task = ask("retry", queue="bulk")
        do_chunk, sizes = handler.BulkHandler.do_chunk, []

        def outlasting(itself, operation, chunk, reached):
            sizes.append(len(chunk))
            if len(chunk) > 30:
                fire_due_timers(using="default", now=timezone.now() + timedelta(days=day + 1))
            do_chunk(itself, operation, chunk, reached)

        with mock.patch.object(handler.BulkHandler, "do_chunk", outlasting):
            for day in (1, 3, 5):
                drain("bulk", ahead=f"{day}d", raise_errors=False)
        self.assertEqual((task.metadata().result, sizes), ({"retried": 60}, [60, 50, 25, 25, 10]))

    def test_a_slow_one_leaves_its_processor_to_others_between_two_tasks(self):
        self.dead(3)
        task = ask("retry", queue="bulk", rate=0.1)

        drain("bulk")

        self.assertEqual(task.metadata().data["done"], {"retried": 1})
        self.assertEqual(task.metadata().status, "scheduled")
        drain("bulk", ahead="1m")
        self.assertEqual(task.metadata().result, {"retried": 3})
