"""Two verbs at once, in the one order in which they used to go wrong."""

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import timedelta
from threading import Event
from unittest import mock

from django.db import OperationalError, connection, transaction
from django.test import TransactionTestCase, skipIfDBFeature, skipUnlessDBFeature
from django.utils import timezone

from django_perfectqueue import store
from django_perfectqueue.exceptions import AlreadyExistsError
from django_perfectqueue.models import Account, FairShare, Task, Ticket
from django_perfectqueue.queue import Queue
from django_perfectqueue.store.arithmetic.fair_order import lane_id
from django_perfectqueue.store.notify import ring

from ...factories import (
    acquire,
    after,
    after_statement,
    assert_books_balance,
    failed,
    keys,
    running,
    submit,
    submit_many,
)


@skipUnlessDBFeature("has_select_for_update_skip_locked")
class ClearTests(TransactionTestCase):
    def test_what_is_taken_while_a_queue_is_cleared_stays_in_the_books(self):
        """A lane that counts too few lets a user exceed its cap from then on."""
        running("k1", user="ann")

        def go_on():
            submit("k2", user="ann")
            self.assertEqual(keys(acquire(5)), ["k2"])

        # It looks once for the first ones, and last behind those that it deleted.
        with after_statement('SELECT "perfectqueue_task"."id"', go_on, number=2):
            Queue().clear()

        self.assertEqual(Account.objects.get().running, 1)
        assert_books_balance(self)

    def test_what_is_taken_before_the_last_look_is_cleared_too(self):
        running("k1", user="ann")

        def go_on():
            submit("k2", user="ann")
            self.assertEqual(keys(acquire(5)), ["k2"])

        with after_statement('SELECT "perfectqueue_task"."id"', go_on):
            self.assertEqual(Queue().clear(), 2)

        self.assertFalse(Ticket.objects.exists())
        assert_books_balance(self)

    def test_a_task_put_back_meanwhile_leaves_no_ticket_without_a_task(self):
        task = failed("k1")

        with after_statement('"perfectqueue_ticket"', task.retry):
            Queue().clear()

        self.assertFalse(Ticket.objects.exists())
        self.assertFalse(Task.objects.exists())


@skipUnlessDBFeature("has_select_for_update_skip_locked")
class LockOrderTests(TransactionTestCase):
    def test_lanes_are_woken_and_charged_in_one_order(self):
        """One user's lost task fails, another's goes back in its line."""
        low, high = sorted(("ann", "bob"), key=lambda user: lane_id("default", user))
        running("fails", user=low)
        running("goes-back", user=high)
        Ticket.objects.filter(task__user=low).update(crashes=4)

        with ThreadPoolExecutor(1) as pool:
            ready = Event()
            other = pool.submit(lock_in_order, [low, high], ready)
            ready.wait(timeout=10)
            with transaction.atomic():
                store.schedules.fire_due_timers(using="default", now=after(60))
            other.result(timeout=20)

        assert_books_balance(self)


def lock_in_order(users, ready):
    try:
        with transaction.atomic():
            for user in users:
                Account.objects.select_for_update().get(user=user)
                ready.set()
                time.sleep(0.5)
    finally:
        connection.close()


@skipUnlessDBFeature("has_select_for_update_skip_locked")
class ShareTests(TransactionTestCase):
    def test_a_cap_that_is_set_while_the_lane_is_made_holds(self):
        """Whoever makes the lane has read the shares as they were."""
        running("first", user="bob")
        with mock.patch.object(ring.PendingNotification, "__call__"):
            submit("k1", user="ann")

        with ThreadPoolExecutor(1) as pool:
            with transaction.atomic():
                store.upkeep.wake_forgotten_lanes(using="default")
                setting = pool.submit(set_cap)
                time.sleep(0.5)
            setting.result(timeout=10)

        self.assertEqual(Account.objects.get(user="ann").max_running, 1)


def set_cap():
    try:
        FairShare.objects.create(user="ann", max_running=1)
    finally:
        connection.close()


@skipUnlessDBFeature("has_select_for_update_skip_locked")
class SubmitManyTests(TransactionTestCase):
    def test_two_that_submit_the_same_keys_in_another_order_both_succeed(self):
        """An import that is run twice at once waits for itself in a ring."""
        for on_conflict in ("ignore", "raise"):
            ready = Event()
            names = [f"{on_conflict}{number}" for number in range(2)]
            with self.subTest(on_conflict), ThreadPoolExecutor(1) as pool:
                other = pool.submit(submit_backwards, names, ready)
                ready.wait(timeout=10)
                tasks = [{"key": name, "type": "report"} for name in names]
                with suppress(AlreadyExistsError):
                    Queue().submit_many(tasks, on_conflict=on_conflict)
                other.result(timeout=20)
                self.assertEqual(Task.objects.filter(key__in=names).count(), 2)


def submit_backwards(names, ready):
    try:
        with suppress(OperationalError), transaction.atomic():
            submit_many(20)
            submit(names[1])
            ready.set()
            time.sleep(0.5)
            submit(names[0])
    finally:
        connection.close()


@skipUnlessDBFeature("has_select_for_update_skip_locked")
class ReplaceTests(TransactionTestCase):
    find = 'SELECT "id" FROM "perfectqueue_task"'
    look = 'SELECT "queue", "key", "user"'

    def test_of_two_that_replace_the_same_task_the_later_stays(self):
        submit("k1", data=0)

        with after_statement(self.find, lambda: submit("k1", data=1, on_conflict="replace")):
            submit("k1", data=2, on_conflict="replace")

        self.assertEqual(Task.objects.get().data, 2)
        self.assertEqual(Ticket.objects.get().task.data, 2)

    def test_of_two_that_replace_an_ended_task_the_later_stays(self):
        failed("k1")

        with after_statement(self.look, lambda: submit("k1", data=1, on_conflict="replace")):
            submit("k1", data=2, on_conflict="replace")

        self.assertEqual(Task.objects.get().data, 2)
        self.assertEqual(Ticket.objects.get().task.data, 2)

    def test_a_task_put_back_meanwhile_is_replaced_whole(self):
        task = failed("k1")

        with after_statement(self.look, task.retry):
            submit("k1", data=2, on_conflict="replace")

        self.assertEqual(Task.objects.get().data, 2)
        self.assertEqual(Ticket.objects.get().task.data, 2)


@contextmanager
def locked_file():
    """
    Let another connection hold the lock of the file until a statement waits for it.

    What is yielded says, in the end, when it was let go.
    """
    taken, awaited, let_go = Event(), Event(), []

    def hold():
        with transaction.atomic():
            Account.objects.filter(pk=0).delete()
            taken.set()
            awaited.wait(10)
            time.sleep(0.2)
            let_go.append(timezone.now())
        connection.close()

    def watch(execute, sql, params, many, context):
        awaited.set()
        return execute(sql, params, many, context)

    with ThreadPoolExecutor(1) as pool:
        holding = pool.submit(hold)
        taken.wait(10)
        with connection.execute_wrapper(watch):
            yield let_go
        holding.result()


@skipIfDBFeature("has_select_for_update_skip_locked")
class LockedFileTests(TransactionTestCase):
    """SQLite has no clock of its own, and a file for all may be locked for longer than a lease."""

    def test_a_lease_that_is_renewed_late_holds_from_then_on(self):
        _task, held = running(now=None)
        Ticket.objects.update(timer_at=timezone.now())
        with locked_file() as let_go:
            store.leases.heartbeat([held], alive_time=90, using="default")

        [moment] = let_go
        self.assertGreaterEqual(Ticket.objects.get().timer_at, moment + timedelta(seconds=90))
