from django.contrib.auth.models import Group
from django.core.management import load_command_class
from django.db import connection, transaction
from django.test import SimpleTestCase, TestCase, TransactionTestCase, override_settings

from django_perfectqueue.conf import options
from django_perfectqueue.exceptions import ConfigError
from django_perfectqueue.management.commands.pq_worker import plan_of
from django_perfectqueue.queue import Queue
from django_perfectqueue.test import eager

from . import cases  # noqa: F401


def submit(key="k1", type="helpers.add", data=None, **options):
    return Queue().submit(key, type, data or {"a": 1, "b": 2}, **options)


class DebounceTests:
    """The same, whether the commits are real or those of a TestCase."""

    def test_a_debounced_one_that_leads_runs_at_once_and_the_others_wait(self):
        with eager():
            merged = [submit(data={"a": n, "b": 2}, debounce=60, leading=True) for n in range(3)]
            self.assertEqual(Queue()["k1"].metadata().result, 2)
            self.assertEqual(merged[2].metadata().data, {"a": 2, "b": 2})
            self.assertEqual(merged[2].metadata().status, "scheduled")


class CommittedTests(DebounceTests, TransactionTestCase):
    def test_a_chain_of_any_length_runs_at_once(self):
        with eager():
            given = {"type": "helpers.add", "data": {"a": 1, "b": 2}}
            Queue().chain({"key": str(number), **given} for number in range(300))
            self.assertEqual(Queue()["299"].metadata().status, "finished")

    def test_a_callback_runs_after_its_batch(self):
        with eager(), Queue().batch("nightly") as batch:
            batch.submit("a", "helpers.add", {"a": 1, "b": 2})
            batch.then("b", "helpers.add", {"a": 1, "b": 2})
        self.assertEqual(Queue()["b"].metadata().status, "finished")


class InTestCaseTests(DebounceTests, TestCase):
    def test_a_submit_runs_its_task_at_once(self):
        with eager():
            self.assertEqual(submit().metadata().result, 3)
            Queue().submit_many([{"key": "k2", "type": "helpers.chain", "data": {"left": 1}}])
            self.assertEqual(Queue("helpers-next")["chain-1"].metadata().status, "finished")
        self.assertEqual(submit("k3").metadata().status, "waiting")

    def test_a_task_that_waits_for_others_runs_after_them(self):
        with eager():
            later = submit("a", run_at=60)
            submit("b", after=["a"])
            submit("c", after=["b"])
            later.retry()
            self.assertEqual(Queue()["c"].metadata().status, "finished")

    def test_the_tasks_of_a_sequence_run_at_once_in_their_order(self):
        with eager():
            Queue().submit_many(
                {"key": key, "type": "helpers.add", "data": {"a": 1, "b": 2}, "sequence": "s"}
                for key in "ab"
            )
            submit("c", sequence="s")
            self.assertEqual([Queue()[key].metadata().status for key in "abc"], ["finished"] * 3)

    def test_a_callback_runs_after_its_batch(self):
        with eager():
            with Queue().batch("outer") as outer:
                with outer.batch("inner") as inner:
                    inner.submit("a", "helpers.add", {"a": 1, "b": 2})
                outer.then("b", "helpers.add", {"a": 1, "b": 2}, when="finished")
            outer.then("c", "helpers.add", {"a": 1, "b": 2})
        self.assertEqual([Queue()[key].metadata().status for key in "abc"], ["finished"] * 3)

    def test_in_a_transaction_of_the_callers_it_runs_when_that_has_committed(self):
        with eager(), self.captureOnCommitCallbacks(execute=True), transaction.atomic():
            task = submit()
            self.assertEqual(task.metadata().status, "waiting")
        self.assertEqual(task.metadata().status, "finished")

    def test_what_still_waits_for_a_commit_runs_when_the_block_ends(self):
        with eager():
            with transaction.atomic():
                task = submit()
            self.assertEqual(task.metadata().status, "waiting")
        self.assertEqual(task.metadata().status, "finished")

    def test_what_was_rolled_back_does_not_run(self):
        with eager():
            with self.assertRaises(ZeroDivisionError), transaction.atomic():
                submit()
                raise ZeroDivisionError
            self.assertFalse(Queue()["k1"].exists())

    def test_errors_are_raised_or_only_stored(self):
        with eager(), self.assertRaisesMessage(ValueError, "as it should"):
            submit(type="helpers.boom")
        with eager(raise_errors=False):
            task = submit("k2", type="helpers.boom")
        self.assertEqual(task.metadata().status, "retrying")
        with eager(raise_errors=False):
            task.retry()
        self.assertEqual(list(Group.objects.values_list("name", flat=True))[-1], "k2-2")

    def test_what_is_put_off_waits(self):
        with eager():
            self.assertEqual(submit(run_at=60).metadata().status, "scheduled")

    @eager()
    def test_it_can_stand_over_a_test(self):
        self.assertEqual(submit().metadata().status, "finished")

    @override_settings(PERFECTQUEUE={"EAGER": "quiet"})
    def test_it_is_a_setting(self):
        self.assertEqual(submit(type="helpers.boom").metadata().status, "retrying")
        self.assertEqual(submit("k2").metadata().status, "finished")

    def test_other_settings_stay_as_they_are(self):
        with override_settings(PERFECTQUEUE={"MAX_ATTEMPTS": 7}), eager():
            self.assertEqual((options().MAX_ATTEMPTS, options().EAGER), (7, True))

    async def test_coroutines_submit_eagerly_too(self):
        with eager():
            task = await Queue().asubmit("k1", "helpers.agroup", {"name": "x"})
        self.assertEqual((await task.ametadata()).status, "finished")


class WorkerTests(SimpleTestCase):
    def test_a_worker_refuses_to_run_beside(self):
        command = load_command_class("django_perfectqueue", "pq_worker")
        options = vars(command.create_parser("manage.py", "pq_worker").parse_args([]))
        with eager(), self.assertRaisesMessage(ConfigError, "EAGER is on"):
            plan_of(options)


class WithoutTransactionTests(TransactionTestCase):
    def test_it_runs_after_the_commit(self):
        with eager():
            with transaction.atomic():
                task = submit("k1", "helpers.group", {"name": "x"})
                self.assertEqual(task.metadata().status, "waiting")
            self.assertEqual(task.metadata().status, "finished")
            self.assertFalse(connection.in_atomic_block)
            self.assertEqual(submit("k2").metadata().status, "finished")
