"""Each step on a task's way is signalled to those who listen, by the process that takes it."""

from contextlib import ExitStack, contextmanager

from django.core.management import call_command
from django.db import connection, transaction
from django.dispatch import Signal
from django.test import TransactionTestCase, override_settings
from django.test.utils import CaptureQueriesContext

from django_perfectqueue import signals, store
from django_perfectqueue.application import Application, Dispatch
from django_perfectqueue.conf import options
from django_perfectqueue.exceptions import CancelRequestedError, TimeLimitError
from django_perfectqueue.queue import Queue
from django_perfectqueue.store.database.transaction import shared
from django_perfectqueue.store.limits import meters
from django_perfectqueue.store.limits.meters import forget_limits
from django_perfectqueue.store.tasks.close import Loss
from django_perfectqueue.worker.helpers.reaper import Leftovers, Reaper
from django_perfectqueue.worker.plan import Plan

from .factories import acquire, after, submit
from .worker.forked import SILENT

EVERY = {
    name.removeprefix("task_"): value
    for name, value in vars(signals).items()
    if isinstance(value, Signal)
}


@contextmanager
def listening():
    """Collect the signals, as (step, key)."""
    heard = []
    with ExitStack() as stack:
        for step, signal in EVERY.items():

            def hear(sender, queue, key, type, user, task, step=step, **kwargs):
                heard.append((step, key))

            signal.connect(hear, weak=False)
            stack.callback(signal.disconnect, hear)
        yield heard


def running(key, **given):
    submit(key, **given)
    [lease] = acquire(limit=1, lease=60)
    return lease


