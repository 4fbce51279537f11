import json
import re

from asgiref.sync import async_to_sync
from django.db import connection
from django.test import TestCase
from django.test.utils import CaptureQueriesContext
from django.utils import translation

from django_perfectqueue import store
from django_perfectqueue.exceptions import NotFoundError, SuspendedError
from django_perfectqueue.inspection import reasons, why_waiting
from django_perfectqueue.models import (
    UNSEEN,
    Account,
    FairShare,
    Limit,
    Meter,
    State,
    Step,
    Ticket,
    Worker,
)
from django_perfectqueue.queue import Queue
from django_perfectqueue.store.arithmetic.fair_order import lane_id
from django_perfectqueue.test.inline_runner import HeldTask

from ..factories import (
    NOON,
    acquire,
    after,
    fail,
    failed,
    finish,
    register,
    retry,
    running,
    submit,
    submit_many,
)


class WaitingTestCase(TestCase):
    """Asked at noon, while a worker is there that knows tasks of type report."""

    def setUp(self):
        register()

    def why(self, task, now=NOON):
        return task.why_waiting(now=now)

    def assert_why(self, task, code, sentence, now=NOON, **facts):
        reason = self.why(task, now)
        self.assertEqual((reason.code, reason.sentence, str(reason)), (code, sentence, sentence))
        for name, value in facts.items():
            self.assertEqual(getattr(reason, name), value, name)


class StateTests(WaitingTestCase):
    def test_a_task_that_has_ended(self):
        task, held = running("k1")
        finish(held)
        self.assert_why(task, "ended", "It has ended.", name="finished")
        self.assert_why(failed("k2"), "ended", "It has ended.", name="failed")

    def test_a_task_that_is_running(self):
        task, _held = running("k1", lease=60)
        sentence = "A processor has it, and renews the lease as long as it works on it."
        self.assert_why(task, "running", sentence, at=after(60), wait=60.0)

    def test_a_task_that_is_not_there(self):
        with self.assertRaises(NotFoundError):
            Queue()["nowhere"].why_waiting()

    def test_a_task_for_later(self):
        task = submit("k1", run_at=after(180))
        self.assert_why(task, "scheduled", "It is due in 3 min 0 s.", at=after(180), wait=180.0)
        register(now=after(180))
        self.assertEqual(self.why(task, after(180)).code, "position")

    def test_a_task_that_is_tried_again_later(self):
        task, held = running("k1")
        retry(held, wait=12)
        sentence = "An attempt did not finish it; it is due again in 12.0 s."
        self.assert_why(task, "retrying", sentence, wait=12.0)

    def test_a_task_whose_lease_has_run_out(self):
        task, _held = running("k1", lease=10)
        sentence = "Its lease ran out 15.0 s ago; the next free processor takes it."
        self.assert_why(task, "stalled", sentence, now=after(25), at=after(10))

    def test_a_blocked_task(self):
        task = submit("k1")
        Ticket.objects.update(state=State.BLOCKED)
        self.assert_why(task, "blocked", "It waits for other tasks.")

    def suspended(self, verb, *given):
        """A task that waits since noon."""
        task = submit("k1")
        [lease] = acquire()
        held = HeldTask(lease)
        held.moment = NOON
        with self.assertRaises(SuspendedError):
            getattr(held, verb)(*given)
        return task

    def test_a_task_that_waits_for_a_signal(self):
        task = self.suspended("wait_for", "approved")
        said = "It waits for the signal 'approved' since 2030-01-01 12:00."
        self.assert_why(task, "signal", said, name="approved", since=NOON, at=None)

    def test_a_task_that_waits_for_a_signal_until_a_time(self):
        task = self.suspended("wait_for", "approved", "2d")
        said = "It waits for the signal 'approved' since 2030-01-01 12:00, until 2030-01-03 12:00."
        self.assert_why(task, "signal", said, since=NOON, at=after(172_800), wait=172_800.0)
        facts = self.why(task).facts()
        self.assertEqual(facts["since"], NOON.isoformat())
        with translation.override("de"):
            self.assertIn("Signal 'approved'", self.why(task).sentence)
        task.signal("approved")
        store.records.follow(using="default", now=NOON)
        self.assertEqual(self.why(task).code, "position")

    def test_a_task_that_sleeps(self):
        task = self.suspended("sleep", "cooling-off", "2d")
        said = "It sleeps until 2030-01-03 12:00 (step 'cooling-off')."
        self.assert_why(task, "sleeping", said, at=after(172_800), since=NOON)
        register(now=after(172_801))
        self.assertEqual(self.why(task, after(172_801)).code, "position")

    def test_a_task_that_waits_for_others(self):
        parent, held = running("k1")
        submit("k2")
        one, two = submit("k3", after=["k1"]), submit("k4", after=["k2", "k1"])
        self.assert_why(one, "blocked", "It waits for task 'k1'.", name="k1", parents=1)
        reason = self.why(two, NOON)
        self.assertEqual((reason.code, reason.parents), ("blocked", 2))
        self.assertIn("It waits for 2 tasks, among them 'k", reason.sentence)

        store.records.follow(using="default")
        fail(held, error="ValueError")
        store.records.follow(using="default")
        sentence = (
            "It waits for task 'k1', which ended 15.0 s ago and has not finished (ValueError):"
            " retry that one, or cancel this one."
        )
        for task, count in ((one, 1), (two, 2)):
            self.assert_why(task, "parent_failed", sentence, now=after(15), parents=count, at=NOON)
        parent.retry()
        self.assert_why(one, "blocked", "It waits for task 'k1'.", name="k1")

    def test_a_callback_names_its_batch(self):
        with Queue().batch("nightly") as batch:
            batch.submit_many([{"key": key, "type": "report"} for key in ("a", "b")])
            mail = batch.then("mail", "report", when="finished")
        sentence = "It waits for batch 'nightly'; open tasks: 2."
        self.assert_why(mail, "batch_open", sentence, name="nightly", parents=2)
        for key in ("a", "b"):
            Queue()[key].cancel_request()
        store.records.follow(using="default")
        self.assert_why(
            mail,
            "batch_failed",
            "It waits for batch 'nightly'; tasks that have not finished: 2. Retry these, or"
            " cancel this one.",
            parents=2,
        )

    def test_the_servers_clock_is_read_where_no_time_is_given(self):
        task = submit("k1", now=None, run_at=60)
        self.assertEqual(task.why_waiting().code, "scheduled")
        self.assertAlmostEqual(task.why_waiting().wait, 60, delta=5)

    def test_the_async_twin(self):
        task = submit("k1")
        self.assertEqual(async_to_sync(task.awhy_waiting)(now=NOON).code, "position")


