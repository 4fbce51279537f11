import contextlib
import http.client
import os
import re
import signal
import socket
import time
from unittest import mock

from django.test import SimpleTestCase, TestCase

from django_perfectqueue import store
from django_perfectqueue.application import Dispatch
from django_perfectqueue.inspection.workers import location_of
from django_perfectqueue.lib.processes import send
from django_perfectqueue.models import UNSEEN, Task, Worker
from django_perfectqueue.models.fields import ServerNow
from django_perfectqueue.queue import Queue
from django_perfectqueue.worker.database.link import Link
from django_perfectqueue.worker.helpers.registration import (
    INTERVAL,
    WorkerRegistration,
    registration_of,
    routes_of,
)
from django_perfectqueue.worker.process import signals
from django_perfectqueue.worker.process.signals import Wakeup
from django_perfectqueue.worker.shared.status import ProcessorStatus, WorkerStatus

from ...databases.lifetime import children
from ...tasks import SampleDispatch
from ...waiting import wait_until
from ..workers import WorkerTestCase
from .test_janitor import plan


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def page(port, path):
    """Return the text that a worker answers with."""
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    with contextlib.closing(link):
        link.request("GET", path)
        return link.getresponse().read().decode()


def probe(port, path):
    """Return the status that a worker answers with, or 0 while there is no answer."""
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    with contextlib.closing(link):
        try:
            link.request("GET", path)
        except OSError:
            return 0
        return link.getresponse().status


class RoutesTests(SimpleTestCase):
    def test_types_and_patterns_are_reported_as_they_are_written(self):
        class Routes(Dispatch):
            routes = {"echo": "tests.tasks.echo", re.compile("^IMPORT", re.I): "tests.tasks.fail"}

        flags = (re.I | re.U).value
        self.assertEqual(
            routes_of(Routes),
            {"types": ["perfectqueue.bulk", "echo"], "patterns": [["^IMPORT", flags]]},
        )

    def test_who_decides_by_itself_can_not_be_listed(self):
        for name in ("handler_for", "knows", "look_up"):
            with self.subTest(name):
                own = classmethod(lambda cls, type_: True)
                self.assertIsNone(routes_of(type("Own", (SampleDispatch,), {name: own})))


