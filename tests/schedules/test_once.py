"""Each tick becomes a task once, whatever dies and however many processes look."""

import threading
from datetime import timedelta
from unittest import mock

from django.db import OperationalError, connection, connections
from django.test import TransactionTestCase
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.django import TestCase as HypothesisTestCase

from django_perfectqueue.models import Schedule
from django_perfectqueue.schedules import schedules
from django_perfectqueue.store import schedules as fire
from django_perfectqueue.store.database.dialects import dialect_of
from django_perfectqueue.store.notify import ring

from ..deaths import run_and_die
from ..examples import examples
from ..factories import elsewhere
from .test_schedules import MINUTE, NOON, Case

SECOND = timedelta(seconds=1)


class CrashTests(TransactionTestCase):
    put, fire, ticks, setUp = Case.put, Case.fire, Case.ticks, Case.setUp

    def fire_and_die(self, where, name):
        """Fire in another process, which is killed right after it has called something."""
        run_and_die(lambda: self.fire(NOON + MINUTE), where, name)

    def test_death_just_before_the_commit_leaves_the_tick_to_others(self):
        schedule = self.put(overlap="allow")
        self.fire_and_die(fire, "write")
        self.assertEqual(self.ticks(), [])
        self.assertEqual(schedule.row().next_at, NOON + MINUTE)
        self.fire(NOON + MINUTE)
        self.assertEqual(self.ticks(), [1])

    def test_death_just_after_the_commit_leaves_nothing_to_be_done_twice(self):
        schedule = self.put(overlap="allow")
        self.fire_and_die(ring.PendingNotification, "__call__")
        self.assertEqual(self.ticks(), [1])
        self.assertEqual(schedule.row().fired, 1)
        self.fire(NOON + MINUTE)
        self.assertEqual(self.ticks(), [1])

    def test_an_answer_to_the_commit_that_is_lost_doubles_nothing(self):
        """The look is repeated, and finds the cursor where it has moved it."""
        self.put(overlap="allow")
        real, commits = connection.commit, []

        def commit():
            real()
            commits.append(True)
            if len(commits) == 1:
                connection.close()
                raise OperationalError("lost")

        lost = mock.patch.object(type(dialect_of("default")), "lost", return_value=True)
        with lost, mock.patch.object(connection, "commit", commit):
            self.fire(NOON + MINUTE)
        self.assertGreater(len(commits), 1)
        self.assertEqual(self.ticks(), [1])


class TogetherTests(TransactionTestCase):
    put, fire, ticks, setUp = Case.put, Case.fire, Case.ticks, Case.setUp

    def test_many_that_look_at_once_submit_each_tick_once(self):
        names = [f"s{number}" for number in range(20)]
        for name in names:
            self.put(name, overlap="allow", catch_up=None)
        start = threading.Barrier(4)
        errors = []

        def look():
            start.wait()
            try:
                for second in range(60, 421, 30):
                    self.fire(NOON + second * SECOND)
            except Exception as error:
                errors.append(error)
            finally:
                connections.close_all()

        threads = [threading.Thread(target=look) for _number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(errors, [])
        self.fire(NOON + 7 * MINUTE)
        for name in names:
            self.assertEqual(self.ticks(name), [1, 2, 3, 4, 5, 6, 7])
        self.assertEqual(Schedule.objects.filter(fired=7).count(), 20)

    def test_what_is_cut_short_together_is_fired_in_parts(self):
        """As where a limit of the server's is shorter than many ticks take on a busy machine."""
        for number in range(20):
            self.put(f"s{number}", overlap="allow")
        write = fire.write

        def cut_short(changes, *, using):
            if len(changes) > 3:
                raise OperationalError("terminated")
            write(changes, using=using)

        passes = mock.patch.object(type(dialect_of("default")), "passes", return_value=True)
        with passes, mock.patch.object(fire, "write", cut_short):
            self.fire(NOON + MINUTE)
        self.assertEqual(Schedule.objects.filter(fired=1).count(), 20)

    def test_of_two_puts_of_one_name_at_once_the_second_changes_the_first(self):
        if connection.vendor == "sqlite":
            self.skipTest("SQLite has one writer: the other waits.")
        real, calls = schedules.check_user, []

        def check_user(*args, **kwargs):
            calls.append(True)
            if len(calls) == 1:
                elsewhere(lambda: self.put(every=90))
            real(*args, **kwargs)

        with mock.patch.object(schedules, "check_user", check_user):
            schedule = self.put(every=60)
        self.assertEqual((schedule.row().every, len(calls)), (60, 3))

    def test_a_put_beside_a_look_loses_and_doubles_nothing(self):
        schedule = self.put(overlap="allow", catch_up=None)
        stop = threading.Event()

        def change():
            priority = 0
            while not stop.is_set():
                priority += 1
                schedule.change(priority=priority % 5, now=NOON)
            connections.close_all()

        thread = threading.Thread(target=change)
        thread.start()
        last = examples(30)
        for minute in range(1, last + 1):
            self.fire(NOON + minute * MINUTE)
        stop.set()
        thread.join()
        self.fire(NOON + last * MINUTE)
        self.assertEqual(self.ticks(), list(range(1, last + 1)))


LOOK, PAUSE, UNPAUSE, SLOWER, QUICKER, BACK = (
    "look",
    "pause",
    "unpause",
    "slower",
    "quicker",
    "back",
)
STEPS = st.lists(
    st.tuples(
        st.sampled_from([LOOK] * 6 + [PAUSE, UNPAUSE, SLOWER, QUICKER, BACK]),
        st.integers(0, 400),
    ),
    max_size=25,
)


class RandomTests(HypothesisTestCase):
    """A model beside it: from each change on, all ticks of the interval until the last look."""

    put, fire, ticks, setUp = Case.put, Case.fire, Case.ticks, Case.setUp

    @settings(max_examples=examples(60))
    @given(STEPS)
    def test_no_tick_is_lost_or_doubled(self, steps):
        schedule = self.put(every=60, overlap="allow", catch_up=None)
        clock, every, cursor, expected = 0, 60, 60, []
        for step, seconds in steps:
            clock += -seconds if step == BACK else seconds
            now = NOON + clock * SECOND
            if step in (LOOK, BACK):
                self.fire(now)
                while cursor is not None and cursor <= clock:
                    expected.append(cursor)
                    cursor += every
            elif step == PAUSE:
                schedule.pause(now=now)
                cursor = None
            elif step == UNPAUSE:
                schedule.unpause(now=now)
                cursor = (clock // every + 1) * every
            else:
                other = 90 if step == SLOWER else 30
                schedule.change(every=other, now=now)
                if other != every and cursor is not None:
                    cursor = (clock // other + 1) * other
                every = other
        # After a clock that went back, a pause and its end, a tick may come a second time: its
        # key is taken, so there is one task of it.
        found = [round(minute * 60) for minute in self.ticks()]
        self.assertEqual(found, sorted(set(expected)))