class WorkerTests(WaitingTestCase):
    def test_its_time_has_passed(self):
        task = submit(expires_at=after(60))
        reported = self.why(task, now=after(90))
        self.assertEqual((reported.code, reported.wait), ("expired", -30))
        self.assertIn("It expired 30", reported.sentence)

    def test_no_worker_listens_to_its_queue(self):
        task = submit("k1", queue="reports")
        sentence = "No worker serves queue 'reports'."
        self.assert_why(task, "no_worker", sentence, name="reports")
        register("other", "reports")
        self.assertEqual(self.why(task).code, "position")

    def test_no_worker_listens_to_its_queue_and_it_is_not_yet_due(self):
        task = submit("k1", queue="reports", run_at=60)
        sentence = "It is due in 1 min 0 s. No worker serves queue 'reports'."
        self.assert_why(task, "scheduled", sentence, name="reports")
        register("reports")
        self.assert_why(task, "scheduled", "It is due in 1 min 0 s.", name="")

    def test_the_workers_of_its_queue_are_drained(self):
        due, later = submit("k1"), submit("k2", run_at=60)
        ids = list(Worker.objects.values_list("pk", flat=True))
        store.records.drain(ids, True, using="default")
        sentence = "Its queue's workers are drained: see pq_status workers --undrain."
        self.assert_why(due, "drained", sentence, name="default")
        said = f"It is due in 1 min 0 s. {sentence}"
        self.assert_why(later, "scheduled", said, name="default", unserved="drained")
        self.assertEqual(self.why(due, NOON + UNSEEN).code, "no_worker")
        register()
        self.assertEqual(self.why(due).code, "position")
        self.assert_why(later, "scheduled", "It is due in 1 min 0 s.", name="")

    def test_a_worker_that_is_gone_listens_no_more(self):
        task = submit("k1")
        self.assertEqual(self.why(task, NOON + UNSEEN).code, "no_worker")

    def test_one_that_has_signed_off_does_not_either(self):
        task = submit("k1", queue="reports")
        store.records.sign_off(register("reports").id, using="default")
        self.assertEqual(self.why(task).code, "no_worker")

    def test_one_that_is_leaving_does_not_either(self):
        task = submit("k1", queue="reports")
        register("reports", leaving=True)
        self.assertEqual(self.why(task).code, "no_worker")

    def test_it_comes_before_caps_but_not_before_its_time(self):
        FairShare.objects.create(user="ann", paused=True)
        task = submit("k1", queue="reports", user="ann")
        self.assertEqual(self.why(task).code, "no_worker")
        later = submit("k2", queue="reports", run_at=after(60))
        self.assertEqual(self.why(later).code, "scheduled")

    def test_no_worker_of_its_queue_knows_its_type(self):
        register("other", types=["import.v2"])
        task = submit("k1", type="import.v2")
        sentence = "No worker that serves its queue knows the type 'import.v2'."
        self.assert_why(task, "unknown_type", sentence, name="import.v2")
        register(types=["import.v2"])
        self.assertEqual(self.why(task).code, "position")

    def test_a_type_is_known_by_a_pattern_with_its_flags(self):
        pattern = re.compile(r"^IMPORT\.v\d$", re.I)
        register(patterns=[[pattern.pattern, pattern.flags]])
        self.assertEqual(self.why(submit("k1", type="import.v2")).code, "position")
        self.assertEqual(self.why(submit("k2", type="import.v")).code, "unknown_type")

    def test_it_is_not_claimed_where_a_worker_decides_by_itself(self):
        register(routes="null")
        self.assertEqual(self.why(submit("k1", type="anything")).code, "position")

    def test_nor_where_a_pattern_can_not_be_read(self):
        register(patterns=[["(?<new-syntax>", 0]])
        self.assertEqual(self.why(submit("k1", type="anything")).code, "position")

    def test_what_was_given_back_for_its_type_says_so_before_it_is_due(self):
        task, held = running("k1", type="import.v2")
        store.settle([held], store.Ending.release(30), using="default", now=NOON)
        self.assertEqual(self.why(task).code, "unknown_type")
        register(types=["import.v2"])
        self.assertEqual(self.why(task).code, "scheduled")


