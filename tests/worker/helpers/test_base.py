import os
import signal
import time
from pathlib import Path

from django.test import SimpleTestCase

from django_perfectqueue import conf
from django_perfectqueue.application import Dispatch
from django_perfectqueue.worker.helpers.base import Helper, HelperProcess
from django_perfectqueue.worker.plan import Plan
from django_perfectqueue.worker.process.child import CRASHED, fork

from ...waiting import wait_until


class Lasting(Helper):
    """Runs until it is stopped."""

    def work(self):
        while not self.stopping:
            self.wait(60)


class Deaf(Helper):
    """Never stops, as one whose database does not answer."""

    def work(self):
        time.sleep(600)


class Failing(Helper):
    def work(self):
        raise ValueError


class Done(Helper):
    def work(self):
        pass


class HelperProcessTests(SimpleTestCase):
    def process(self, *kinds):
        """Fork a process of these helpers."""
        plan = Plan(dispatch=Dispatch, queues=("default",), using="default", options=conf.options())
        parent_alive, hold = os.pipe()
        heartbeat_r, heartbeat_w = os.pipe()
        for file in (parent_alive, heartbeat_r, heartbeat_w):
            self.addCleanup(os.close, file)
        self.hold = os.fdopen(hold, "wb")
        self.addCleanup(self.hold.close)

        def run():
            self.hold.close()
            return HelperProcess(plan, [kind(plan) for kind in kinds]).run(
                heartbeat_w, parent_alive
            )

        child = fork(run)
        self.addCleanup(self.end, child)
        return child

    def end(self, child):
        if Path(f"/proc/{child.pid}").exists():
            child.kill()

    def code(self, child):
        codes = []

        def ended():
            codes.append(child.reap())
            return codes[-1] is not None

        wait_until(ended)
        return codes[-1]

    def test_it_ends_with_the_last_of_its_helpers(self):
        child = self.process(Done, Lasting)
        time.sleep(0.2)
        self.assertIsNone(child.reap())
        os.kill(child.pid, signal.SIGTERM)
        self.assertEqual(self.code(child), 0)

    def test_a_helper_that_fails_ends_the_process_so_that_it_is_replaced(self):
        self.assertEqual(self.code(self.process(Deaf, Failing)), CRASHED)

    def test_it_ends_with_its_supervisor(self):
        child = self.process(Lasting, Lasting)
        time.sleep(0.2)
        self.hold.close()
        self.assertEqual(self.code(child), 0)
