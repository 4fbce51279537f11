"""Lanes that sleep although tasks wait in them, and those that are kept from being served."""

from contextlib import contextmanager
from unittest import mock

from django.db import connection, transaction
from django.test import TransactionTestCase

from django_perfectqueue import store
from django_perfectqueue.fairness.shares import set_share
from django_perfectqueue.models import Lane, Ticket
from django_perfectqueue.queue import Queue
from django_perfectqueue.store.lanes import idle_marks
from django_perfectqueue.store.lanes import wake as waking
from django_perfectqueue.store.upkeep import timers
from tests.factories import acquire, submit

from ...scale.case import expect_large_tables, forget, refresh
from ...scale.meter import Meter

FEW = 100
MANY = 20 * FEW
UNIT = {"postgresql": 1, "mysql": 1, "sqlite": 25}


@contextmanager
def later(seconds):
    """Let so much time have passed for what this process remembers."""
    moment = idle_marks.time.monotonic() + seconds
    with mock.patch.object(idle_marks.time, "monotonic", return_value=moment):
        yield


class LateCommitTests(TransactionTestCase):
    """A submit has seen its lane awake, and is committed after the lane has gone to sleep."""

    def setUp(self):
        idle_marks.slept.clear()
        idle_marks.rounds.clear()
        self.addCleanup(idle_marks.rounds.clear)
        for user in ("ann", "bob"):
            submit(user=user, now=None)
        self.assertEqual(len(acquire(10, now=None)), 2)

    def commit_late(self):
        submit("late", user="ann", now=None)
        Ticket.objects.filter(task__key="late").update(alarm_at=None)
        self.assertFalse(Lane.objects.filter(awake=True).exists())

    def test_it_is_found_at_once_by_who_has_put_the_lane_to_sleep(self):
        self.commit_late()

        self.assertEqual(len(acquire(now=None)), 1)

    def test_others_find_it_within_a_minute(self):
        self.assertEqual(acquire(now=None), [])
        idle_marks.slept.clear()
        self.commit_late()

        self.assertEqual(acquire(now=None), [])
        with later(idle_marks.LATELY):
            self.assertEqual(len(acquire(now=None)), 1)

    def test_the_janitor_finds_it(self):
        idle_marks.slept.clear()
        self.commit_late()

        self.assertEqual(store.rouse(using="default"), 1)
        self.assertEqual(len(acquire(now=None)), 1)

    def test_a_task_that_is_deleted_before_its_lane_is_woken_wakes_none(self):
        def deleted(cursor, dialect, ids):
            self.assertEqual(len(ids), 1)
            Queue().clear()
            return waking.owners_of(cursor, dialect, ids)

        for wake in (lambda: store.rouse(using="default"), lambda: len(acquire(now=None))):
            self.commit_late()
            with mock.patch.object(timers, "owners_of", deleted):
                self.assertEqual(wake(), 0)
            self.assertEqual(Ticket.objects.count(), 0)

    def test_only_the_last_lanes_are_kept_and_for_a_minute(self):
        idle_marks.put_to_sleep("default", range(idle_marks.MOST + 5))
        self.assertEqual(len(idle_marks.slept_lately("default")), idle_marks.MOST)
        with later(idle_marks.LATELY + 1):
            self.assertEqual(idle_marks.slept_lately("default"), [])

    def test_the_longer_a_look_takes_the_more_seldom_it_is(self):
        rounds = idle_marks.Rounds(5.0)
        self.assertTrue(rounds.are_due())
        rounds.began(idle_marks.time.monotonic() - 1.0)
        with later(99):
            self.assertFalse(rounds.are_due())
        with later(101):
            self.assertTrue(rounds.are_due())


class HeldBackTests(TransactionTestCase):
    """However many users are kept from being served, nobody else reads past them."""

    def setUp(self):
        idle_marks.slept.clear()
        self.addCleanup(forget)

    def rows_of_an_empty_acquire(self):
        self.assertEqual(acquire(now=None), [])
        refresh()
        with transaction.atomic(), Meter().on() as meter:
            expect_large_tables()
            self.assertEqual(acquire(now=None), [])
        self.worst = meter.worst()
        return meter.rows

    def beside(self, add):
        """Return what an empty acquire reads beside few of something, and beside many."""
        add(range(FEW))
        few = self.rows_of_an_empty_acquire()
        add(range(FEW, MANY))
        return few, self.rows_of_an_empty_acquire()

    def submit(self, users, each=1):
        Queue().submit_many(
            {"key": f"{user}-{number}", "type": "report", "user": f"user{user}"}
            for number in range(each)
            for user in users
        )

    def test_an_acquire_of_nothing_reads_no_more_with_many_paused_users(self):
        set_share("*", paused=True)

        few, many = self.beside(self.submit)

        self.assertEqual(Lane.objects.filter(paused=True, awake=True).count(), MANY)
        self.assertLessEqual(many, few + FEW * UNIT[connection.vendor], self.worst)

    def test_nor_with_many_users_at_their_cap(self):
        set_share("*", max_running=1)

        def add(users):
            self.submit(users, each=2)
            while acquire(1000, now=None):
                pass

        few, many = self.beside(add)

        self.assertEqual(Lane.objects.filter(running=1, awake=True).count(), MANY)
        self.assertLessEqual(many, few + FEW * UNIT[connection.vendor], self.worst)
