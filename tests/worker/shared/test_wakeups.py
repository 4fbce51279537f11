import os
import threading
import time
from dataclasses import replace
from unittest import mock

from django.core.management.color import no_style
from django.test import SimpleTestCase

from django_perfectqueue import conf, store
from django_perfectqueue.application import Dispatch
from django_perfectqueue.worker.plan import Plan
from django_perfectqueue.worker.process.signals import Wakeup
from django_perfectqueue.worker.processor import feeder, leases
from django_perfectqueue.worker.processor.leases import Parking, ProcessorResources
from django_perfectqueue.worker.processor.processor import Processor
from django_perfectqueue.worker.report import Reporter
from django_perfectqueue.worker.shared import status as wakeups
from django_perfectqueue.worker.shared.status import ProcessorStatus, Wakeups
from tests.factories import lease


class WakeupsCase(SimpleTestCase):
    def setUp(self):
        self.statuses = [ProcessorStatus.shared() for _number in range(3)]
        self.bells = [Wakeup() for _number in range(3)]
        self.wakeups = Wakeups(list(zip(self.statuses, self.bells, strict=True)))

    def rung(self):
        return [number for number, wakeup in enumerate(self.bells) if wakeup.wait(0)]


class WakeTests(WakeupsCase):
    def test_one_ring_wakes_one(self):
        for status in self.statuses[1:]:
            status.seek()
        self.assertTrue(self.wakeups.wake_one())
        self.assertEqual(self.rung(), [1])

    def test_the_next_ring_wakes_the_next(self):
        for status in self.statuses:
            status.seek()
        self.assertEqual([self.wakeups.wake_one() for _ring in range(4)], [True] * 3 + [False])
        self.assertEqual(self.rung(), [0, 1, 2])

    def test_who_is_busy_or_not_there_is_not_rung(self):
        self.assertFalse(self.wakeups.has_free())
        self.statuses[0].seek()
        self.statuses[0].seeking = False
        self.assertFalse(self.wakeups.wake_one())
        self.statuses[0].seek()
        self.assertTrue(self.wakeups.has_free())
        self.statuses[0].sign_on()
        self.assertFalse(self.wakeups.wake_one())
        self.assertEqual(self.rung(), [])

    def test_who_looks_again_can_be_rung_again(self):
        self.statuses[0].seek()
        self.wakeups.wake_one()
        self.statuses[0].seek()
        self.assertTrue(self.wakeups.wake_one())

    def test_kept_ones_try_the_unmeasured_seldom_and_while_all_others_are_busy(self):
        kept = Wakeups(list(zip(self.statuses, self.bells, strict=True)), 1.0)
        self.statuses[2].kept = True
        self.statuses[2].seek()
        self.assertEqual(kept.free_costs(), (0.0, 1.0))
        for status in self.statuses[:2]:
            status.begin(7, since=1.0)
        self.assertEqual(kept.free_costs(), (-1.0, 1.0))
        kept.tried(0.9)
        self.assertEqual(kept.free_costs(), (-1.0, 1.0))
        kept.tried(1.0)
        self.assertEqual(kept.free_costs(), (0.0, 1.0))
        self.statuses[0].seek()
        self.assertIsNone(kept.free_costs())

    def test_counts_and_flags_do_not_share_a_place(self):
        status = self.statuses[0]
        status.seek()
        status.rung = True
        for word in status.totals():
            status.count(word)
        status.begin(7, since=1.0)
        self.assertTrue(status.rung)
        self.assertEqual(set(status.totals().values()), {1})
        self.assertFalse(status.signed_off)

    def test_it_is_tended_for_a_while(self):
        self.assertFalse(self.wakeups.has_listener())
        self.wakeups.note_listener()
        self.assertTrue(self.wakeups.has_listener())
        with mock.patch.object(wakeups, "LISTENED_FOR", 0.0):
            self.wakeups.note_listener()
            self.assertFalse(self.wakeups.has_listener())


def held(*, capped=False):
    return mock.Mock(capped=capped)


