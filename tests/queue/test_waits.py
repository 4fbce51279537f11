"""Tasks that sleep, and that wait for signals: what is kept, and who is first."""

import time
from contextlib import suppress
from datetime import timedelta
from threading import Thread
from unittest import mock

from asgiref.sync import async_to_sync
from django.db import connection, transaction
from django.test import (
    TestCase,
    TransactionTestCase,
    override_settings,
    skipUnlessDBFeature,
)
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

import django_perfectqueue as pq
from django_perfectqueue import store
from django_perfectqueue.application import handler
from django_perfectqueue.exceptions import (
    AlreadyExistsError,
    AlreadyFinishedError,
    InvalidTaskError,
    NotFoundError,
    NotSupportedError,
    PreemptedError,
    SuspendedError,
    WaitInTransactionError,
)
from django_perfectqueue.fairness import set_limit
from django_perfectqueue.models import Account, Attempt, DependencyEvent, Meter, Step, Ticket
from django_perfectqueue.queue import Queue
from django_perfectqueue.store.lanes.wake import event_rounds, rounds
from django_perfectqueue.store.schedules import fire_due_timers
from django_perfectqueue.store.tasks import settle, steps
from django_perfectqueue.store.tasks.close import Loss
from django_perfectqueue.store.tasks.steps import STANDING
from django_perfectqueue.store.upkeep.timers import wake_forgotten_lanes
from django_perfectqueue.test import drain, eager

from ..factories import at, elsewhere
from ..management.running import run_json

FULL_AT_TWO = STANDING.replace("OFFSET 999", "OFFSET 1")
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
KINDS = Step.Kind

calls = []


@handler("waits.approve")
def approve(task):
    draft = task.step("draft", lambda: calls.append("draft") or "draft")
    answer = task.wait_for("approved", timeout="7d")
    if not answer:
        return "Nobody answered."
    task.sleep("cooling-off", "2d")
    return task.step("charge", lambda: calls.append("charge") or [draft, answer])


@handler("waits.in-a-loop")
async def approve_in_a_loop(task):
    answer = await task.await_for("approved")
    await task.asleep("cooling-off", "2d")
    return answer


@handler("waits.by-function")
def by_function(task):
    pq.sleep("first", 60)
    pq.sleep_until("second", task.created_at + DAY)
    return pq.wait_for("third", 60)


@handler("waits.by-coroutine")
async def by_coroutine(task):
    await pq.asleep("first", 60)
    await pq.asleep_until("second", task.created_at + DAY)
    return await pq.await_for("third", 60)


@handler("waits.caught")
def caught(task):
    try:
        task.wait_for("approved")
    except BaseException:
        return "went on"


@handler("waits.caught-by-coroutine")
async def caught_by_coroutine(task):
    try:
        await task.await_for("approved")
    except BaseException:
        return "went on"


