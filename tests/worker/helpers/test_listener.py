import os
import time
from unittest import mock

from django.test import SimpleTestCase

from django_perfectqueue import store
from django_perfectqueue.application import Dispatch
from django_perfectqueue.conf import Options
from django_perfectqueue.store.notify import Notification
from django_perfectqueue.store.notify.datagrams import parsed
from django_perfectqueue.worker.helpers import listener
from django_perfectqueue.worker.helpers.listener import Listener
from django_perfectqueue.worker.plan import Plan
from django_perfectqueue.worker.process.signals import Wakeup
from django_perfectqueue.worker.shared.status import ProcessorStatus, Wakeups, WorkerStatus

IDLE = store.Outlook(due=False, wait=None)


class ListenerCase(SimpleTestCase):
    def setUp(self):
        self.status, self.wakeup = ProcessorStatus.shared(), Wakeup()
        self.status.seek()
        plan = Plan(
            dispatch=Dispatch,
            queues=("default", "mail"),
            using="default",
            options=Options().replace(POLL_INTERVAL=16.0),
        )
        wakeups = Wakeups([(self.status, self.wakeup)])
        self.listener = Listener(plan, wakeups, WorkerStatus.shared([self.status]))
        self.listener.parent_alive, hold = os.pipe()
        self.addCleanup(os.close, hold)
        self.listener.look_at = time.monotonic() + 100

    def looks(self, *outlooks):
        """Look so often; return how many seconds after each it would look again."""
        waits = []
        for outlook in outlooks:
            with mock.patch.object(store, "look", return_value=outlook):
                self.listener.look()
            waits.append(self.listener.look_at - time.monotonic())
        return waits

    def woken(self):
        return self.wakeup.wait(0)


class LeavingTests(ListenerCase):
    def test_it_ends_when_its_worker_takes_no_more_tasks(self):
        self.listener.worker_status.leaving = True
        with mock.patch.object(store.notify, "listener_of", return_value=None):
            self.listener.work()
        self.assertFalse(self.listener.stopping)


class RingTests(ListenerCase):
    def test_a_ring_for_one_of_its_queues_wakes_a_processor(self):
        self.listener.take([Notification("other")])
        self.assertFalse(self.woken())
        self.listener.take([Notification("mail")])
        self.assertTrue(self.woken())

    def test_a_ring_for_any_queue_does_too(self):
        self.listener.take([Notification("")])
        self.assertTrue(self.woken())

    def test_a_ring_for_later_is_remembered(self):
        self.listener.take([Notification("mail", 3.0)])
        self.assertFalse(self.woken())
        self.assertAlmostEqual(self.listener.look_at - time.monotonic(), 3.0, delta=0.5)
        self.listener.take([Notification("mail", 60.0)])
        self.assertAlmostEqual(self.listener.look_at - time.monotonic(), 3.0, delta=0.5)


class CallTests(ListenerCase):
    def test_only_the_holder_is_called_and_not_woken(self):
        self.status.sign_on(41)
        for holder, called in ((40, False), (41, True)):
            self.listener.take([Notification(holder=holder)])
            self.assertEqual(self.status.called, called)
        self.assertFalse(self.woken())

    def test_what_is_no_call_is_not_heard(self):
        self.assertEqual(list(parsed(["call", "call x", "call 9"])), [Notification(holder=9)])


