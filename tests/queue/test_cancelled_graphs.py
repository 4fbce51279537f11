"""Cancel a graph by each door: whatever the order, and with what is chosen or not at all."""

from unittest import mock

from django.db import connection, transaction
from django.test import TestCase, TransactionTestCase
from django.test.utils import CaptureQueriesContext

from django_perfectqueue import store
from django_perfectqueue.bulk import Operation, Selection, handler, submit_bulk, verbs
from django_perfectqueue.exceptions import AlreadyFinishedError
from django_perfectqueue.queue import Queue
from django_perfectqueue.test import drain

from ..admin.staff import AdminTestCase
from ..factories import running, submit
from ..management.running import refused, run, run_json

KEYS = "abcdef"


def chain(**options):
    """Submit six tasks, each of which waits for the one before."""
    Queue().chain([{"key": key, "type": "report", **options} for key in KEYS])


def statuses():
    return [Queue()[key].metadata().status for key in KEYS]


class CommandTests(TestCase):
    def test_a_filter_cancels_as_many_as_its_dry_run_says(self):
        chain(user="ann", tags=["x"])
        for options in (["--user", "ann"], ["--type", "report"], ["--all"], ["--tag", "x"]):
            with self.subTest(options):
                if statuses()[0] == "cancelled":
                    run("pq_task", "retry", *reversed(KEYS), "--yes")
                dry = run("pq_task", "cancel", *options, "--dry-run")
                self.assertIn("6 tasks would be cancelled or asked to stop.", dry)
                self.assertEqual(
                    run("pq_task", "cancel", *options, "--yes"), "6 tasks are cancelled.\n"
                )
                self.assertEqual(statuses(), ["cancelled"] * 6)

    def test_so_does_a_page_at_a_time(self):
        chain()
        with mock.patch.object(verbs, "PAGE", 2):
            self.assertEqual(
                run_json("pq_task", "cancel", "--all", "--yes"), [{"cancelled": 6, "requested": 0}]
            )
        self.assertEqual(statuses(), ["cancelled"] * 6)

    def test_keys_in_any_order(self):
        chain()
        for keys in ("abcdef", "fedcba", "cafebd"):
            with self.subTest(keys):
                run("pq_task", "cancel", *keys, "--yes")
                self.assertEqual(statuses(), ["cancelled"] * 6)
                run("pq_task", "retry", *reversed(KEYS), "--yes")

    def test_one_stays_for_which_a_task_waits_that_is_not_chosen(self):
        chain(user="ann")
        submit("g", user="bob", after=["c"])
        for options, left in (
            (["--user", "ann"], "Tasks that are left: 3."),
            ([*KEYS], "3 of 6 tasks"),
        ):
            with self.subTest(options):
                if "--user" in options:
                    dry = run("pq_task", "cancel", *options, "--dry-run")
                    self.assertIn("3 tasks would be cancelled or asked to stop.", dry)
                self.assertIn(left, refused(self, "pq_task", "cancel", *options, "--yes"))
                self.assertEqual(statuses(), ["waiting", *["blocked"] * 2, *["cancelled"] * 3])
                run("pq_task", "retry", *"fed", "--yes")
        self.assertEqual(Queue()["g"].metadata().status, "blocked")

    def test_the_first_of_a_chain_alone_stay(self):
        chain()
        self.assertIn(
            "Tasks that are left: 2.",
            refused(self, "pq_task", "cancel", "--all", "--first=2", "--yes"),
        )
        self.assertEqual(statuses()[:2], ["waiting", "blocked"])

    def test_many_cost_some_statements_a_page(self):
        Queue().submit_many({"key": str(n), "type": "report"} for n in range(1_000))
        with CaptureQueriesContext(connection) as statements:
            out = run("pq_task", "cancel", "--all", "--yes")
        self.assertEqual(out, "1,000 tasks are cancelled.\n")
        self.assertLess(len(statements), 40)


class OtherDoorTests(AdminTestCase):
    def test_the_admin_cancels_what_is_chosen_with_all_that_waits_for_it(self):
        chain()
        done = self.confirm(self.choose("cancel", *[Queue()[key] for key in "fabcde"]))
        self.assertEqual(self.reported(done), ["Done: 6 cancelled."])
        self.assertEqual(statuses(), ["cancelled"] * 6)

    def test_but_not_the_task_for_which_another_waits(self):
        chain()
        done = self.confirm(self.choose("cancel", *[Queue()[key] for key in "abdef"]))
        said = "Done: 3 cancelled. Not done: 2 that others wait for: its page cancels it with them."
        self.assertIn(said, " ".join(self.reported(done)))

    def test_a_bulk_operation_cancels_them_before_one_of_them_could_run(self):
        chain(if_failed="run", user="ann")
        for key, after in (("g", "c"), ("h", "f")):
            submit(key, user="bob", after=[after])
        for user, done in (("ann", {"refused": 6}), (None, {"cancelled": 8})):
            selection = Selection(queue="default", user=user)
            operation = Operation(verb="cancel", selection=selection, rate=1e6)
            with mock.patch.object(handler, "CHUNK", 2):
                task = submit_bulk(operation, queue="bulk", using="default")
                drain("bulk")
            self.assertEqual(task.metadata().result, done)
        self.assertEqual(statuses(), ["cancelled"] * 6)

    def test_a_batch_in_some_statements(self):
        with Queue().batch("all") as batch:
            batch.submit_many({"type": "report"} for _number in range(300))
        with CaptureQueriesContext(connection) as statements:
            self.assertEqual(batch.cancel_request(), (300, 0))
        self.assertLess(len(statements), 40)


class StoreTests(TestCase):
    def test_what_runs_is_asked_and_what_has_ended_is_left_out(self):
        running_task, _lease = running("a", now=None)
        waiting, ended = submit("b", now=None), submit("c", now=None)
        ended.force_finish()
        ids = [task.id for task in (running_task, waiting, ended)]

        done = store.cancel_each([*ids, 10**9], using="default")

        self.assertEqual(done, {ids[0]: False, ids[1]: True})
        with self.assertRaises(AlreadyFinishedError):
            ended.cancel_request()
        self.assertFalse(running_task.cancel_request())


class InTransactionTests(TransactionTestCase):
    def test_what_is_refused_cancels_nothing_after_the_commit(self):
        submit("a")
        Queue().submit("b", "report", after=["a"], if_failed="wait")
        Queue().poll().fail()
        with transaction.atomic(), self.assertRaises(AlreadyFinishedError):
            Queue()["a"].cancel_request(together=True)
        self.assertEqual(Queue()["b"].metadata().status, "blocked")