class WorkflowTests(TestCase):
    """What a handler sees, run in place; the time is moved by ``now=``."""

    def setUp(self):
        calls.clear()
        self.now = timezone.now()

    def submit(self, type="waits.approve", **options):
        self.handle = Queue().submit("k1", type, **options)
        return self.handle

    def drained(self, after=timedelta(), **options):
        return drain(now=self.now + after, **options)

    def status(self):
        return self.handle.metadata().status

    def test_it_waits_for_its_signal_then_sleeps_then_ends(self):
        self.submit()
        [run] = self.drained()
        self.assertEqual((run.word, run.wait, run.error), ("suspended", 7 * 86_400, None))
        self.assertEqual(self.status(), "blocked")
        self.assertEqual(self.drained(6 * DAY), [])

        self.assertTrue(self.handle.signal("approved", {"by": 7}))
        [run] = self.drained(DAY)
        self.assertEqual((run.word, run.wait), ("suspended", 2 * 86_400))
        self.assertEqual(self.status(), "scheduled")
        self.assertEqual(self.drained(2 * DAY), [])

        [run] = self.drained(3 * DAY)
        self.assertEqual((run.word, run.result), ("finished", ["draft", {"by": 7}]))
        self.assertEqual(calls, ["draft", "charge"])
        self.assertEqual((run.attempt, Attempt.objects.count()), (1, 0))

    def test_one_that_catches_what_says_that_it_waits_can_not_finish(self):
        for type_ in ("waits.caught", "waits.caught-by-coroutine"):
            Queue().clear()
            self.submit(type_, max_attempts=1)
            with self.subTest(type_):
                with self.assertRaisesMessage(NotSupportedError, "has caught SuspendedError"):
                    self.drained()
                self.assertEqual(self.status(), "failed")

    def test_a_wait_whose_time_is_over_returns_none(self):
        self.submit()
        self.drained()
        [run] = self.drained(7 * DAY)
        self.assertEqual(run.result, "Nobody answered.")

    def test_time_passes_with_ahead(self):
        self.submit()
        self.assertEqual(drain(ahead="8d").words, ["suspended", "finished"])

    def test_a_signal_before_the_wait_is_reached(self):
        self.submit().signal("approved", 1)
        self.assertEqual(self.drained().words, ["suspended"])
        self.assertEqual(self.status(), "scheduled")
        self.assertFalse(Step.objects.filter(kind=KINDS.WAIT).exists())

    def test_a_coroutine(self):
        self.submit("waits.in-a-loop")
        [run] = self.drained()
        self.assertEqual((run.word, run.wait), ("suspended", float("inf")))
        self.handle.signal("approved", [1])
        self.assertEqual(self.drained().words, ["suspended"])
        self.assertEqual(self.drained(2 * DAY).results, [[1]])

    def test_module_functions(self):
        for name in ("waits.by-function", "waits.by-coroutine"):
            with self.subTest(name):
                self.submit(name)
                self.assertEqual(self.drained().words, ["suspended"])
                self.assertEqual(self.drained(timedelta(seconds=59)), [])
                self.assertEqual(self.drained(timedelta(seconds=61)).words, ["suspended"])
                self.assertEqual(self.drained(DAY + HOUR).words, ["suspended"])
                [run] = self.drained(DAY + 2 * HOUR)
                self.assertEqual((run.word, run.result), ("finished", None))
                Queue().clear()

    def test_where_no_task_runs(self):
        pq.sleep("nap", "2d")
        pq.sleep_until("nap", self.now + DAY)
        with self.assertRaisesMessage(NotSupportedError, "No task runs here"):
            pq.wait_for("approved")

    def test_eager(self):
        with eager():
            self.submit()
            self.assertEqual(self.status(), "blocked")
            self.handle.signal("approved", 1)
            self.assertEqual(self.status(), "scheduled")
        self.assertEqual(self.drained(2 * DAY + HOUR).words, ["finished"])

    def test_a_retry_before_its_time_waits_on_for_the_same_time(self):
        self.submit().signal("approved", 1)
        self.drained()
        before = Step.objects.get(kind=KINDS.SLEEP)
        self.handle.retry()
        [run] = self.drained(DAY)
        self.assertEqual((run.word, run.wait), ("suspended", 86_400))
        after = Step.objects.get(kind=KINDS.SLEEP)
        self.assertEqual((after.until, after.kept_at), (before.until, before.kept_at))
        self.assertEqual(Ticket.objects.get().timer_at, before.until)
        self.assertEqual(self.drained(2 * DAY).words, ["finished"])


class HandTestCase:
    """Tasks are taken by hand, and left where they wait."""

    def setUp(self):
        self.now = timezone.now()

    def take(self, key="k1", after=timedelta(), **options):
        Queue().submit(key, "order", on_conflict="ignore", **options)
        return self.again(after)

    def again(self, after=timedelta()):
        task = Queue().poll(now=self.now + after if after else None)
        if task is not None and after:
            task.moment = self.now + after
        return task

    def wait(self, task, name="approved", timeout=None):
        """Wait for a signal for which it has to wait."""
        with self.assertRaises(SuspendedError):
            task.wait_for(name, timeout)

    def waiting(self, **options):
        """Return a task that waits for a signal."""
        self.wait(self.take(**options))
        return Queue()["k1"]

    def status(self):
        return Queue()["k1"].metadata().status