class LookTests(ListenerCase):
    def test_it_looks_less_and_less_often_while_there_is_nothing(self):
        waits = self.looks(*[IDLE] * 7)
        for wait, longest in zip(waits, (1, 2, 4, 8, 16, 16, 16), strict=True):
            self.assertLessEqual(wait, longest)
            self.assertGreater(wait, longest * 0.7)

    def test_it_looks_less_often_at_rest_where_the_database_notifies(self):
        self.listener.notifications = mock.create_autospec(
            store.notify.ChannelListener, instance=True
        )
        self.looks(*[IDLE] * 9)
        [wait] = self.looks(IDLE)
        self.assertGreater(wait, 60.0)
        self.listener.take([Notification("mail")])
        self.assertLessEqual(self.listener.look_at - time.monotonic(), 16.0)
        with mock.patch.object(Wakeups, "is_at_work", return_value=True):
            waits = self.looks(*[IDLE] * 3)
        self.assertLessEqual(max(waits), 16.0)

    def at_rest_on_one_host(self):
        """Come to rest where only programs of this host notify; return the longest wait."""
        self.listener.notifications = mock.create_autospec(
            store.notify.SocketListener, instance=True
        )
        self.status.seek()
        self.looks(*[IDLE] * 9)
        [wait] = self.looks(IDLE)
        return wait

    def test_it_looks_less_often_at_rest_where_each_task_was_announced(self):
        self.assertGreater(self.at_rest_on_one_host(), 40.0)
        self.listener.take([Notification("mail")])
        self.looks(store.Outlook(due=True, wait=None))
        self.assertGreater(self.at_rest_on_one_host(), 40.0)

    def test_it_looks_as_often_as_it_may_where_it_has_found_what_was_not_announced(self):
        self.at_rest_on_one_host()
        self.looks(store.Outlook(due=True, wait=None))
        self.assertLess(self.at_rest_on_one_host(), 16.1)

    def test_a_notification_may_come_after_the_poll_that_finds_its_task(self):
        self.at_rest_on_one_host()
        self.looks(store.Outlook(due=True, wait=None))
        self.listener.take([Notification("mail")])
        self.assertGreater(self.at_rest_on_one_host(), 40.0)

    def test_what_a_timer_has_made_due_was_known(self):
        self.at_rest_on_one_host()
        self.looks(store.Outlook(due=False, wait=0.0), store.Outlook(due=True, wait=None))
        self.assertGreater(self.at_rest_on_one_host(), 40.0)

    def test_it_looks_again_soon_where_it_found_something(self):
        self.looks(*[IDLE] * 5)
        [wait] = self.looks(store.Outlook(due=True, wait=None))
        self.assertTrue(self.woken())
        self.assertLessEqual(wait, 1.0)

    def test_it_looks_less_often_where_only_a_kept_processor_is_free(self):
        """What is due may be none that it takes: a user whose tasks run longer than expected."""
        self.status.kept = True
        due = store.Outlook(due=True, wait=None)
        waits = []
        for _look in range(5):
            waits += self.looks(due)
            self.status.seek()
        self.assertTrue(self.woken())
        self.assertGreater(waits[-1], 4 * waits[0])

    def test_it_looks_when_the_clock_has_something(self):
        self.looks(*[IDLE] * 5)
        [wait] = self.looks(store.Outlook(due=False, wait=0.5))
        self.assertAlmostEqual(wait, 0.5, delta=0.1)

    def test_while_all_are_busy_it_asks_for_schedules_only_and_seldom(self):
        self.status.seeking = False
        [wait] = self.looks(store.Outlook(due=True, wait=0.0))
        self.assertFalse(self.woken())
        self.assertLessEqual(wait, 0.1)
        with mock.patch.object(store, "look", side_effect=AssertionError):
            self.listener.look()
        self.assertAlmostEqual(self.listener.tick_at - time.monotonic(), 2.0, delta=0.5)

    def test_while_all_are_busy_schedules_run_when_they_are_due(self):
        self.status.seeking = False
        self.looks(store.Outlook(due=False, wait=0.3, tick=0.3))
        self.assertAlmostEqual(self.listener.tick_at - time.monotonic(), 0.3, delta=0.2)
        self.listener.tick_at = time.monotonic()
        with mock.patch.object(store.schedules, "fire_schedules") as fire:
            [wait] = self.looks(store.Outlook(due=False, wait=None, tick=-0.1))
        fire.assert_called_once_with(using="default")
        self.assertLessEqual(wait, 0.02)

    def test_after_a_poll_that_took_long_it_wakes_for_a_timer_and_polls_for_a_schedule(self):
        def slow(*_queues, **_options):
            time.sleep(0.1)
            return store.Outlook(due=False, wait=0.05)

        self.listener.look_at, began = 0.0, time.monotonic()
        with mock.patch.object(store, "look", side_effect=slow) as look:
            self.listener.attend()
            self.assertGreaterEqual(self.listener.rested_at, began + 1.0)
            self.listener.rested_at += 100.0
            self.listener.tick_at += 100.0
            self.listener.look_at = self.listener.known_at = 0.0
            self.listener.attend()
            self.assertTrue(self.woken())
            self.listener.attend()
            self.assertFalse(self.woken())
            self.assertEqual(look.call_count, 1)
            self.listener.tick_at = 0.0
            self.listener.attend()
            self.assertEqual(look.call_count, 2)

    def test_it_does_not_see_what_it_has_just_rung_for(self):
        self.listener.look_at = 0.0
        self.listener.take([Notification("mail")])
        self.assertGreater(self.listener.look_at, time.monotonic())


class NotificationTests(ListenerCase):
    def test_a_pooler_that_takes_notifications_away_is_reported_once(self):
        read_fd = mock.create_autospec(store.notify.ChannelListener, instance=True, proven=False)
        read_fd.fileno.return_value = self.pipe_end()
        read_fd.read.return_value = []
        self.listener.notifications = read_fd
        with (
            mock.patch.object(listener, "PROOF_WAIT", 0.05),
            self.assertLogs("django_perfectqueue.listener", "WARNING") as logged,
        ):
            self.listener.start_listening()
        [line] = logged.output
        self.assertIn("a pooler in transaction mode", line)
        self.assertIn("seconds=16.0", line)
        read_fd.close.assert_called_once_with()
        self.assertIsNone(self.listener.notifications)

    def pipe_end(self):
        read_fd, hold = os.pipe()
        self.addCleanup(os.close, hold)
        self.addCleanup(os.close, read_fd)
        return read_fd

    def test_a_socket_that_cannot_be_made_is_reported(self):
        read_fd = mock.create_autospec(store.notify.SocketListener, instance=True, proven=True)
        read_fd.open.side_effect = OSError(36, "File name too long")
        self.listener.notifications = read_fd
        with self.assertLogs("django_perfectqueue.listener", "WARNING") as logged:
            self.listener.start_listening()
        self.assertIn("File name too long", logged.output[0])
        self.assertIsNone(self.listener.notifications)
