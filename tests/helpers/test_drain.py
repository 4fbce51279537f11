import logging
import traceback
from datetime import timedelta
from unittest import skipUnless

from django.contrib.auth.models import Group
from django.db import connection, transaction
from django.test import TestCase, TransactionTestCase, override_settings

from django_perfectqueue import compat, signals
from django_perfectqueue.exceptions import UnknownTypeError
from django_perfectqueue.fairness import set_limit
from django_perfectqueue.models import Attempt
from django_perfectqueue.queue import Queue
from django_perfectqueue.test import adrain, drain, make_task
from django_perfectqueue.verdicts import Retry

from ..factories import NOON, submit
from . import cases  # noqa: F401


def names():
    return sorted(Group.objects.values_list("name", flat=True))


class DrainTests(TestCase):
    def submit(self, key="k1", type="helpers.add", data=None, **options):
        return Queue().submit(key, type, data or {"a": 1, "b": 2}, **options)

    def test_all_that_is_due_runs_here_and_is_reported(self):
        task = self.submit(user="ann")
        self.submit("later", run_at=60)
        [run] = drained = drain()
        self.assertEqual((run.key, run.type, run.queue), ("k1", "helpers.add", "default"))
        self.assertEqual((run.user, run.attempt, run.word, run.result), ("ann", 1, "finished", 3))
        self.assertEqual((drained.keys, drained.results, run.error), (["k1"], [3], None))
        self.assertEqual(str(drained), "finished default/k1 type=helpers.add attempt=1")
        self.assertEqual((task.metadata().status, task.metadata().result), ("finished", 3))
        self.assertEqual(str(drain()), "Nothing was due.")

    def test_what_tasks_submit_runs_too_in_whatever_queue(self):
        self.submit(type="helpers.chain", data={"left": 2})
        self.assertEqual(drain().keys, ["k1", "chain-2", "chain-1"])

    def test_a_task_that_waits_for_others_runs_after_them(self):
        self.submit("a"), self.submit("b")
        self.submit("c", after=["a", "b"])
        self.assertEqual(drain().keys, ["a", "b", "c"])

    def test_the_tasks_of_a_sequence_run_in_their_order(self):
        for key in "cab":
            self.submit(key, sequence="s")
        self.assertEqual(drain().keys, ["c", "a", "b"])

    def test_a_callback_runs_after_its_batch(self):
        with Queue().batch("nightly") as batch:
            batch.submit("a", "helpers.add", {"a": 1, "b": 2})
            batch.submit("b", "helpers.breaks")
            batch.then("c", "helpers.add", {"a": 1, "b": 2})
        self.assertEqual(drain(raise_errors=False).keys, ["a", "b", "c"])

    def test_callbacks_run_in_the_order_of_nested_batches(self):
        given = {"a": 1, "b": 2}
        with Queue().batch("outer") as outer:
            with outer.batch("inner") as inner:
                inner.submit("a", "helpers.breaks")
                inner.then("one", "helpers.add", given, when="failed")
                inner.then("two", "helpers.add", given, when="finished")
            outer.then("three", "helpers.add", given)
        self.assertEqual(drain(raise_errors=False).keys[0], "a")
        statuses = {key: Queue()[key].metadata().status for key in ("one", "two", "three")}
        self.assertEqual(statuses, {"one": "finished", "two": "blocked", "three": "finished"})
        self.assertTrue(outer.progress().ended)

    def test_a_chain_of_any_length_runs_in_its_order(self):
        given = {"type": "helpers.add", "data": {"a": 1, "b": 2}}
        keys = [str(number) for number in range(100)]
        Queue().chain({"key": key, **given} for key in keys)
        self.assertEqual(drain().keys, keys)

    def test_a_task_that_waits_for_one_that_failed_is_cancelled_or_left(self):
        self.submit("a", type="helpers.breaks")
        self.submit("b", after=["a"])
        self.submit("c", after=["a"], if_failed="cancel")
        self.submit("d", after=["a"], if_failed="run")
        self.assertEqual(drain(raise_errors=False).keys, ["a", "d"])
        states = [Queue()[key].metadata().status for key in "bc"]
        self.assertEqual(states, ["blocked", "cancelled"])

    def test_one_queue_can_be_asked_for(self):
        self.submit(type="helpers.chain", data={"left": 1})
        self.assertEqual(drain("default").keys, ["k1"])
        self.assertEqual(drain(Queue("helpers-next")).keys, ["chain-1"])

    def test_signals_are_sent(self):
        heard = []

        def hear(sender, queue, task, **kwargs):
            heard.append((sender.__name__, queue, task.key))

        for signal in (signals.task_started, signals.task_finished):
            signal.connect(hear)
            self.addCleanup(signal.disconnect, hear)
        self.submit()
        drain()
        self.assertEqual(heard, [("add", "default", "k1")] * 2)

    def test_other_types_are_left_as_they_were(self):
        other = self.submit("other", "helpers.group", {"name": "x"}, priority=5)
        self.submit()
        self.assertEqual(drain(types="helpers.add", ahead="2h").keys, ["k1"])
        self.assertEqual(other.metadata().status, "waiting")
        self.assertEqual(drain(types=["helpers.group"])[0].attempt, 1)

    def test_an_error_is_raised_with_its_traceback_once_it_is_stored(self):
        task = self.submit(type="helpers.boom")
        try:
            drain()
        except ValueError as error:
            self.assertEqual(traceback.extract_tb(error.__traceback__)[-1].name, "boom")
            reported = getattr(error, "__notes__", None)
        else:
            self.fail("Nothing was raised.")
        self.assertEqual(task.metadata().status, "retrying")
        if reported:
            note = "Raised by task 'k1' of type 'helpers.boom', which was retried."
            self.assertEqual(reported, [note])

    def test_what_a_handler_did_before_it_raised_stands_as_in_a_worker(self):
        self.submit(type="helpers.boom")
        [run] = drain(raise_errors=False)
        self.assertEqual((run.word, str(run.error)), ("retried", "as it should"))
        self.assertGreater(run.wait, 0)
        self.assertEqual(names(), ["k1-1"])

    def test_time_can_pass_from_one_attempt_to_the_next(self):
        task = self.submit(type="helpers.boom")
        self.submit("soon", run_at=1)
        drained = drain(ahead="2h", raise_errors=False)
        self.assertEqual(drained.words, ["retried", "finished", "retried", "failed"])
        self.assertEqual(task.metadata().status, "failed")
        first, second = Attempt.objects.order_by("id").values_list("ended_at", flat=True)[:2]
        self.assertAlmostEqual((second - first).total_seconds(), drained[0].wait, delta=0.01)

    def test_what_a_dead_worker_held_comes_back_when_its_lease_has_lapsed(self):
        task = make_task("helpers.add", {"a": 1, "b": 1}, status="running")
        self.assertEqual(drain(ahead=1), [])
        [run] = drain(ahead="1h")
        self.assertEqual((run.key, run.attempt, run.word), (task.key, 2, "finished"))

    def test_what_a_handler_wants_is_no_error(self):
        self.submit(type="helpers.verdict", data="snooze")
        self.submit("k2", "helpers.verdict", "discard")
        self.submit("k3", "helpers.verdict", "retry")
        drained = drain()
        self.assertEqual(drained.words, ["snoozed", "discarded", "retried"])
        self.assertEqual([run.wait for run in drained], [30, None, 120])
        with self.assertRaises(Retry):
            drain(ahead="3m", types="helpers.verdict", until=lambda run: run.key == "k3")

    def test_what_a_handler_tells_and_logs_is_kept(self):
        task = self.submit(type="helpers.telling", data="why")
        logger, nothing = logging.getLogger("shop"), logging.NullHandler()
        logger.addHandler(nothing)  # so that it is not printed
        self.addCleanup(logger.removeHandler, nothing)
        drain()
        reported = task.progress()
        self.assertEqual((reported.progress, reported.stage), (0.5, "half of it"))
        self.assertIn("Nobody knows why.", reported.lines)

    def test_time_goes_no_further_than_asked(self):
        self.submit("soon", run_at=50)
        self.submit("late", run_at=70)
        self.assertEqual(drain(ahead=timedelta(minutes=1)).keys, ["soon"])

    def test_what_a_rate_holds_back_starts_when_that_lets_it(self):
        set_limit("mail", rate=10, period=60.0, burst=1)
        for number in range(8):
            self.submit(f"k{number}", limits=["mail"])
        self.assertEqual(len(drain(ahead=30)), 6)
        self.assertEqual(len(drain(Queue(), ahead="1h")), 2)

    def test_a_moment_can_be_given(self):
        submit("k1", type="helpers.boom", now=NOON)
        self.assertEqual(drain(now=NOON, raise_errors=False).words, ["retried"])
        self.assertEqual(Attempt.objects.get().ended_at, NOON)
        self.assertEqual(drain(now=NOON, raise_errors=False), [])

    def test_it_ends_where_it_is_asked_to(self):
        for key in ("k1", "k2", "k3"):
            self.submit(key)
        self.assertEqual(drain(until=lambda run: run.key == "k2").keys, ["k1", "k2"])

    def test_what_never_ends_is_broken_off(self):
        task = self.submit(type="helpers.forever")
        with self.assertRaisesRegex(AssertionError, "after 7 attempts, task 'k1'.*limit="):
            drain(limit=7, ahead=60)
        self.assertEqual(task.metadata().status, "scheduled")

    def test_an_unknown_type_tells_which_are_known(self):
        task = self.submit(type="helpers.ad")
        with self.assertRaisesRegex(
            UnknownTypeError,
            "handler for task 'k1' of type 'helpers.ad' in.*mean 'helpers.add'.*Known are: ",
        ):
            drain()
        self.assertEqual(task.metadata().status, "waiting")
        for types in ("helpers.ad", ["helpers.group", "helpers.ad"]):
            with self.assertRaisesRegex(UnknownTypeError, "tasks of type 'helpers.ad';.*mean"):
                drain(types=types)

    @override_settings(PERFECTQUEUE={"DISPATCH": "tests.tasks.SampleDispatch"})
    def test_the_dispatch_is_that_of_the_project(self):
        Queue().submit("k1", "import.x")
        self.assertEqual(drain().results, ["import.x"])

    def test_paused_ones_are_not_due(self):
        self.submit()
        Queue().pause()
        self.assertEqual(drain(), [])

    def test_what_a_handler_wants_done_on_commit_is_done(self):
        self.submit(type="helpers.after-commit")
        with self.captureOnCommitCallbacks(execute=True):  # which does it no second time
            self.assertEqual(drain().keys, ["k1", "next"])

    def test_a_broken_transaction_is_mended(self):
        task = self.submit(type="helpers.breaks")
        drain(raise_errors=False)
        self.assertEqual(task.metadata().status, "failed")
        self.assertEqual(names(), [] if connection.vendor == "postgresql" else ["before"])

    def test_a_transaction_that_was_left_open_is_rolled_back(self):
        self.submit(type="helpers.spoils")
        depth = len(connection.savepoint_ids), len(connection.atomic_blocks)
        self.assertEqual(drain().words, ["finished"])
        self.assertEqual((len(connection.savepoint_ids), len(connection.atomic_blocks)), depth)
        self.assertEqual(names(), [])

    def test_a_coroutine_sees_what_the_test_has_made(self):
        Group.objects.create(name="made by the test")
        self.submit(type="helpers.agroup", data={"name": "made by a coroutine"})
        self.submit("k2", type="helpers.async-decider")
        drained = drain(raise_errors=False)
        self.assertEqual((drained.words, drained[0].result), (["finished", "failed"], 1))
        self.assertEqual(names(), ["made by a coroutine", "made by the test"])
        self.assertEqual(Attempt.objects.get().error, "asynchronous")

    def test_a_coroutine_that_wants_to_end_the_program_only_fails(self):
        self.submit(type="helpers.leave")
        self.assertEqual(drain(raise_errors=False).words, ["failed"])

    async def test_coroutines_can_drain_too(self):
        await Queue().asubmit("k1", "helpers.agroup", {"name": "x"})
        await Queue().asubmit("k2", "helpers.group", {"name": "y"})
        drained = await adrain()
        self.assertEqual(drained.words, ["finished"] * 2)
        self.assertEqual(await Group.objects.acount(), 2)

    @skipUnless(compat.HAS_TASKS, "There are no tasks of Django.")
    def test_tasks_of_django_run_beside(self):
        from ..backend import jobs

        result, slow = jobs.add.enqueue(1, 2), jobs.later.enqueue("x")
        self.assertEqual(drain(types=jobs.add).results, [3])
        drain()
        result.refresh()
        slow.refresh()
        self.assertEqual((result.return_value, slow.return_value), (3, {"value": "x"}))


class WithoutTransactionTests(TransactionTestCase):
    def test_it_works_where_everything_is_committed(self):
        Queue().submit("k1", "helpers.after-commit")
        Queue().submit("k2", "helpers.agroup", {"name": "x"})
        Queue().submit("k3", "helpers.spoils", run_at=30)
        self.assertEqual(drain(ahead="1m").keys, ["k1", "k2", "next", "k3"])
        self.assertFalse(connection.in_atomic_block)
        self.assertEqual(names(), ["x"])

    def test_it_joins_the_callers_transaction(self):
        with transaction.atomic():
            Queue().submit("k1", "helpers.group", {"name": "x"})
            self.assertEqual(drain().words, ["finished"])
            transaction.set_rollback(True)
        self.assertEqual((names(), len(Queue().list())), ([], 0))
