import threading
from unittest import mock

from django.db import connections, transaction
from django.test import TransactionTestCase, skipUnlessDBFeature

from django_perfectqueue import store
from django_perfectqueue.store.notify import ring

from ...factories import acquire, after, keys, submit


class OthersTests(TransactionTestCase):
    @skipUnlessDBFeature("has_select_for_update_skip_locked")
    def test_who_makes_tasks_ready_notifies_those_who_looked_meanwhile(self):
        """They were given nothing, and rest."""
        submit("k0", run_at=after(1))
        busy, ready = threading.Event(), threading.Event()

        def admit_slowly():
            with transaction.atomic():
                store.schedules.fire_due_timers(using="default", now=after(2))
                busy.set()
                ready.wait(10)
            connections.close_all()

        with mock.patch.object(ring.PendingNotification, "__call__") as sent:
            janitor = threading.Thread(target=admit_slowly)
            janitor.start()
            busy.wait(10)
            self.assertEqual(acquire(now=after(2)), [])
            self.assertFalse(sent.called)
            ready.set()
            janitor.join()
            self.assertTrue(sent.called)
        self.assertEqual(keys(acquire(now=after(2))), ["k0"])

    def test_who_wakes_what_others_have_left_asleep_notifies_them(self):
        with mock.patch.object(ring.PendingNotification, "__call__"):
            submit("k0", now=None)
        with mock.patch.object(ring.PendingNotification, "__call__") as sent:
            self.assertEqual(store.upkeep.wake_forgotten_lanes(using="default"), 1)
            self.assertEqual(sent.call_count, 1)
            self.assertEqual(store.upkeep.wake_forgotten_lanes(using="default"), 0)
            self.assertEqual(sent.call_count, 1)

    def test_one_processor_waits_for_nobody(self):
        """The store never sleeps inside of a verb."""
        submit("k0", run_at=after(1))
        with mock.patch("time.sleep", side_effect=AssertionError):
            self.assertEqual(acquire(), [])
            self.assertEqual(keys(acquire(now=after(2))), ["k0"])