class SignalTests(HandTestCase, TestCase):
    def test_the_first_one_of_a_name_counts(self):
        handle = self.waiting()
        self.assertIs(handle.signal("approved", 1), True)
        with self.assertRaisesMessage(AlreadyExistsError, "has a signal 'approved' already"):
            handle.signal("approved", 1)
        self.assertIs(handle.signal("approved", 2, on_conflict="ignore"), False)
        self.assertEqual(self.again().wait_for("approved"), 1)

    def test_one_of_another_name_does_not(self):
        self.waiting().signal("refused")
        self.assertIsNone(self.again())
        self.assertEqual(self.status(), "blocked")

    def test_without_data_it_is_none(self):
        self.waiting().signal("approved")
        self.assertIsNone(self.again().wait_for("approved"))

    def test_the_async_twin(self):
        handle = self.waiting()
        self.assertIs(async_to_sync(handle.asignal)("approved", 1), True)

    def test_one_to_a_task_that_is_unknown_or_has_ended(self):
        with self.assertRaises(NotFoundError):
            Queue()["k1"].signal("approved")
        self.take().finish()
        with self.assertRaisesMessage(AlreadyFinishedError, "it is finished"):
            Queue()["k1"].signal("approved")
        self.take("k2").fail()
        with self.assertRaises(AlreadyFinishedError):
            Queue()["k2"].signal("approved")
        self.assertFalse(Step.objects.exists())

    def test_what_can_not_be_sent(self):
        handle = self.waiting()
        for name in ("", "x" * 101, "a\0", None, 7):
            with self.subTest(name), self.assertRaises(InvalidTaskError):
                handle.signal(name)
        with self.assertRaisesMessage(InvalidTaskError, "The data of signal 'approved' can't be"):
            handle.signal("approved", object())
        small = override_settings(PERFECTQUEUE={"MAX_PAYLOAD_SIZE": 10})
        with small, self.assertRaisesMessage(InvalidTaskError, "MAX_PAYLOAD_SIZE; this has 12"):
            handle.signal("approved", "x" * 10)
        with self.assertRaises(ValueError):
            handle.signal("approved", on_conflict="replace")
        self.assertEqual(self.status(), "blocked")

    def test_more_than_it_may_have(self):
        handle = self.waiting()
        with mock.patch("django_perfectqueue.store.tasks.steps.STANDING", FULL_AT_TWO):
            handle.signal("a")
            handle.signal("b")
            self.assertIs(handle.signal("b", on_conflict="ignore"), False)
            with self.assertRaisesMessage(InvalidTaskError, "1,000 signals, the most"):
                handle.signal("c")
        self.assertEqual(Step.objects.filter(kind=KINDS.SIGNAL).count(), 2)

    def test_long_data(self):
        self.waiting().signal("approved", "ä" * 5_000)
        self.assertEqual(self.again().wait_for("approved"), "ä" * 5_000)

    def test_names_are_distinguished_by_case_and_spaces_at_the_end(self):
        handle = self.waiting()
        for name in ("Approved", "approved "):
            handle.signal(name)
        self.assertEqual(self.status(), "blocked")
        self.assertIsNone(self.again())

    def test_what_is_sensitive_in_it_is_masked_in_the_log(self):
        self.waiting().signal("approved", {"password": "open-sesame"})
        task = self.again()
        answer = task.wait_for("approved")
        task.log(f"The password is {answer['password']}.")
        task.write_notes()
        [line] = Queue()["k1"].progress().log
        self.assertNotIn("sesame", line.text)

    def test_it_goes_with_its_task(self):
        self.waiting().signal("approved")
        Queue().clear()
        self.assertFalse(Step.objects.exists())

    def test_to_a_task_that_runs_and_to_one_that_sleeps(self):
        task = self.take()
        Queue()["k1"].signal("approved", 1)
        with self.assertRaises(SuspendedError):
            task.sleep("nap", 60)
        Queue()["k1"].signal("paid", 2)
        self.assertIsNone(self.again())
        task = self.again(HOUR)
        self.assertIsNone(task.sleep("nap", 60))
        self.assertEqual((task.wait_for("approved"), task.wait_for("paid")), (1, 2))


