import os
import re
import signal
from unittest import mock

from django.test import SimpleTestCase, TestCase

from django_perfectqueue import store
from django_perfectqueue.application import Dispatch
from django_perfectqueue.models import UNSEEN, Worker
from django_perfectqueue.queue import Queue
from django_perfectqueue.runtime.bell import Bell
from django_perfectqueue.runtime.database import Link
from django_perfectqueue.runtime.presence import INTERVAL, Presence, registration, routes_of

from ..tasks import SampleDispatch
from ..waiting import wait_until
from .test_janitor import plan
from .workers import WorkerTestCase


class RoutesTests(SimpleTestCase):
    def test_types_and_patterns_are_told_as_they_are_written(self):
        class Routes(Dispatch):
            routes = {"echo": "tests.tasks.echo", re.compile("^IMPORT", re.I): "tests.tasks.fail"}

        flags = (re.I | re.U).value
        self.assertEqual(routes_of(Routes), {"types": ["echo"], "patterns": [["^IMPORT", flags]]})

    def test_who_decides_by_itself_can_not_be_told(self):
        for name in ("handler_for", "knows", "look_up"):
            with self.subTest(name):
                own = classmethod(lambda cls, type_: True)
                self.assertIsNone(routes_of(type("Own", (SampleDispatch,), {name: own})))


class PresenceTests(TestCase):
    def setUp(self):
        bell = Bell()
        self.addCleanup(bell.close)
        link = Link("default", bell, lambda: 0.0)
        self.presence = Presence(registration(plan(PROCESSORS=3)), link)

    def test_it_tells_the_register_what_the_worker_is(self):
        self.presence.tell()
        row = Worker.objects.get()
        self.assertEqual((row.pid, row.processors, row.queues), (os.getpid(), 3, ["default"]))
        self.assertIn("echo", row.routes["types"])

    def test_it_does_so_once_an_interval(self):
        clock = mock.patch("time.monotonic")
        with mock.patch.object(store, "register") as register, clock as now:
            for second in range(31):
                now.return_value = 1000.0 + second
                self.presence.tell()
        self.assertEqual(register.call_count, 1 + 30 // INTERVAL)
        self.assertLess(2 * INTERVAL, UNSEEN.total_seconds())


class WorkerTests(WorkerTestCase):
    """Real workers, in the eyes of those who wait for them."""

    def registered(self, count=1):
        wait_until(lambda: Worker.objects.count() == count, within=20)
        return Worker.objects.order_by("-started_at")[0]

    def why(self, key, **terms):
        return Queue()[key].why_waiting(**terms).code

    def test_a_worker_registers_and_signs_off(self):
        self.submit("k1", "strange")
        self.assertEqual(self.why("k1"), "no_worker")
        worker = self.worker("--processors", "2").ready()
        row = self.registered()
        self.assertEqual((row.pid, row.processors), (worker.supervisor, 2))
        self.assertEqual(row.queues, ["default"])
        self.assertIn("note", row.routes["types"])
        # A processor has it for a moment, until it finds that it does not know its type.
        wait_until(lambda: self.why("k1") == "unknown_type")
        worker.send(signal.SIGTERM)
        self.assertEqual(worker.wait(), 0)
        self.assertFalse(Worker.objects.exists())

    def test_one_that_is_to_stop_at_once_signs_off_too(self):
        self.submit("k1")
        worker = self.worker().ready()
        self.registered()
        self.wait_for_note("start")
        worker.send(signal.SIGQUIT)
        self.assertEqual(worker.wait(), 0)
        self.assertFalse(Worker.objects.exists())

    def test_a_worker_that_is_killed_is_told_as_gone(self):
        worker = self.worker().ready()
        row = self.registered()
        supervisor, helpers = worker.supervisor, worker.helpers()
        os.kill(supervisor, signal.SIGSTOP)  # so that it starts no other janitor
        for pid in (*helpers, supervisor):
            os.kill(pid, signal.SIGKILL)
        worker.end()
        self.submit("k1", "note")
        self.assertEqual(self.why("k1"), "position")
        self.assertEqual(self.why("k1", now=row.seen_at + UNSEEN), "no_worker")

    def test_one_whose_supervisor_is_killed_signs_off(self):
        worker = self.worker().ready()
        self.registered()
        os.kill(worker.supervisor, signal.SIGKILL)
        wait_until(lambda: not Worker.objects.exists(), within=20)

    def test_a_janitor_that_is_replaced_goes_on_with_the_row(self):
        worker = self.worker().ready()
        first = self.registered()
        for helper in worker.helpers():
            os.kill(helper, signal.SIGKILL)
        wait_until(lambda: Worker.objects.filter(seen_at__gt=first.seen_at).exists(), within=20)
        self.assertEqual(self.registered().id, first.id)

    def test_a_burst_registers_too(self):
        self.submit("k1")
        worker = self.worker("--burst")
        self.wait_for_note("start")
        self.registered()
        self.open_gate()
        self.assertEqual(worker.wait(), 0)
        self.assertFalse(Worker.objects.exists())
