"""Named steps of a task: what each has returned is kept for the attempts after it."""

from contextlib import suppress
from datetime import timedelta
from unittest import mock

from django.contrib.auth.models import Group
from django.db import transaction
from django.test import (
    TestCase,
    TransactionTestCase,
    override_settings,
    skipUnlessDBFeature,
)
from django.utils import timezone

import django_perfectqueue as pq
from django_perfectqueue import store
from django_perfectqueue.application import handler
from django_perfectqueue.application.base import from_function
from django_perfectqueue.exceptions import (
    AlreadyFinishedError,
    InvalidResultError,
    InvalidTaskError,
    NotFoundError,
    PreemptedError,
)
from django_perfectqueue.models import Step, Ticket
from django_perfectqueue.queue import Queue
from django_perfectqueue.queue import steps as steps_module
from django_perfectqueue.store.tasks import steps as stored_steps
from django_perfectqueue.test import drain, eager

from ..admin.staff import AdminTestCase
from ..deaths import run_and_die
from ..factories import elsewhere
from ..management.running import refused, run, run_json
from ..worker.runners import runner_for

SOON = timedelta(hours=1)


class Calls(list):
    """A function that notes how it is called, and returns what it is given."""

    __name__ = "calls"

    def __call__(self, *args, **kwargs):
        self.append((args, kwargs))
        return args[0] if args else None


def take(key="k1", **options):
    """Submit a task unless it is there, and take it."""
    Queue().submit(key, "order", on_conflict="ignore", **options)
    return again()


def again():
    """Take the task, at once if it waits for another try."""
    if Queue()["k1"].metadata().status in ("retrying", "scheduled"):
        Queue()["k1"].retry()
    task = Queue().poll()
    assert task is not None, "Nothing is due."
    return task


def kept():
    return {step.name: step.result_text for step in Step.objects.all()}