class TimeTests(HandTestCase, TestCase):
    def sleep(self, task, duration="1h", name="nap"):
        with self.assertRaises(SuspendedError):
            task.sleep(name, duration)

    def test_a_signal_after_the_timeout_changes_nothing(self):
        self.wait(self.take(), timeout=60)
        task = self.again(HOUR)
        self.assertIsNone(task.wait_for("approved", 60))
        Queue()["k1"].signal("approved", 1)
        task.retry(0)
        self.assertIsNone(self.again(2 * HOUR).wait_for("approved", 60))

    def test_a_signal_after_the_time_but_before_the_task_has_seen_that(self):
        self.wait(self.take(), timeout=60)
        Queue()["k1"].signal("approved", 1)
        self.assertEqual(self.again(HOUR).wait_for("approved", 60), 1)

    def test_no_time_at_all(self):
        task = self.take()
        self.assertIsNone(task.wait_for("approved", 0))
        self.assertIsNone(task.sleep("nap", 0))
        self.assertIsNone(task.sleep("past", -5))
        self.assertIsNone(task.sleep_until("yesterday", self.now - DAY))
        Queue()["k1"].signal("approved", 1)
        task.retry(0)
        self.assertIsNone(self.again(HOUR).wait_for("approved", 0))

    def test_what_is_no_time(self):
        task = self.take()
        for act, wrong in (
            (task.sleep, "soon"),
            (task.sleep, None),
            (task.sleep, float("nan")),
            (task.wait_for, "soon"),
            (task.sleep_until, self.now.replace(tzinfo=None)),
            (task.sleep_until, self.now.replace(year=9500)),
            (task.sleep_until, "1d"),
            (task.sleep_until, None),
        ):
            with self.subTest(wrong), self.assertRaises(InvalidTaskError):
                act("nap", wrong)
        self.assertEqual(task.settled, "")

    def test_a_name_is_used_once_in_an_attempt(self):
        Queue().submit("k1", "order").signal("approved", 1)
        task = self.again()
        task.wait_for("approved")
        with self.assertRaisesMessage(InvalidTaskError, "has passed a wait 'approved' already"):
            task.wait_for("approved")
        for wrong in ("", "x" * 101, None):
            with self.subTest(wrong), self.assertRaises(InvalidTaskError):
                task.wait_for(wrong)
        # A step, a sleep and a wait may have the same.
        self.assertEqual(task.step("approved", int), 0)
        self.sleep(task, name="approved")

    def test_the_time_of_the_first_call_holds(self):
        self.sleep(self.take(), "1h")
        Queue()["k1"].retry()
        self.sleep(self.again(), "5d")
        self.assertIsNone(self.again(HOUR + timedelta(minutes=1)).sleep("nap", "9d"))

    def test_its_time_moved_by_a_retry_before_it_began_does_not_put_it_off(self):
        handle = Queue().submit("k1", "order", run_at=self.now + 7 * DAY)
        handle.retry()
        self.wait(self.again())
        handle.signal("approved")
        self.assertIsNotNone(self.again())

    def test_what_has_begun_does_not_expire(self):
        self.wait(self.take(expires_at=self.now + HOUR))
        Queue()["k1"].signal("approved", 1)
        late = self.now + DAY
        self.assertNotEqual(Queue()["k1"].why_waiting(now=late).code, "expired")
        self.assertEqual(self.again(DAY).wait_for("approved"), 1)

    def test_what_has_waited_does_not_expire_however_its_next_attempt_ends(self):
        late = self.now + DAY
        for name in ("released unbegun", "released", "given back", "retried"):
            with self.subTest(name):
                self.wait(self.take(name, expires_at=self.now + HOUR))
                Queue()[name].signal("approved", 1)
                task = self.again(DAY)
                if name == "released unbegun":
                    store.settle([task.lease], settle.Ending.release(), using="default", now=late)
                elif name == "released":
                    at(task, late).release()
                elif name == "given back":
                    terms = {"using": "default", "alive_time": 300.0, "now": late}
                    store.upkeep.give_back(task.lease.holder, loss=Loss(), **terms)
                else:
                    at(task, late).retry(0)
                code = Queue()[name].why_waiting(now=late + HOUR).code
                self.assertNotEqual(code, "expired")
                task = self.again(DAY + HOUR)
                self.assertEqual(task.wait_for("approved"), 1)
                task.finish()

    def test_a_wait_in_the_place_of_a_join_ends_with_its_signal(self):
        task = self.take()
        for key in ("other", "another"):
            Queue().submit(key, "order", run_at=self.now + 7 * DAY)
        with self.assertRaises(SuspendedError):
            task.join(Queue()["other"], timeout=60)
        task = self.again(HOUR)
        with self.assertRaises(SuspendedError):
            task.join(Queue()["another"], timeout="1d")
        task = self.again(2 * DAY)
        # Its code has changed while it waited.
        self.wait(task)
        Queue()["k1"].signal("approved", 1)
        self.assertEqual(self.again(3 * DAY).wait_for("approved"), 1)

    def test_its_user_is_charged_and_nothing_is_counted(self):
        self.wait(self.take(user="ann"))
        ticket, account = Ticket.objects.get(), Account.objects.get()
        self.assertEqual((ticket.errors, ticket.crashes, ticket.holder), (0, 0, None))
        self.assertEqual((account.running, Attempt.objects.count()), (0, 0))
        self.assertGreater(account.cost, 0)

    def test_errors_before_it_still_count(self):
        self.take().retry(0)
        self.wait(self.again(HOUR))
        Queue()["k1"].signal("approved")
        self.assertEqual(self.again(HOUR).lease.errors, 1)

    def test_it_takes_its_place_by_the_time_at_which_it_is_over(self):
        self.sleep(self.take(), 60)
        Queue().submit("k2", "order", run_at=self.now + timedelta(seconds=30))
        Queue().submit("k3", "order", run_at=self.now + timedelta(seconds=90))
        late = self.now + HOUR
        self.assertEqual([Queue().poll(now=late).key for _each in range(3)], ["k2", "k1", "k3"])