class RegistrationTests(TestCase):
    def setUp(self):
        wakeup = Wakeup()
        self.addCleanup(wakeup.close)
        link = Link("default", wakeup, lambda: 0.0)
        self.link = link
        self.statuses = [
            ProcessorStatus.shared(),
            ProcessorStatus.shared(2),
            ProcessorStatus.shared(),
        ]
        self.worker_status = WorkerStatus.shared(self.statuses)
        known = registration_of(plan(PROCESSORS=3))
        self.registration = WorkerRegistration(known, self.worker_status)

    def tell(self):
        self.registration.renew(self.link)
        return Worker.objects.get()

    def test_it_tells_the_register_what_the_worker_is(self):
        row = self.tell()
        self.assertEqual((row.pid, row.processors, row.queues), (os.getpid(), 3, ["default"]))
        self.assertEqual((row.launcher, row.generation), (os.getppid(), 1))
        self.assertIn("echo", row.routes["types"])
        self.assertIsNotNone(self.worker_status.reached)

    def test_it_tells_what_each_processor_does(self):
        first, second, _empty = self.statuses
        first.pid, second.pid = os.getpid(), 2**22 + 1
        first.count("finished", 3)
        for state, task_id in enumerate((7, 8)):
            second.begin(task_id, since=time.monotonic() - 5, index=state)
        one, two = self.tell().states
        self.assertEqual((one["number"], one["pid"], one["tasks"]), (1, os.getpid(), []))
        self.assertEqual(one["counts"], {"finished": 3})
        self.assertGreater(one["memory"], 2**20)
        self.assertEqual((two["number"], two["memory"]), (2, None))
        self.assertEqual([task["id"] for task in two["tasks"]], [7, 8])
        self.assertAlmostEqual(two["tasks"][0]["seconds"], 5.0, delta=1.0)

    def test_that_it_leaves_is_reported_at_once(self):
        self.assertFalse(self.tell().leaving)
        self.worker_status.leaving = True
        self.assertTrue(self.tell().leaving)

    def test_whether_a_person_drains_it_is_read_with_each_renewal_and_survives_its_row(self):
        row = self.tell()
        store.records.drain([row.id], True, using="default")
        self.registration.due_at = 0.0
        with self.assertNumQueries(2):
            self.registration.renew(self.link)
        self.assertTrue(self.registration.worker.draining)

        row.delete()
        self.registration.due_at = 0.0
        self.assertTrue(self.tell().draining)
        self.assertFalse(Worker.objects.serving(row.seen_at).exists())

    def test_it_does_so_once_an_interval(self):
        clock = mock.patch("time.monotonic")
        with mock.patch.object(store.records, "register") as register, clock as now:
            for second in range(31):
                now.return_value = 1000.0 + second
                self.registration.renew(self.link)
        self.assertEqual(register.call_count, 1 + 30 // INTERVAL)
        self.assertLess(2 * INTERVAL, UNSEEN.total_seconds())

    def test_a_processor_is_written_once_it_has_a_pid(self):
        status = self.statuses[0]
        status.holder, status.pid = 7, 0
        self.registration.renew(self.link)
        self.assertEqual(Worker.objects.get().states, [])
        status.pid = os.getpid()
        self.registration.renew(self.link)
        self.assertEqual([state["holder"] for state in Worker.objects.get().states], [7])

    def test_a_task_that_runs_for_a_second_is_shown_soon(self):
        status = self.statuses[0]
        status.pid = os.getpid()
        with (
            mock.patch.object(store.records, "register") as register,
            mock.patch("time.monotonic") as now,
        ):
            for second, written in ((0, 1), (3, 1), (4, 2), (5, 2), (9, 2), (14, 3)):
                now.return_value = 1000.0 + second
                if second == 3:
                    status.begin(7, since=1003.0)
                self.registration.renew(self.link)
                self.assertEqual(register.call_count, written, second)


class WorkerTests(WorkerTestCase):
    """Real workers, in the eyes of those who wait for them."""

    def registered(self, count=1):
        wait_until(lambda: Worker.objects.count() == count)
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

    def test_a_worker_shows_what_it_does_and_that_it_leaves(self):
        port = free_port()
        worker = self.worker("--health-port", str(port)).ready()
        row = self.registered()
        self.submit("k1", user="ann")
        processor = self.wait_for_note("start")
        wait_until(lambda: Worker.objects.get().states[0]["tasks"])
        wait_until(lambda: probe(port, "/ready") == 200)
        self.assert_metrics(page(port, "/metrics"))

        worker.send(signals.DUMP)
        wait_until(lambda: "Probe server, pid" in worker.errors)
        title = rf"Processor 1, pid {processor}, runs task \d+ for \d+\.\d s:\n"
        self.assertRegex(worker.errors, title)
        self.assertRegex(worker.errors, r"File \S+tests/tasks.py\S?, line \d+ in wait_for")

        worker.send(signal.SIGTERM)
        for pid in children(worker.supervisor):
            # So does a service manager that stops all processes of a service.
            send(pid, signal.SIGTERM)
        wait_until(lambda: Worker.objects.filter(leaving=True).exists())
        rows = Task.objects.select_related("ticket").annotate(clock=ServerNow())
        task = rows.get(key="k1")
        place = location_of(task, using="default")
        self.assertEqual((place.processor, place.pid), (1, processor))
        self.assertEqual(Worker.objects.get().id, row.id)
        self.submit("k2")
        self.assertEqual(self.why("k2"), "no_worker")
        wait_until(lambda: (probe(port, "/live"), probe(port, "/ready")) == (200, 503))

        self.open_gate()
        self.assertEqual(worker.wait(), 0)
        self.assertFalse(Worker.objects.exists())

    def test_a_worker_that_is_replaced_leaves_its_port_to_the_next_one(self):
        port = free_port()
        worker = self.worker("--health-port", str(port)).ready()
        first = worker.supervisor
        self.submit("k1")
        self.wait_for_note("start")
        worker.send(signal.SIGUSR1)
        wait_until(lambda: Worker.objects.filter(pid=first, leaving=True).exists())
        # The old one is still there, so both could answer.
        wait_until(lambda: all(probe(port, "/ready") == 200 for _probe in range(20)))
        self.assertEqual(self.status("k1"), "running")
        self.open_gate()
        worker.send(signal.SIGTERM)
        self.assertEqual(worker.wait(), 0)

    def assert_metrics(self, text):
        for line in (
            "perfectqueue_worker_live 1.0",
            "perfectqueue_worker_ready 1.0",
            'perfectqueue_processor_tasks{processor="1"} 1.0',
        ):
            self.assertIn(f"{line}\n", text)
        self.assertRegex(text, r'perfectqueue_processor_memory_bytes\{processor="1"\} \d')

    def test_one_that_is_to_stop_at_once_signs_off_too(self):
        self.submit("k1")
        worker = self.worker().ready()
        self.registered()
        self.wait_for_note("start")
        worker.send(signal.SIGQUIT)
        self.assertEqual(worker.wait(), 0)
        self.assertFalse(Worker.objects.exists())

    def test_a_worker_that_is_killed_is_reported_as_gone(self):
        worker = self.worker().ready()
        row = self.registered()
        supervisor, helper = worker.supervisor, worker.helper()
        os.kill(supervisor, signal.SIGSTOP)  # so that it starts no other janitor
        for pid in (helper, supervisor):
            os.kill(pid, signal.SIGKILL)
        worker.end()
        self.submit("k1", "note")
        self.assertEqual(self.why("k1"), "position")
        self.assertEqual(self.why("k1", now=row.seen_at + UNSEEN), "no_worker")

    def test_one_whose_supervisor_is_killed_signs_off(self):
        worker = self.worker().ready()
        self.registered()
        os.kill(worker.supervisor, signal.SIGKILL)
        wait_until(lambda: not Worker.objects.exists())

    def test_a_janitor_that_is_replaced_goes_on_with_the_row(self):
        worker = self.worker().ready()
        first = self.registered()
        os.kill(worker.helper(), signal.SIGKILL)
        wait_until(lambda: Worker.objects.filter(seen_at__gt=first.seen_at).exists())
        self.assertEqual(self.registered().id, first.id)

    def test_a_burst_registers_too(self):
        self.submit("k1")
        worker = self.worker("--burst")
        self.wait_for_note("start")
        self.registered()
        self.open_gate()
        self.assertEqual(worker.wait(), 0)
        self.assertFalse(Worker.objects.exists())