class StepTests(TestCase):
    def setUp(self):
        self.calls = Calls()

    def test_what_a_step_has_returned_is_kept_for_the_next_attempt(self):
        task = take()
        self.assertEqual(task.step("charge", self.calls, {"id": 7}, name="x"), {"id": 7})
        task.retry(0)

        task = again()
        self.assertEqual(task.step("charge", self.calls, "other"), {"id": 7})
        self.assertEqual(task.step("mail", self.calls), None)
        task.retry(0)
        self.assertIsNone(again().step("mail", self.calls, "other"))
        self.assertEqual(self.calls, [(({"id": 7},), {"name": "x"}), ((), {})])

    def test_it_is_read_back_as_it_is_stored_the_first_time_too(self):
        task = take()
        self.assertEqual(task.step("pair", lambda: (1, {2: 3})), [1, {"2": 3}])

    def test_a_snoozed_or_released_task_goes_on_after_it(self):
        for verb in (lambda task: task.snooze(1), lambda task: task.release(1)):
            task = take()
            task.step("charge", self.calls, 1)
            verb(task)
            self.assertEqual(again().step("charge", self.calls, 2), 1)
            Queue().clear()
        self.assertEqual(len(self.calls), 2)

    def test_a_function_that_raises_keeps_nothing_and_may_be_tried_again(self):
        task = take()
        with self.assertRaises(ZeroDivisionError):
            task.step("divide", lambda: 1 / 0)
        self.assertEqual(kept(), {})
        self.assertEqual(task.step("divide", lambda: 1), 1)

    def test_a_name_is_used_once_in_an_attempt(self):
        task = take()
        task.step("charge", self.calls, 1)
        with self.assertRaisesMessage(InvalidTaskError, "has run a step 'charge' already"):
            task.step("charge", self.calls, 2)
        task.retry(0)
        task = again()
        task.step("charge", self.calls, 1)
        with self.assertRaises(InvalidTaskError):
            task.step("charge", self.calls, 1)

    def test_bad_names_are_refused_before_anything_is_called(self):
        task = take()
        for wrong in ("", "x" * 101, "a\0", "\ud800", None, 7):
            with self.subTest(wrong), self.assertRaises(InvalidTaskError):
                task.step(wrong, self.calls)
        self.assertEqual(self.calls, [])
        task.step("ä" * 100, self.calls)

    def test_names_are_distinguished_by_case_and_spaces_at_the_end(self):
        task = take()
        for name in ("a", "A", "ä", "a "):
            task.step(name, self.calls, name)
        self.assertEqual(set(kept()), {"a", "A", "ä", "a "})

    def test_what_json_cannot_hold_is_refused(self):
        task = take()
        with self.assertRaisesMessage(InvalidResultError, "The result of step 'charge' can't be"):
            task.step("charge", object)
        small = override_settings(PERFECTQUEUE={"MAX_RESULT_SIZE": 10})
        with small, self.assertRaisesMessage(InvalidResultError, "MAX_RESULT_SIZE; this has 12"):
            task.step("charge", lambda: "x" * 10)
        self.assertEqual(kept(), {})

    def test_the_number_of_steps_is_bounded(self):
        with mock.patch.object(steps_module, "MOST", 2):
            task = take()
            task.step("a", self.calls), task.step("b", self.calls)
            task.retry(0)
            task = again()
            with self.assertRaisesMessage(InvalidTaskError, "at most 2 steps; 'c' is one more"):
                task.step("c", self.calls)
            task.step("b", self.calls)

    def test_who_has_lost_the_lease_keeps_nothing(self):
        task = take()
        later = Queue().poll(now=task.lease.created_at + SOON)
        with self.assertRaises(PreemptedError):
            task.step("charge", self.calls, "stale")
        self.assertEqual(kept(), {})
        self.assertEqual(later.step("charge", self.calls, "new"), "new")

    def test_a_task_that_was_ended_has_no_more_steps(self):
        task = take()
        task.finish()
        with self.assertRaises(AlreadyFinishedError):
            task.step("charge", self.calls)
        self.assertEqual(self.calls, [])

    def test_a_step_of_a_first_attempt_is_fenced_and_written_and_reads_nothing(self):
        task = take()
        with self.assertNumQueries(2):
            task.step("charge", self.calls)

    def test_steps_go_with_their_task(self):
        def gone():
            with self.subTest():
                self.assertEqual(kept(), {})

        task = take()
        task.step("charge", self.calls, 1)
        task.retry(SOON)
        Queue().submit("k1", "order", on_conflict="replace")
        gone()
        again().step("charge", self.calls, 2)
        Queue().clear()
        gone()
        task = take()
        task.step("charge", self.calls, 3)
        task.finish()
        Queue().purge(0)
        gone()
        self.assertEqual(len(self.calls), 3)

    def test_a_dead_letter_that_is_put_back_goes_on_after_them(self):
        task = take()
        task.step("charge", self.calls, 1)
        task.fail()
        Queue()["k1"].retry()
        self.assertEqual(again().step("charge", self.calls, 2), 1)

    def test_outside_of_a_task_the_function_is_only_called(self):
        self.assertEqual(pq.step("charge", self.calls, 5), 5)
        self.assertEqual(kept(), {})


class AsyncTests(TransactionTestCase):
    async def test_a_coroutine_and_a_function_are_steps(self):
        async def charge(amount):
            return {"amount": amount}

        await Queue().asubmit("k1", "order")
        task = await Queue().apoll()
        self.assertEqual(await task.astep("charge", charge, 5), {"amount": 5})
        self.assertEqual(await task.astep("lazy", lambda: charge(6)), {"amount": 6})
        self.assertEqual(await task.astep("mail", Calls(), 1), 1)
        with self.assertRaises(InvalidTaskError):
            await task.astep("charge", charge, 5)

        async def fail():
            raise KeyError

        with self.assertRaises(KeyError):
            await task.astep("fail", fail)
        self.assertEqual(await task.astep("fail", charge, 7), {"amount": 7})
        await task.aretry(0)
        task = await Queue().apoll()
        self.assertEqual(await task.astep("charge", fail), {"amount": 5})