class SteeredTests(HandTestCase, TestCase):
    """What others do with a task that waits for a signal."""

    def assert_goes_on(self, queue="default"):
        Queue(queue)["k1"].signal("approved", 1)
        self.assertEqual(Queue(queue).poll().wait_for("approved"), 1)

    def test_an_event_about_its_family_does_not_end_its_wait(self):
        handle = self.waiting()
        DependencyEvent.objects.create(task_id=handle.id, kind=DependencyEvent.Kind.ADDED)
        DependencyEvent.objects.create(task_id=handle.id, kind=DependencyEvent.Kind.ENDED)
        store.records.follow(using="default")
        self.assertEqual(self.status(), "blocked")
        self.assertFalse(DependencyEvent.objects.exists())
        self.assert_goes_on()

    def test_a_retry_of_its_parent_does_not_either(self):
        Queue().submit("parent", "order")
        Queue().submit("k1", "order", after=["parent"], if_failed="run")
        self.again().fail()
        self.wait(self.again())
        Queue()["parent"].retry()
        self.again().finish()
        self.assertIsNone(self.again())
        self.assert_goes_on()

    def test_one_that_is_to_wait_for_a_task_as_well(self):
        handle = self.waiting()
        Queue().submit("parent", "order")
        handle.wait_for(["parent"])
        handle.signal("approved", 1)
        task = self.again()
        self.assertEqual(task.key, "parent")
        task.finish()
        self.assertEqual(self.again().wait_for("approved"), 1)

    def test_a_retry_is_refused(self):
        with self.assertRaisesMessage(NotSupportedError, "is blocked already"):
            self.waiting().retry()

    def test_it_is_cancelled_at_once(self):
        handle = self.waiting()
        self.assertTrue(handle.cancel_request())
        self.assertEqual(self.status(), "cancelled")
        with self.assertRaises(AlreadyFinishedError):
            handle.signal("approved")

    def test_one_that_was_to_be_cancelled_does_not_wait(self):
        task = self.take()
        Queue()["k1"].cancel_request()
        self.wait(task)
        self.assertEqual(self.status(), "cancelled")
        self.assertFalse(Step.objects.exists())

    def test_it_is_finished_by_force(self):
        self.waiting().force_finish()
        self.assertEqual(self.status(), "finished")

    def test_it_is_moved_to_another_queue(self):
        self.waiting().move("other")
        self.assert_goes_on("other")

    def test_its_data_are_changed(self):
        handle = self.waiting()
        handle.edit_data({"a": 1})
        handle.signal("approved")
        self.assertEqual(self.again().data, {"a": 1})

    def test_its_queue_is_paused(self):
        handle = self.waiting()
        set_limit("default", scope="queue", paused=True)
        handle.signal("approved", 1)
        self.assertIsNone(self.again())
        self.assertEqual(self.status(), "waiting")
        set_limit("default", scope="queue", paused=False)
        self.assertEqual(self.again().wait_for("approved"), 1)

    def test_a_limit_is_left_and_its_rate_counts_each_start(self):
        set_limit("api", max_running=1, rate=2, period=3600)
        handle = self.waiting(limits=["api"])
        self.assertEqual(Meter.objects.get().running, 0)
        handle.signal("approved")
        self.again().finish()
        Queue().submit("k2", "order", limits=["api"])
        self.assertIsNone(self.again())

    def test_a_batch_goes_on_with_it(self):
        with Queue().batch("b") as batch:
            batch.submit("k1", "order")
        handle = self.waiting()
        self.assertEqual(batch.progress().finished, 0)
        handle.signal("approved")
        self.again().finish()
        self.assertEqual(batch.progress().finished, 1)

    def test_code_that_waits_for_something_else_by_now(self):
        self.wait(self.take(), "approved", "1d")
        task = self.again(DAY + HOUR)
        self.wait(task, "paid")
        Queue()["k1"].signal("paid", 1)
        task = self.again(DAY + HOUR)
        self.assertEqual(task.wait_for("paid"), 1)
        # And back: the older wait is the newest again.
        self.wait(task, "delivered")
        Queue()["k1"].signal("approved")
        self.assertEqual(self.status(), "blocked")
        self.assertIsNone(self.again(DAY + HOUR))

    def test_a_task_that_failed_is_retried_behind_its_waits(self):
        handle = self.waiting()
        handle.signal("approved", 1)
        self.again().fail()
        handle.retry()
        self.assertEqual(self.again().wait_for("approved"), 1)

    def test_by_hand_it_is_settled(self):
        task = self.take()
        self.wait(task)
        self.assertEqual(task.settled, "suspended")
        with self.assertRaisesMessage(PreemptedError, "you suspended it"):
            task.finish()

    def test_in_a_transaction_of_the_callers(self):
        task = self.take()
        with transaction.atomic():
            for act, time in ((task.sleep, 60), (task.sleep_until, self.now), (task.wait_for, 0)):
                with self.assertRaisesMessage(WaitInTransactionError, "can't wait in a transact"):
                    act("nap", time)
        self.assertEqual((task.settled, Step.objects.count()), ("", 0))

    def test_the_old_holder_waits_for_nothing_and_answers_nothing(self):
        self.wait(self.take(), timeout=60)
        frozen = self.again(HOUR)
        frozen._opened_steps()
        holder = Queue().poll(now=self.now + DAY)
        before = list(Step.objects.values()), Ticket.objects.values().get()
        for act in (
            lambda: frozen.wait_for("approved", 60),
            lambda: frozen.wait_for("other"),
            lambda: frozen.sleep("nap", "9d"),
        ):
            with self.assertRaises(PreemptedError):
                act()
        self.assertEqual((list(Step.objects.values()), Ticket.objects.values().get()), before)
        Queue()["k1"].signal("approved", 1)
        self.assertEqual(holder.wait_for("approved", 60), 1)


