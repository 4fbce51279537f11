import os
import re
import signal
from unittest import mock

from django_perfectqueue.models import DependencyEvent
from django_perfectqueue.queue import Queue
from django_perfectqueue.store.records import dependency_events
from django_perfectqueue.worker.processor.leases import STAND_BACK

from ..workers import WorkerTestCase

LINKS = 100


class DependencyTests(WorkerTestCase):
    def test_a_worker_runs_tasks_after_those_that_they_wait_for(self):
        for kind in ("process", "thread", "async"):
            with self.subTest(kind=kind):
                keys = [f"{kind}-{number}" for number in range(10)]
                data = {"diary": str(self.diary)}
                Queue().chain({"key": key, "type": "note", "data": data} for key in keys)
                self.submit(f"{kind}-last", "note", after=[keys[0], keys[4], keys[-1]])
                self.burst("--processors", "2", "--processor-type", kind)

                ran = [key for key, _pid in self.notes("ran") if key.startswith(kind)]
                self.assertEqual(ran, [*keys, f"{kind}-last"])

    def test_a_burst_does_not_wait_between_the_links_of_a_chain(self):
        data = {"diary": str(self.diary)}
        Queue().chain({"key": f"k{n}", "type": "note", "data": data} for n in range(LINKS))
        worker = self.burst()
        summary = re.search(rf"{LINKS} finished, .* in ([\d.]+) s", worker.output)
        self.assertIsNotNone(summary, (worker.output[-300:], worker.errors[-800:]))
        # To wait at each link would take at least this.
        self.assertLess(float(summary[1]), LINKS * STAND_BACK)

    def test_a_worker_outlives_its_processor_between_a_task_and_the_next(self):
        self.submit("a")
        self.submit("b", "note", after=["a"])
        self.worker("--processors", "2")
        os.kill(self.wait_for_note("start"), signal.SIGKILL)
        self.wait_for_note("start", 2)
        self.assertEqual(self.status("b"), "blocked")
        self.open_gate()
        self.wait_for_status("b", "finished")

        self.assertEqual(len(self.notes("ran")), 1)
        self.assertEqual(DependencyEvent.objects.count(), 0)

    def test_a_worker_acts_on_what_a_dead_process_has_left(self):
        self.submit("a", "note")
        self.submit("b", "note", after=["a"])
        task = Queue().poll()
        with mock.patch.object(dependency_events, "followers", []):
            task.finish()
        self.assertEqual(self.status("b"), "blocked")
        self.worker()
        self.wait_for_status("b", "finished")
