"""What a lone task costs a worker at rest, in all of its processes."""

import statistics
import time

from django.db import connection
from django.test import tag
from django.test.utils import CaptureQueriesContext

from ...waiting import wait_until
from ..statements import in_packet, logged
from ..workers import WorkerTestCase

FAR = 600.0
SOON = 20.0
STATEMENTS = {"postgresql": 7, "mysql": 11, "sqlite": 10}
"""From submit to finish; on PostgreSQL the account's lock and its charge are one packet."""


class LoneTaskTests(WorkerTestCase):
    def setUp(self):
        super().setUp()
        self.log = self.folder / "statements"

    def idle_worker(self, **settings):
        terms = {"PROCESSORS": 1, "POLL_INTERVAL": FAR, "STATEMENTS": str(self.log), **settings}
        worker = self.worker(**terms).ready()
        worker.helper()
        for number in range(3):
            self.run_one(f"first-{number}")
            time.sleep(0.5)
        return worker

    def run_one(self, key):
        """Run a task; return how many statements its submit took."""
        with CaptureQueriesContext(connection) as queries:
            self.submit(key, "note")
        self.wait_for_status(key, "finished")
        return sum(len(in_packet(query["sql"])) for query in queries)

    def wait_for_rest(self):
        """Wait until no process has sent a statement for a while."""
        known = []

        def at_rest():
            nonlocal known
            before, known = known, [*known[-19:], len(logged(self.log))]
            return len(before) == 20 and set(before) == {known[-1]}

        wait_until(at_rest)

    def test_few_statements_lead_from_submit_to_finish(self):
        self.idle_worker()
        counts = []
        for number in range(5):
            before = len(logged(self.log))
            submitted = self.run_one(f"k{number}")
            self.wait_for_rest()
            counts.append(submitted + len(logged(self.log)) - before)
        # The janitor's sweep may fall among them, and the usage that is written now and then.
        self.assertLessEqual(statistics.median(counts), STATEMENTS[connection.vendor], counts)

    def test_a_task_that_comes_while_another_runs_is_found_at_once(self):
        """Nobody is free to be woken: so the processor looks when it has finished one."""
        self.idle_worker()
        ran = len(self.notes("ran"))
        for number in range(3):
            self.gate.unlink(missing_ok=True)
            self.submit(f"long-{number}", "wait")
            self.wait_for_note("start", number + 1)
            self.submit(f"next-{number}", "note")
            self.open_gate()
            self.wait_for_note("ran", ran + number + 1, within=SOON)

    @tag("thorough")
    def test_at_rest_it_sends_less_than_a_statement_a_second(self):
        self.idle_worker(POLL_INTERVAL=1.0)
        rates = []
        # On a slow machine it comes to rest later.
        while not rates or (rates[-1] >= 1.0 and len(rates) < 4):
            before = len(logged(self.log))
            time.sleep(24.0)
            rates.append((len(logged(self.log)) - before) / 24.0)
        self.assertGreater(rates[-1], 0)
        self.assertLess(rates[-1], 1.0, rates)