class IdleTests(HandTestCase, TransactionTestCase):
    """Tasks that wait cost nothing."""

    def statements(self):
        with CaptureQueriesContext(
            connection,
        ) as found:
            fire_due_timers(using="default")
            store.records.follow(using="default")
            wake_forgotten_lanes(using="default")
            for each in (rounds, event_rounds):
                # These three are done now and then: they were just now.
                each["default"].began(time.monotonic())
            Queue().poll()
        return [one["sql"].split()[0] for one in found]

    def test_an_idle_worker_runs_no_statement_more(self):
        self.take("warm").finish()
        self.assertIsNone(self.again())
        before = self.statements()
        for number in range(20):
            with suppress(SuspendedError):
                self.take(f"s{number}").sleep("nap", "1d")
            with suppress(SuspendedError):
                self.take(f"w{number}").wait_for("approved", "1d" if number % 2 else None)
        self.assertEqual(Ticket.objects.count(), 40)
        store.records.follow(using="default")
        self.assertEqual(self.statements(), before)

    def test_they_are_counted_once(self):
        for number in range(4):
            with suppress(SuspendedError):
                self.take(f"w{number}").wait_for("approved", "1d" if number % 2 else None)
        self.assertEqual(run_json("pq_queue", "list")[0]["blocked"], 4)