class StepTests(TransactionTestCase):
    def setUp(self):
        stack = ExitStack()
        self.heard = stack.enter_context(listening())
        self.addCleanup(stack.close)

    def reported(self):
        """Return what has been signalled since it was last asked."""
        reported, self.heard[:] = list(self.heard), []
        return reported

    def test_a_submit_is_reported_once_it_is_committed(self):
        with transaction.atomic():
            submit("k1")
            self.assertEqual(self.reported(), [])
        self.assertEqual(self.reported(), [("submitted", "k1")])
        submit("k1", on_conflict="ignore")
        self.assertEqual(self.reported(), [])
        submit("k1", on_conflict="replace")
        self.assertEqual(self.reported(), [("submitted", "k1")])
        with transaction.atomic():
            submit("k2")
            transaction.set_rollback(True)
        self.assertEqual(self.reported(), [])

    def test_where_autocommit_is_off_nothing_is_reported_too_early(self):
        transaction.set_autocommit(False)
        try:
            submit("k1")
            transaction.rollback()
        finally:
            transaction.set_autocommit(True)
        self.assertEqual(self.reported(), [])

    def test_what_a_receiver_calls_is_no_part_of_the_call_that_it_hears_of(self):
        """
        It would find notes of that one's tries, and wait for the database by its rules.
        """
        seen = []

        def look(**kwargs):
            seen.append(shared.get())

        signals.task_submitted.connect(look)
        self.addCleanup(signals.task_submitted.disconnect, look)
        with store.database.single_operation():
            submit("k1")
            self.assertIsNotNone(shared.get())
        self.assertEqual(seen, [None])

    def test_of_many_each_is_reported_that_was_stored(self):
        submit("k2")
        self.reported()
        tasks = [{"key": f"k{number}", "type": "report"} for number in (1, 2, 3)]
        Queue().submit_many(tasks, on_conflict="ignore")
        self.assertEqual(self.reported(), [("submitted", "k1"), ("submitted", "k3")])

    def test_what_people_do_is_reported_where_they_do_it(self):
        for key in ("k1", "k2"):
            submit(key, now=None)
        self.reported()
        call_command("pq_task", "cancel", "k1", verbosity=0)
        self.assertEqual(self.reported(), [("cancelled", "k1")])
        Queue()["k1"].retry()
        self.assertEqual(self.reported(), [("put_back", "k1")])
        Queue()["k2"].force_finish()
        self.assertEqual(self.reported(), [("finished", "k2")])

    def test_what_comes_too_late_is_reported_as_expired(self):
        submit("late", expires_at=5)
        self.reported()
        acquire(now=after(6))
        self.assertEqual(self.reported(), [("expired", "late")])

    def test_what_was_lost_is_reported_with_what_comes_of_it(self):
        lease = running("k1")
        self.reported()
        acquire(0, now=after(61))
        store.schedules.fire_due_timers(using="default", now=after(61))
        self.assertEqual(self.reported(), [("lost", "k1")])

        [lease] = acquire(now=after(61))
        with override_settings(PERFECTQUEUE={"MAX_CRASHES": 2}):
            self.give_back(lease, crashed=[lease.task_id])
        self.assertEqual(self.reported(), [("lost", "k1"), ("failed", "k1")])

    def test_what_is_to_be_cancelled_is_reported_so_however_it_comes_back(self):
        for key, crashed in (("k1", True), ("k2", False)):
            lease = running(key)
            Queue()[key].cancel_request()
            self.reported()
            self.give_back(lease, crashed=[lease.task_id] if crashed else ())
            self.assertEqual(
                self.reported(),
                [("lost", key), ("cancelled", key)] if crashed else [("cancelled", key)],
            )

    def give_back(self, lease, crashed):
        loss = Loss(why=store.Failure(error="lost"), crashed=crashed)
        terms = {"alive_time": 60, "using": "default", "now": after(62)}
        store.upkeep.give_back(lease.holder, loss=loss, **terms)

    def test_a_receiver_that_raises_disturbs_nobody(self):
        """
        Not even one that would end the process.
        """

        def stumble(**kwargs):
            raise (kwargs["type"] == "exit" and SystemExit()) or ValueError("not my day")

        signals.task_submitted.connect(stumble)
        self.addCleanup(signals.task_submitted.disconnect, stumble)
        with self.assertLogs("django.dispatch", "ERROR"):
            submit("k1")
        with self.assertLogs("django_perfectqueue.signals", "ERROR"):
            submit("k2", type="exit")
        self.assertEqual(len(Queue()), 2)

    def test_what_is_ended_by_force_is_reported_by_who_buries_it(self):
        noted = {}

        class Report(Application):
            max_attempts = 1
            discard_on = ()

            def for_backoff(self, error):
                noted[self.task.key] = type(error)
                return super().for_backoff(error)

        class Dropped(Report):
            discard_on = TimeLimitError

        class Again(Report):
            max_attempts = 2

        for type_ in ("report", "dropped", "again", "unwanted"):
            submit(type_, type=type_, now=None)
        taken = acquire(4, lease=300, holder=7, now=None)
        Queue()["unwanted"].cancel_request()
        routes = {"report": Report, "dropped": Dropped, "again": Again, "unwanted": Report}
        self.reported()
        reaper = self.reaper(routes, {lease.task_id: 60.0 for lease in taken})
        with self.assertLogs("django_perfectqueue.supervisor", "ERROR"):
            reaper.work()
        self.assertEqual(
            sorted(self.reported()),
            [
                ("cancelled", "unwanted"),
                ("discarded", "dropped"),
                ("failed", "report"),
                ("retried", "again"),
            ],
        )
        self.assertEqual(Queue()["dropped"].metadata().dead_letter.group, "discarded")
        kinds = dict.fromkeys(routes, TimeLimitError) | {"unwanted": CancelRequestedError}
        self.assertEqual(noted, kinds)

    def reaper(self, routes, overdue):
        leftovers = Leftovers(
            holder=7, loss=Loss(worker="host:1", why=store.Failure()), overdue=overdue
        )
        plan = Plan(
            dispatch=type("Routes", (Dispatch,), {"routes": routes}),
            queues=("default",),
            using="default",
            options=options().replace(TIME_LIMIT=60.0),
        )
        reaper = Reaper(plan, leftovers, SILENT)
        self.addCleanup(reaper.wakeup.close)
        return reaper


class CostTests(TransactionTestCase):
    def steps(self, number):
        """Take the way with most signals; return how many statements that took."""
        # Limits are asked for anew now and then, which may be now.
        forget_limits("default")
        meters.known_limits([], using="default")
        with CaptureQueriesContext(connection) as queries:
            submit(f"a{number}")
            submit(f"b{number}", expires_at=5)
            acquire(now=after(6))
            acquire(now=after(7))
            store.schedules.fire_due_timers(using="default", now=after(100))
            Queue()[f"a{number}"].cancel_request(now=after(101))
        return len(queries)

    def test_who_is_not_there_costs_no_statement(self):
        """
        Handlers of Django's tasks listen for their own; that must cost the others nothing.
        """

        def tell(**kwargs):
            raise AssertionError("reported")

        for number in (4, 0):  # A connection that submits again prepares its statements.
            self.steps(number)
        alone = self.steps(1)
        for signal in EVERY.values():
            signal.connect(tell, sender=Application)
            self.addCleanup(signal.disconnect, tell, sender=Application)
        self.assertEqual(self.steps(2), alone)
        with listening() as heard:
            self.assertGreater(self.steps(3), alone)
        self.assertIn(("lost", "a3"), heard)