class AtomicTests(TransactionTestCase):
    def run_atomic(self, function):
        Queue().submit("task", "report", on_conflict="ignore")
        task = Queue().poll()
        runner = runner_for(from_function(function, atomic=True))
        self.addCleanup(runner.wakeup.close)
        self.addCleanup(runner.event_loop.close)
        return runner.run(task).word

    def test_a_step_is_kept_with_the_effects_of_its_attempt_or_not_at_all(self):
        def create(task):
            task.step("create", lambda: Group.objects.create(name="g").pk and None)
            raise ValueError

        def put_off(task):
            task.step("create", lambda: Group.objects.create(name="g").pk and None)
            task.snooze(0)

        with self.assertLogs("django_perfectqueue"):
            self.assertEqual(self.run_atomic(create), "retried")
        self.assertEqual((kept(), Group.objects.count()), ({}, 0))
        Queue()["task"].retry()
        self.assertEqual(self.run_atomic(put_off), "snoozed")
        self.assertEqual((kept(), Group.objects.count()), ({"create": "null"}, 1))
        Queue()["task"].retry()
        self.assertEqual(self.run_atomic(put_off), "snoozed")
        self.assertEqual(Group.objects.count(), 1)

    @skipUnlessDBFeature("has_select_for_update_nowait")
    def test_a_step_does_not_lock_the_ticket_while_the_handler_runs(self):
        def look(task):
            task.step("a", lambda: 1)
            elsewhere(take_lock)

        def take_lock():
            with transaction.atomic():
                Ticket.objects.select_for_update(nowait=True).get()

        self.assertEqual(self.run_atomic(look), "finished")
        self.assertEqual(kept(), {"a": "1"})

    def test_what_was_rolled_back_to_a_savepoint_is_not_kept(self):
        def half(task):
            try:
                with transaction.atomic():
                    task.step("a", lambda: 1)
                    raise KeyError
            except KeyError:
                task.step("b", lambda: 2)
                task.step("c", lambda: 3)
            with suppress(KeyError), transaction.atomic():
                task.step("d", lambda: 4)
                raise KeyError
            task.step("d", lambda: 5)
            task.snooze(0)

        self.run_atomic(half)
        self.assertEqual(kept(), {"b": "2", "c": "3", "d": "5"})


def after(task):
    if task.version("v2"):
        task.step("check", lambda: "new")
    task.step("reserve", lambda: "new")
    task.step("charge", lambda: "new")
    return [name for name in ("check", "reserve", "charge") if name in kept()]


class VersionTests(TransactionTestCase):
    """On which side of a change of code a task is, is decided once and kept."""

    def test_a_new_task_is_on_the_new_side_in_each_of_its_attempts(self):
        task = take()
        self.assertEqual(after(task), ["check", "reserve", "charge"])
        for _attempt in range(2):
            task.retry(0)
            task = again()
            self.assertIs(task.version("v2"), True)

    def test_one_that_has_kept_a_step_by_the_code_before_is_on_the_old_side_for_ever(self):
        task = take()
        task.step("reserve", lambda: "old")
        task.retry(0)
        for _attempt in range(3):
            task = again()
            self.assertEqual(after(task), ["reserve", "charge"])
            task.retry(0)
        self.assertEqual(kept(), {"v2": "false", "reserve": '"old"', "charge": '"new"'})

    def test_one_that_has_kept_none_is_on_the_new_side(self):
        task = take()
        with suppress(ZeroDivisionError):
            task.step("reserve", lambda: 1 / 0)
        task.retry(0)
        self.assertEqual(after(again()), ["check", "reserve", "charge"])

    def test_one_that_has_yet_to_come_to_the_change_is_on_the_new_side(self):
        task = take()
        task.step("reserve", lambda: 1)
        task.retry(0)
        task = again()
        task.step("reserve", self.fail)
        self.assertIs(task.version("v2"), True)
        task.step("charge", lambda: 2)
        task.retry(0)
        task = again()
        task.step("reserve", self.fail)
        self.assertIs(task.version("v2"), True)
        self.assertIs(task.version("v3"), False)

    def test_each_change_has_its_own_name(self):
        task = take()
        self.assertIs(task.version("v2"), True)
        with self.assertRaisesMessage(InvalidTaskError, "has run a step 'v2' already"):
            task.version("v2")
        self.assertIs(task.version("v3"), True)

    def test_outside_of_a_task_the_code_is_new(self):
        self.assertIs(pq.version("v2"), True)

    async def test_a_coroutine_asks_too(self):
        await Queue().asubmit("k1", "order")
        task = await Queue().apoll()
        await task.astep("reserve", lambda: 1)
        self.assertIs(await task.aversion("v2"), True)
        await task.aretry(0)
        task = await Queue().apoll()
        self.assertIs(await task.aversion("v3"), False)