class RaceTests(HandTestCase, TransactionTestCase):
    """Two connections at once."""

    def send(self, data=1, **options):
        return Queue()["k1"].signal("approved", data, **options)

    def test_one_that_is_rolled_back_was_never_sent(self):
        self.waiting()
        with suppress(KeyError), transaction.atomic():
            self.send()
            raise KeyError
        self.assertEqual((self.status(), Step.objects.count()), ("blocked", 1))
        self.assertFalse(DependencyEvent.objects.exists())
        with suppress(KeyError), transaction.atomic():
            with suppress(KeyError), transaction.atomic():
                self.send()
                raise KeyError
            self.send(2)
        self.assertEqual(self.again().wait_for("approved"), 2)

    def test_a_conflict_leaves_the_transaction_of_its_sender_good(self):
        self.waiting()
        self.send()
        with transaction.atomic():
            self.assertFalse(self.send(on_conflict="ignore"))
            Queue().submit("k2", "order")
        self.assertTrue(Queue()["k2"].exists())

    def test_it_is_sent_with_the_commit(self):
        self.waiting()
        with transaction.atomic():
            self.send()
            self.assertEqual(elsewhere(self.status), "blocked")
        self.assertEqual(self.status(), "waiting")

    @skipUnlessDBFeature("has_select_for_update")
    def test_the_task_begins_to_wait_before_the_commit_of_the_sender(self):
        task = self.take()
        with transaction.atomic():
            self.send()
            elsewhere(lambda: self.wait(task))
            self.assertEqual(elsewhere(self.status), "blocked")
        self.assertEqual(self.status(), "waiting")

    @skipUnlessDBFeature("has_select_for_update")
    def test_the_task_begins_to_wait_after_the_commit_of_the_sender(self):
        """Who sends acts on its event before the ticket is blocked: that of the wait is left."""
        task, real = self.take(), settle.open_wait

        def late(*arguments):
            real(*arguments)
            elsewhere(self.send)

        with mock.patch.object(settle, "open_wait", late):
            self.wait(task)
        self.assertEqual(self.status(), "waiting")
        self.assertFalse(DependencyEvent.objects.exists())

    @skipUnlessDBFeature("has_select_for_update")
    def test_nothing_that_runs_a_task_waits_for_the_sender(self):
        task = self.take()
        with transaction.atomic():
            self.send()
            elsewhere(task.heartbeat)
            elsewhere(lambda: task.step("a", int))
            elsewhere(task.finish)

    @skipUnlessDBFeature("has_select_for_update")
    def test_a_timeout_that_is_written_before_the_signal_is_committed(self):
        self.wait(self.take(), timeout=60)
        task, real = self.again(HOUR), steps.keep

        def late(*arguments, **options):
            elsewhere(self.send)
            real(*arguments, **options)

        with mock.patch.object(steps, "keep", late):
            self.assertIsNone(task.wait_for("approved", 60))
        task.retry(0)
        self.assertIsNone(self.again(2 * HOUR).wait_for("approved", 60))

    @skipUnlessDBFeature("has_select_for_update")
    def test_the_second_of_two_at_once_waits_for_the_first(self):
        self.waiting()
        sent = []
        with suppress(KeyError), transaction.atomic():
            self.send(1)
            undone = Thread(target=lambda: sent.append(self.send_apart(2)))
            undone.start()
            raise KeyError
        undone.join()
        with transaction.atomic():
            self.assertFalse(self.send(3, on_conflict="ignore"))
        self.assertEqual((sent, self.signals()), ([True], ["2"]))
        Step.objects.filter(kind=KINDS.SIGNAL).delete()
        with transaction.atomic():
            self.send(4)
            late = Thread(target=lambda: sent.append(self.send_apart(5)))
            late.start()
        late.join()
        self.assertEqual((sent, self.signals()), ([True, False], ["4"]))

    def send_apart(self, data):
        """Send one in a thread, and close its connection."""
        try:
            return self.send(data, on_conflict="ignore")
        finally:
            connection.close()

    def signals(self):
        rows = Step.objects.filter(kind=KINDS.SIGNAL)
        return list(rows.values_list("result_text", flat=True))

    def test_eager_with_real_commits(self):
        with eager():
            handle = Queue().submit("k1", "waits.in-a-loop")
            with transaction.atomic():
                handle.signal("approved", 1)
                self.assertEqual(self.status(), "blocked")
            self.assertEqual(self.status(), "scheduled")

    def test_a_commit_without_an_answer_is_no_conflict(self):
        self.waiting()
        tries = [1]
        self.send()
        handle = Queue()["k1"]
        again = steps.signal.__wrapped__
        self.assertTrue(again(tries, handle.id, "approved", "1", using="default"))
        self.assertFalse(again(tries, handle.id, "approved", "2", using="default"))
