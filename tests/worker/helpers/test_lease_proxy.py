import os
import signal
import time
from contextlib import contextmanager

from django.test import SimpleTestCase, TestCase

from django_perfectqueue import store
from django_perfectqueue.application import TimeLimits
from django_perfectqueue.models import Ticket
from django_perfectqueue.queue import Queue
from django_perfectqueue.worker.helpers.lease_proxy import RECENTLY, LeaseProxy
from django_perfectqueue.worker.process.child import fork
from django_perfectqueue.worker.process.cpu_usage import CpuUsage
from django_perfectqueue.worker.process.wakeup import Wakeup
from django_perfectqueue.worker.shared.slot import NEVER, Slot
from django_perfectqueue.worker.shared.wakeups import Wakeups
from django_perfectqueue.worker.supervisor.processors import Tenure

from ...factories import submit
from ...waiting import wait_until
from ..attempt.test_time_limits import Limited
from ..forked import plan_of

HOLDER = 7


def spin():
    while True:
        pass


def rest():
    while True:
        time.sleep(600)


@contextmanager
def forked_child(body):
    child = fork(body)
    try:
        yield child
    finally:
        os.kill(child.pid, signal.SIGKILL)
        wait_until(lambda: child.reap() is not None)


@contextmanager
def forked(body):
    with forked_child(body) as child:
        yield child.pid


@contextmanager
def quiet_pipe():
    """Give the read end of a pipe into which nothing is written."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    try:
        yield reading
    finally:
        os.close(reading)
        os.close(writing)


class CpuUsageTests(SimpleTestCase):
    def seen_busy(self, gauge):
        return lambda: gauge.is_busy(time.monotonic())

    def test_who_computes_is_distinguished_from_who_stands_still(self):
        with forked(spin) as pid:
            gauge = CpuUsage(pid, time.monotonic())
            wait_until(self.seen_busy(gauge))
            os.kill(pid, signal.SIGSTOP)
            wait_until(lambda: not gauge.is_busy(time.monotonic()))

    def test_who_sleeps_and_who_is_gone_do_not_compute(self):
        with forked(rest) as pid:
            gauge = CpuUsage(pid, time.monotonic() - 60)
            self.assertFalse(gauge.is_busy(time.monotonic()))
        self.assertFalse(gauge.is_busy(time.monotonic() + 1))


class SilenceTests(SimpleTestCase):
    """A processor that sends no heartbeat, as its supervisor sees it."""

    def listen(self, tenure, *, now):
        tenure.listen(now, limit=1.0, frozen=False)
        return tenure.child.killed

    def test_a_supervisor_that_looks_late_measures_before_it_kills(self):
        with forked_child(spin) as child, quiet_pipe() as heartbeat_r:
            slot = Slot.shared()
            slot.sign_on(HOLDER)
            slot.begin(1, since=0.0, limits=TimeLimits())
            late = time.monotonic()
            tenure = Tenure(child, HOLDER, slot, heartbeat_r, seen_at=late - 5.0)
            self.assertFalse(self.listen(tenure, now=late))

            def seen_at_work():
                self.assertFalse(self.listen(tenure, now=time.monotonic()))
                return tenure.seen_at > late

            wait_until(seen_at_work)
            os.kill(child.pid, signal.SIGSTOP)
            with self.assertLogs("django_perfectqueue.supervisor", "ERROR"):
                wait_until(lambda: self.listen(tenure, now=time.monotonic()))


class LeaseProxyTests(TestCase):
    """A processor of which a forked process is all that there is; its monitor is silent."""

    def setUp(self):
        submit("k0", now=None)
        [self.lease] = store.acquire(
            ["default"], limit=1, alive_time=50, holder=HOLDER, using="default"
        )
        self.before = Ticket.objects.get().alarm_at
        self.slot = Slot.shared()
        wakeup = Wakeup()
        self.addCleanup(wakeup.close)
        self.proxy = LeaseProxy(plan_of(Limited), Wakeups([(self.slot, wakeup)]))

    def sit_down(self, pid, *, renewed=25.0, silent=10.0, idle=0.0):
        now = time.monotonic()
        self.slot.sign_on(HOLDER)
        self.slot.pid = pid
        self.slot.begin(self.lease.task_id, since=now - silent, limits=TimeLimits(kill_wait=9.0))
        self.slot.beat_at = now - silent
        self.slot.renewed_at = now - renewed
        self.slot.computed_at = now - idle

    def renewed(self):
        return Ticket.objects.get().alarm_at > self.before

    def test_who_computes_in_silence_is_stood_in_for(self):
        Queue()["k0"].cancel_request()
        with forked(spin) as pid:
            self.sit_down(pid)
            [begun] = self.slot.tasks
            self.assertEqual(begun.kill_at, NEVER)

            def seen_to():
                self.proxy.look()
                return self.slot.tasks[0].kill_at < NEVER

            with self.assertLogs("django_perfectqueue.janitor", "WARNING"):
                wait_until(seen_to)
        self.assertTrue(self.renewed())
        self.assertLess(time.monotonic() - self.slot.renewed_at, 60)
        self.assertGreater(self.slot.tasks[0].kill_at, time.monotonic())

    def test_who_has_not_been_seen_to_compute_lately_is_not(self):
        self.sit_down(os.getpid(), idle=RECENTLY + 1)
        self.proxy.look()
        self.assertFalse(self.renewed())

    def test_nor_is_who_looks_after_itself_or_whose_lease_may_be_lost(self):
        for terms in ({"silent": 0.0}, {"renewed": 10.0}, {"renewed": 300.0}):
            with self.subTest(**terms):
                self.sit_down(os.getpid(), **terms)
                self.proxy.look()
                self.assertFalse(self.renewed())

    def test_only_what_the_holder_still_has_is_renewed(self):
        """
        A worker that was frozen with its janitor comes back late.
        """
        Queue()["k0"].force_finish()
        submit("k1", now=None)
        store.acquire(["default"], limit=1, alive_time=50, holder=8, using="default")
        self.before = Ticket.objects.get().alarm_at
        self.assertEqual(store.renew(HOLDER, using="default", alive_time=300), 0)
        self.assertFalse(self.renewed())
        self.assertEqual(store.wanted(HOLDER, [self.lease.task_id], using="default"), set())