class CopyTests(TransactionTestCase):
    """A copy begins anew, or at a step: what was kept before it is kept in the copy."""

    def failed(self):
        task = take(user="ann")
        for name in ("reserve", "charge", "label"):
            task.step(name, lambda name=name: f"first {name}")
        task.fail()
        return Queue()["k1"]

    def test_it_begins_at_the_step_that_is_named(self):
        copy = self.failed().copy("k2", from_step="charge", by="bob")
        self.assertEqual(self.run_all(), ["first reserve", "charge", "label"])
        self.assertEqual(copy.metadata().user, "ann")

    def test_without_one_and_with_the_first_all_is_run_again(self):
        for number, options in enumerate(({}, {"from_step": "reserve"})):
            Queue().clear()
            self.failed().copy(f"k{number + 2}", **options)
            self.assertEqual(self.run_all(), ["reserve", "charge", "label"])

    def test_the_order_is_that_in_which_they_were_kept(self):
        task = take()
        for name in ("z", "a", "m"):
            task.step(name, lambda: 1)
        task.fail()
        copy = Queue()["k1"].copy(from_step="m")
        rows = Step.objects.filter(task_id=copy.id).order_by("pk")
        self.assertEqual(list(rows.values_list("name", flat=True)), ["z", "a"])

    def test_an_unknown_step_is_refused_and_nothing_is_stored(self):
        task = self.failed()
        with self.assertRaisesMessage(
            NotFoundError, "kept no step 'x'. It has kept: 'reserve', 'charge', 'label'."
        ):
            task.copy(from_step="x")
        self.assertEqual(Queue().list().count(), 1)
        with self.assertRaisesMessage(NotFoundError, "Task 'k2' has kept no step ''."):
            Queue().submit("k2", "order").copy(from_step="")

    def test_one_that_is_rolled_back_leaves_nothing(self):
        task = self.failed()
        with suppress(KeyError), transaction.atomic():
            task.copy(from_step="label")
            raise KeyError
        self.assertEqual((Queue().list().count(), Step.objects.count()), (1, 3))

    def test_the_command_takes_it(self):
        self.failed()
        [copied] = run_json("pq_task", "copy", "k1", "--from-step", "label")
        rows = Step.objects.filter(task_id=Queue()[copied["done"]].id)
        self.assertEqual(set(rows.values_list("name", flat=True)), {"reserve", "charge"})
        self.assertIn(
            "kept no step 'x'", refused(self, "pq_task", "copy", "k1", "--from-step", "x")
        )

    def run_all(self):
        task = again()
        return [task.step(name, lambda name=name: name) for name in ("reserve", "charge", "label")]