class UserTests(WaitingTestCase):
    def test_a_paused_user(self):
        FairShare.objects.create(user="ann", paused=True)
        task = submit("k1", user="ann")
        self.assertEqual(acquire(), [])
        FairShare.objects.all().delete()
        self.assert_why(task, "user_paused", "Its user is paused.", name="ann")

    def test_a_user_at_its_cap(self):
        FairShare.objects.create(user="ann", max_running=2)
        for key in ("k1", "k2"):
            running(key, user="ann")
        sentence = "Its user has 2 running, of 2 at most."
        task = submit("k3", user="ann")
        self.assert_why(task, "user_cap", sentence, name="ann", running=2, most=2)

    def test_a_user_whose_lane_has_yet_to_be_made(self):
        FairShare.objects.create(user="ann", paused=True)
        FairShare.objects.create(user="bob", max_running=0)
        FairShare.objects.create(user="bob", queue="other", paused=True)
        FairShare.objects.create(user="carl", paused=True)
        FairShare.objects.create(user="carl", queue="default")
        codes = [self.why(submit(user=user)).code for user in ("ann", "bob", "carl")]
        self.assertFalse(Account.objects.exists())
        self.assertEqual(codes, ["user_paused", "user_cap", "position"])


class LimitTests(WaitingTestCase):
    """A task that lists a limit, and has those of its queue, type and user."""

    def setUp(self):
        super().setUp()
        self.task = submit("k1", user="ann", limits=["smtp"])

    def test_limits_that_let_it_pass(self):
        Limit.objects.create(name="smtp", max_running=2, rate=10, period=60)
        Limit.objects.create(name="other", paused=True)
        Limit.objects.create(scope="type", name="smtp", paused=True)
        Meter.objects.create(key="name:smtp", running=1, next_at=NOON)
        self.assertEqual(self.why(self.task).code, "position")

    def test_a_limit_that_is_full(self):
        Limit.objects.create(name="smtp", max_running=2)
        Meter.objects.create(key="name:smtp", running=2)
        sentence = "Limit 'smtp' lets 2 tasks run at once, and 2 run."
        self.assert_why(self.task, "limit_cap", sentence, name="smtp", running=2, most=2)

    def test_a_limit_of_none(self):
        Limit.objects.create(name="smtp", max_running=0)
        self.assert_why(
            self.task, "limit_cap", "Limit 'smtp' lets 0 tasks run at once, and 0 run.", running=0
        )

    def test_a_rate(self):
        """
        Ten a minute, one at once: they come every six seconds.
        """
        Limit.objects.create(name="smtp", rate=10, period=60, burst=1)
        Meter.objects.create(key="name:smtp", next_at=after(4))
        sentence = "Limit 'smtp' lets 10/min start, the next one in 4.0 s."
        facts = {"name": "smtp", "rate": 10, "period": 60.0, "wait": 4.0, "at": after(4)}
        self.assert_why(self.task, "limit_rate", sentence, **facts)
        self.assertEqual(self.why(self.task, after(4)).code, "position")

    def test_a_rate_lets_a_burst_pass(self):
        Limit.objects.create(name="smtp", rate=10, period=60, burst=3)
        Meter.objects.create(key="name:smtp", next_at=after(12))
        self.assertEqual(self.why(self.task).code, "position")
        Meter.objects.update(next_at=after(13))
        self.assertEqual(self.why(self.task).wait, 1.0)

    def test_a_paused_limit(self):
        Limit.objects.create(name="smtp", paused=True)
        self.assert_why(self.task, "limit_paused", "Limit 'smtp' is paused.", name="smtp")

    def test_a_paused_queue(self):
        Limit.objects.create(scope="queue", name="default", paused=True)
        self.assert_why(self.task, "queue_paused", "Queue 'default' is paused.", name="default")

    def test_the_limit_of_a_whole_queue_is_reported_with_its_scope(self):
        Limit.objects.create(scope="queue", name="default", max_running=1)
        Meter.objects.create(key="queue:default", running=1)
        sentence = "Limit 'queue:default' lets 1 tasks run at once, and 1 run."
        self.assert_why(self.task, "limit_cap", sentence)

    def test_a_pause_is_reported_before_a_cap_and_a_cap_before_a_rate(self):
        Limit.objects.create(name="smtp", max_running=0)
        Limit.objects.create(scope="queue", name="default", rate=1, period=9)
        Meter.objects.create(key="queue:default", next_at=after(5))
        self.assertEqual(self.why(self.task).code, "limit_cap")
        Limit.objects.filter(scope="queue").update(paused=True)
        self.assertEqual(self.why(self.task).code, "queue_paused")

    def test_of_two_rates_the_longer_wait_is_reported(self):
        for scope, name, wait in (("queue", "default", 5), ("name", "smtp", 7)):
            limit = Limit.objects.create(scope=scope, name=name, rate=1, period=9)
            Meter.objects.create(key=limit.key, next_at=after(wait))
        self.assertEqual(self.why(self.task).wait, 7.0)

    def test_those_of_its_type_and_its_user_hold_it_back(self):
        for scope, name in (("type", "report"), ("user", "ann")):
            limit = Limit.objects.create(scope=scope, name=name, paused=True)
            self.assertEqual(self.why(self.task).name, limit.key)
            limit.delete()

    def test_what_a_slower_rate_has_left_holds_nothing_back(self):
        Limit.objects.create(name="smtp", rate=10, period=60, burst=1)
        Meter.objects.create(key="name:smtp", next_at=after(500))
        self.assertEqual(self.why(self.task).code, "position")

    def test_its_users_pause_comes_first(self):
        Limit.objects.create(name="smtp", paused=True)
        FairShare.objects.create(user="ann", paused=True)
        self.assertEqual(self.why(self.task).code, "user_paused")