class ProcessorTests(WakeupsCase):
    """A processor in the first place; the others are free."""

    def setUp(self):
        super().setUp()
        for status in self.statuses[1:]:
            status.seek()
        parent_alive, pulse = os.pipe()
        self.addCleanup(os.close, parent_alive)
        self.addCleanup(os.close, pulse)
        plan = Plan(
            dispatch=Dispatch,
            queues=("default",),
            using="default",
            options=conf.options().replace(POLL_INTERVAL=60.0),
        )
        self.statuses[0].holder = 1
        resources = ProcessorResources(
            status=self.statuses[0],
            wakeup=self.bells[0],
            heartbeat_w=pulse,
            parent_alive=parent_alive,
            wakeups=self.wakeups,
        )
        self.processor = Processor(plan, resources, Reporter(lambda text: None, no_style(), 0))
        self.feeder = self.processor.feeder
        self.answers = []
        self.feeder.link = mock.Mock(call=lambda verb: verb(), away_since=0.0)
        self.feeder.acquire = self.acquire
        self.feeder.parking.sort = lambda taken: taken
        self.processor.executor.hand_out = self.processor.hand.batch.clear
        self.feeder.requested = 2

    def acquire(self):
        if not self.answers:
            self.processor.stop()
            return []
        return self.answers.pop(0)()

    def work(self, *answers):
        self.answers = list(answers)
        self.feeder.feed()
        self.assertEqual(self.answers, [])

    def test_a_ring_while_it_looks_in_vain_has_it_look_again(self):
        """
        What was committed after it looked must not wait for the next poll.
        """

        def in_vain():
            self.assertTrue(self.statuses[0].is_free)
            self.wakeups.wake_one()
            return []

        self.work(in_vain)
        self.assertEqual(self.rung(), [0])

    def test_a_ring_while_it_finds_something_else_is_passed_on(self):
        def found():
            self.wakeups.wake_one()
            return [held()]

        self.work(found)
        self.assertIn(1, self.rung())

    def test_who_got_all_it_asked_for_wakes_one_more(self):
        self.work(lambda: [held()] * 2)
        self.assertEqual([number for number in self.rung() if number], [1])

    def test_who_got_less_wakes_no_one(self):
        self.work(lambda: [held()])
        self.assertEqual([number for number in self.rung() if number], [])

    def test_who_was_given_a_part_of_what_has_a_cap_wakes_one_more(self):
        self.work(lambda: [held(capped=True)])
        self.assertEqual([number for number in self.rung() if number], [1])

    def test_a_stop_that_comes_before_it_looks_is_not_slept_through(self):
        self.processor.stop()
        self.processor.stopping = False

        def reported():
            self.processor.stopping = True
            return []

        self.wakeups.note_listener()
        self.work(reported)

    def stand_back(self):
        """Have it take one task of a type that nobody knows."""
        self.feeder.parking.strange.clear()
        return Parking.sort(self.feeder.parking, [lease(type="strange")])

    def park_all(self):
        self.feeder.parking.sort = lambda taken: self.stand_back()
        self.feeder.parking.park = self.feeder.parking.strange.clear

    @mock.patch.object(leases, "STAND_BACK", 60.0)
    def test_a_stop_is_heard_while_it_stands_back(self):
        self.park_all()
        stop = threading.Timer(0.1, self.processor.stop)
        began = time.monotonic()
        self.answers = [lambda: stop.start() or [held()]]
        self.feeder.feed()
        self.assertLess(time.monotonic() - began, 30.0)
        self.assertTrue(self.processor.stopping)

    def test_it_takes_none_while_it_stands_back(self):
        self.park_all()
        moments = []

        def taken():
            moments.append(time.monotonic())
            return [held()]

        self.work(taken, taken)
        self.assertGreaterEqual(moments[1] - moments[0], leases.STAND_BACK)

    @mock.patch.object(leases, "STAND_BACK", 60.0)
    def test_one_that_runs_several_goes_on_with_these_while_it_stands_back(self):
        plan = replace(self.processor.plan, options=conf.options().replace(PROCESSOR_TYPE="thread"))
        self.processor = Processor(plan, self.processor.resources, self.processor.reporter)
        self.feeder = self.processor.feeder
        self.assertTrue(self.processor.has_to_act())
        self.stand_back()
        self.assertFalse(self.processor.has_to_act())
        self.feeder.parking.take_at = time.monotonic() + 1.0
        self.assertLessEqual(self.feeder.pause(time.monotonic()), 1.0)
        self.feeder.parking.take_at = time.monotonic()
        self.assertTrue(self.processor.has_to_act())

    def test_without_anyone_to_ring_it_polls(self):
        self.processor.more, self.feeder.poll_at = False, time.monotonic() + 0.01
        self.feeder.wait()
        self.assertTrue(self.processor.more)

    def test_with_someone_to_ring_it_looks_only_now_and_then(self):
        looks = []

        def look():
            looks.append(1)
            return store.Outlook(due=len(looks) == 2, wait=None)

        self.feeder.look = look
        self.processor.more = False
        self.wakeups.note_listener()
        with (
            mock.patch.object(feeder, "LOOK_UP_AFTER", 0.01),
            mock.patch.object(feeder, "LOOK_AFTER", 0.05),
        ):
            while not self.processor.more:
                self.feeder.wait()
        self.assertEqual(len(looks), 2)

    def test_who_was_chosen_by_one_who_died_before_ringing_looks_soon(self):
        """It is no longer free, so no one else would ring it."""
        self.processor.more = False
        self.feeder.look = mock.Mock(return_value=store.Outlook(due=True, wait=None))
        self.statuses[0].seek()
        self.statuses[0].rung = True
        self.wakeups.note_listener()
        with (
            mock.patch.object(feeder, "LOOK_UP_AFTER", 0.01),
            mock.patch.object(feeder, "LOOK_AFTER", 1.0),
        ):
            self.feeder.wait()
        self.assertTrue(self.processor.more)
        self.feeder.look.assert_not_called()


class WakeupTests(SimpleTestCase):
    def test_who_waits_is_not_woken_a_moment_too_early(self):
        """Or it would go round its loop, again and again, until that moment is over."""
        wakeup = Wakeup()
        self.addCleanup(wakeup.close)
        for seconds in (0.0004, 0.0014):
            began = time.monotonic()
            self.assertFalse(wakeup.wait(seconds))
            self.assertGreaterEqual(time.monotonic() - began, seconds)