class CopyPageTests(AdminTestCase):
    def test_the_button_offers_the_steps(self):
        task = take()
        for name in ("reserve", "<b>charge", "label"):
            task.step(name, lambda: 1)
        task.fail()
        ids = {"ids": str(task.lease.task_id), "back": "/admin/perfectqueue/task/"}
        steer = "/admin/perfectqueue/task/steer/copy/"
        page = self.client.post(steer, ids)
        self.assertContains(page, '<option value="" selected>reserve</option>', html=True)
        self.assertContains(page, "&lt;b&gt;charge")
        self.client.post(steer, {**ids, "_do": "1", "from_step": "label"})
        copy = Queue().list().exclude(key="k1").get()
        names = copy.steps.order_by("pk").values_list("name", flat=True)
        self.assertEqual(list(names), ["reserve", "<b>charge"])
        page = self.client.post(steer, {**ids, "_do": "1", "from_step": "stamp"})
        self.assertContains(page, "stamp is not one of the available choices")
        self.assertEqual(Queue().list().count(), 2)

    def test_it_offers_none_for_a_task_that_has_fewer_than_two(self):
        task = take()
        task.step("reserve", lambda: 1)
        ids = {"ids": str(task.lease.task_id)}
        page = self.client.post("/admin/perfectqueue/task/steer/copy/", ids)
        self.assertNotContains(page, "From the step")


class OwnTransactionTests(TransactionTestCase):
    def test_a_step_in_ones_own_transaction_is_kept_with_its_effects(self):
        task = take()
        for number in range(3):
            with suppress(KeyError), transaction.atomic():
                task.step("charge", charge)
                if number < 2:
                    raise KeyError
        self.assertEqual((kept(), Group.objects.count()), ({"charge": '"charged"'}, 1))
        with self.assertRaises(InvalidTaskError):
            task.step("charge", charge)
        task.retry(0)
        self.assertEqual(again().step("charge", self.fail), "charged")


class CrashTests(TransactionTestCase):
    """The process is killed just before the record of a step is committed, and just after."""

    def step_and_die(self, where, name):
        Queue().submit("k1", "order")
        run_and_die(lambda: Queue().poll().step("charge", charge), where, name)
        task = Queue().poll(now=timezone.now() + SOON)  # The lease has run out by then.
        self.assertEqual(task.step("charge", charge), "charged")
        task.finish()
        return Group.objects.count()

    def test_death_before_the_commit_runs_the_function_again(self):
        self.assertEqual(self.step_and_die(stored_steps, "keep"), 2)

    def test_death_after_the_commit_does_not(self):
        self.assertEqual(self.step_and_die(store.steps, "keep_step"), 1)


def charge():
    Group.objects.create(name=f"charge {Group.objects.count()}")
    return "charged"


@handler("steps.order")
def order(task):
    paid = task.step("charge", charge)
    if not task.data:
        task.snooze(timedelta(hours=1))
        return None
    return paid


class HelperTests(TestCase):
    def test_drain_and_eager_keep_steps_too(self):
        Queue().submit("a", "steps.order", {"go": 1})
        drain()
        self.assertEqual(kept(), {"charge": '"charged"'})
        with eager():
            Queue().submit("b", "steps.order", {"go": 1})
        self.assertEqual(Queue()["b"].metadata().result, "charged")
        self.assertEqual(Group.objects.count(), 2)


class ShownTests(AdminTestCase):
    def test_the_story_and_the_command_show_them(self):
        task = take(data={"password": "geheim"})
        task.step("<b>charge", lambda: {"id": 7, "password": "hunter2"})
        page = self.client.get(f"/admin/perfectqueue/task/{task.lease.task_id}/change/")
        self.assertContains(page, "&lt;b&gt;charge")
        self.assertContains(page, "&quot;id&quot;: 7")
        self.assertNotContains(page, "hunter2")
        self.assertRegex(
            run("pq_task", "show", "k1"), r'Workflow\n  \S+ \S+ <b>charge \(step\): \{"id": 7'
        )
        [story] = run_json("pq_task", "show", "k1")
        self.assertEqual(story["steps"][0]["result"]["id"], 7)
        [story] = run_json("pq_task", "show", "k1", "--no-data")
        self.assertNotIn("result", story["steps"][0])
        self.assertNotIn("hunter2", run("pq_task", "show", "k1", "--no-data"))