class PlaceTests(WaitingTestCase):
    def test_a_place_in_its_users_line(self):
        first = submit("k1", user="ann")
        second = submit("k2", user="ann", now=after(1))
        urgent = submit("k3", user="ann", priority=1, now=after(2))
        submit("k4", user="bob")
        places = [self.why(task, after(2)).position for task in (urgent, first, second)]
        self.assertEqual(places, [1, 2, 3])

    def test_how_many_lanes_are_served_before(self):
        for user in ("ann", "bob", "carl"):
            submit(f"{user}-1", user=user)
            submit(f"{user}-2", user=user)
        acquire(3)
        for number, user in enumerate(("ann", "bob", "carl")):
            Account.objects.filter(user=user).update(virtual_time=number)
        reported = [self.why(Queue()[f"{user}-2"]) for user in ("ann", "bob", "carl")]
        self.assertEqual([reason.lanes for reason in reported], [0, 1, 2])
        self.assertEqual(
            [reason.sentence for reason in reported],
            [
                "It is number 1 in its user's line. Its lane is the next.",
                "It is number 1 in its user's line. 1 lane is served before.",
                "It is number 1 in its user's line. 2 lanes are served before.",
            ],
        )
        Account.objects.filter(user="ann").update(paused=True)
        self.assertEqual(self.why(Queue()["carl-2"]).lanes, 1)

    def test_the_next_one_waits_for_the_next_step_of_a_long_task(self):
        long = submit("long", user="ann")
        submit("first", user="bob")
        waits = submit("short", user="bob")
        acquire(2)
        Account.objects.filter(user="ann").update(virtual_time=9.0)
        self.assertEqual(self.why(waits).code, "position")
        step = {"name": "one", "result_text": "1", "kept_at": NOON}
        Step.objects.create(task_id=long.metadata().pk, **step)
        sentence = "It waits for a long task of user 'ann' to reach its next step."
        self.assert_why(waits, "next_step", sentence, name="ann", position=1, lanes=0)
        self.assertEqual(self.why(submit("more", user="ann")).code, "position")

    def test_a_lane_that_has_yet_to_be_made_has_no_turn(self):
        sentence = "It is number 1 in its user's line."
        self.assert_why(submit("k1"), "position", sentence, position=1, lanes=None)

    def test_a_lane_that_nobody_has_woken_says_so_until_a_worker_does(self):
        first = submit("k1", user="ann")
        [held] = acquire()
        finish(held)
        Account.objects.update(has_waiting=False)
        # Woken after the commit, which does not come here; as where the program dies then.
        task = submit("k2", user="ann")
        sentence = (
            "Its lane is asleep: the program that submitted the task did not wake it. A worker "
            "does so within seconds."
        )
        self.assert_why(task, "lane_asleep", sentence, name="ann")
        acquire()
        self.assertEqual(self.why(task).code, "running")
        self.assertEqual(self.why(first).code, "ended")

    def test_it_is_counted_up_to_a_thousand(self):
        submit_many(why_waiting.COUNTED - 1)
        last = submit("k1", now=after(1))
        self.assertEqual(self.why(last, after(2)).position, why_waiting.COUNTED)
        self.assertIn("It is number 1,000 in", self.why(last, after(2)).sentence)
        submit_many(2)
        sentence = "More than 1,000 tasks are before it in its user's line."
        self.assert_why(last, "position", sentence, now=after(2), position=why_waiting.COUNTED + 1)

    def test_lanes_are_counted_up_to_a_thousand(self):
        Account.objects.bulk_create(
            Account(id=2 * number, queue="default", user=f"user-{number}")
            for number in range(why_waiting.COUNTED + 1)
        )
        task = submit("k1", user="ann")
        own = lane_id("default", "ann")
        Account.objects.create(id=own, queue="default", user="ann", virtual_time=9)
        reason = self.why(task)
        self.assertEqual(reason.lanes, why_waiting.COUNTED + 1)
        self.assertIn("More than 1,000 lanes are served before.", reason.sentence)


class ReasonTests(WaitingTestCase):
    def test_it_can_be_reported_to_programs(self):
        facts = self.why(submit("k1", run_at=after(90))).facts()
        self.assertEqual(
            json.loads(json.dumps(facts)),
            {
                "code": "scheduled",
                "sentence": "It is due in 1 min 30 s.",
                "at": after(90).isoformat(),
                "wait": 90.0,
            },
        )

    def test_every_code_but_the_place_has_its_sentence(self):
        unsaid = {code for code in reasons.Code if not str(code.label).endswith(".")}
        self.assertEqual(unsaid, {reasons.Code.POSITION})

    def test_it_speaks_the_language_of_the_one_who_asks(self):
        reason = self.why(submit("k1", queue="reports"))
        with translation.override("de"):
            self.assertEqual(reason.sentence, "Kein Worker bedient die Warteschlange 'reports'.")

    def test_a_look_costs_few_statements(self):
        submit("k1", user="ann")
        task = submit("k2", user="ann")
        acquire()
        with CaptureQueriesContext(connection) as captured:
            self.why(task)
        self.assertLessEqual(len(captured), 8)
