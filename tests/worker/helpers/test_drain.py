import itertools
import time
from pathlib import Path
from unittest import mock

from django_perfectqueue import store
from django_perfectqueue.application import Application, Dispatch
from django_perfectqueue.models import Attempt, Step, Worker
from django_perfectqueue.queue import Queue
from django_perfectqueue.worker.helpers import registration

from ...waiting import wait_until
from ..forked import SLOW_MACHINE, ForkedWorkerTestCase


class Held(Application):
    """Runs until its gate is open."""

    def perform(self):
        folder = Path(self.task.data["folder"])
        (folder / self.task.key).write_text("begun")
        while not (folder / "gate").exists():
            time.sleep(0.02)


class Stepping(Application):
    """Take steps until the test opens the gate."""

    def perform(self):
        for number in itertools.takewhile(lambda _: not self.is_open(), itertools.count()):
            self.task.step(f"s{number}", time.sleep, 0.05)

    def is_open(self):
        return (Path(self.task.data["folder"]) / "gate").exists()


class Handlers(Dispatch):
    routes = {"held": Held, "stepping": Stepping}


class DrainTests(ForkedWorkerTestCase):
    def setUp(self):
        super().setUp()
        often = mock.patch.object(registration, "INTERVAL", 0.1)
        often.start()
        self.addCleanup(often.stop)

    def test_it_finishes_what_it_runs_and_takes_no_more_until_that_is_taken_back(self):
        for key in ("k1", "k2"):
            self.submit(key, "held")
        # What it has taken in advance goes back.
        self.worker(Handlers, PROCESSORS=1, TASK_PREFETCH=1)
        self.note("k1")
        self.drain(True)
        wait_until(lambda: self.status("k2") == "waiting", within=SLOW_MACHINE)

        (self.folder / "gate").touch()
        wait_until(lambda: self.status("k1") == "finished", within=SLOW_MACHINE)
        self.submit("k3", "held")
        time.sleep(1)
        self.assertEqual([self.status(key) for key in ("k2", "k3")], ["waiting"] * 2)
        self.assertFalse((self.folder / "k2").exists())

        self.drain(False)
        for key in ("k2", "k3"):
            wait_until(lambda key=key: self.status(key) == "finished", within=SLOW_MACHINE)

    def test_what_it_runs_does_not_yield(self):
        for key in ("k1", "k3"):
            self.submit(key, "stepping", user="long")
        self.worker(Handlers, PROCESSORS=1, TASK_PREFETCH=1, YIELD_AFTER=0.1)
        wait_until(Step.objects.exists, within=SLOW_MACHINE)
        self.drain(True)
        wait_until(lambda: self.status("k3") == "waiting", within=SLOW_MACHINE)
        self.submit("k2", "held", user="light")
        time.sleep(1)
        # An attempt that has ended in another way says how.
        self.assertEqual(
            [*Attempt.objects.values_list("ending", "error")], [], self.log.read_text()
        )
        self.assertEqual([self.status(key) for key in ("k1", "k2")], ["running", "waiting"])
        (self.folder / "gate").touch()
        wait_until(lambda: self.status("k1") == "finished", within=SLOW_MACHINE)

    def drain(self, draining):
        wait_until(Worker.objects.exists, within=SLOW_MACHINE)
        ids = list(Worker.objects.values_list("pk", flat=True))
        store.records.drain(ids, draining, using="default")
        # It has read that with the second write of its row, and acted on it before the third.
        for _ in range(3):
            seen = Worker.objects.get().seen_at
            wait_until(lambda at=seen: Worker.objects.get().seen_at > at, within=SLOW_MACHINE)

    def status(self, key):
        return Queue()[key].metadata().status
