"""A notified task starts at once although connections break meanwhile."""

import contextlib
import os
import random
import sys
import time

from django.test import tag

from django_perfectqueue.models import Ticket

from ...databases import SQLite
from ...databases.server import DATABASE
from ...waiting import wait_until
from ..own_server import OwnServerCase

ROUNDS = int(os.environ.get("PERFECTQUEUE_TEST_ROUNDS", "10"))
FAR = 60.0
SOON = 3.0
"""Without a wake-up a processor looks after 3.5 s at the soonest."""

BLOCKED = {
    "postgresql": (
        "SELECT 1 FROM pg_stat_activity WHERE usename = 'app' AND wait_event_type = 'Lock'"
    ),
    # innodb_trx is a cache that is not refreshed while it is read often.
    "mysql": (
        "SELECT 1 FROM information_schema.processlist"
        " WHERE user = 'app' AND command <> 'Sleep' AND time_ms BETWEEN 50 AND 10000"
    ),
}


@tag("thorough")
class BrokenConnectionTests(OwnServerCase):
    """
    Every connection of the worker breaks while it writes a completion, and a submit notifies
    it meanwhile. PERFECTQUEUE_TEST_ROUNDS says how often.
    """

    def setUp(self):
        super().setUp()
        if isinstance(self.server, SQLite):
            self.skipTest("There is no connection to break.")
        self.migrate()
        self.drawn = random.Random(1)
        self.ran = self.started = 0

    def test_a_processor_looks_at_once(self):
        for type_ in ("process", "thread", "async"):
            terms = {"PROCESSORS": 1, "PROCESSOR_TYPE": type_, "POLL_INTERVAL": FAR}
            worker = self.worker(LOG_LEVEL="ERROR", **terms).ready()
            worker.helper()
            for act in (self.break_during_write, self.break_at_random):
                with self.subTest(type_, act=act.__name__):
                    name = f"{type_}-{act.__name__}"
                    seconds = sorted(act(f"{name}-{number}") for number in range(ROUNDS))
                    late = [one for one in seconds if one > SOON]
                    self.report(f"{name}: {len(late)} late of {ROUNDS}", seconds)
                    self.assertEqual(late, [])
            worker.end()

    def report(self, words, seconds):
        if "PERFECTQUEUE_TEST_ROUNDS" in os.environ:
            median, longest = seconds[len(seconds) // 2], seconds[-1]
            line = f"{self.own.vendor} {words}, median {median:.3f} s, longest {longest:.3f} s"
            sys.stderr.write(f"{line}\n")

    def break_during_write(self, key):
        """Return in how many seconds a task ran that was submitted during the write."""
        gate = self.folder / key
        self.submit(f"{key}-before", "wait", data={"until": str(gate)})
        self.started += 1
        self.wait_for_note("start", self.started)
        with contextlib.closing(self.server.connect(DATABASE)) as link:
            cursor = link.cursor()
            cursor.execute("BEGIN")
            ticket = Ticket.objects.using("own").get(task__key=f"{key}-before").pk
            cursor.execute(f"SELECT 1 FROM perfectqueue_ticket WHERE task_id = {ticket} FOR UPDATE")
            gate.touch()
            wait_until(lambda: self.execute(BLOCKED[self.own.vendor]))
            began = self.submit_note(key)
            self.hang_up()
            cursor.execute("ROLLBACK")
        return self.seconds_until_it_ran(began)

    def break_at_random(self, key):
        """Return the same of one that was submitted about when the connections broke."""
        self.seconds_until_it_ran(self.submit_note(f"{key}-before"))
        time.sleep(self.drawn.uniform(0.0, 0.06))
        if self.drawn.random() < 0.5:
            began = self.submit_note(key)
            self.hang_up()
        else:
            self.hang_up()
            began = self.submit_note(key)
        return self.seconds_until_it_ran(began)

    def submit_note(self, key):
        self.submit(key, "note")
        self.ran += 1
        return time.monotonic()

    def seconds_until_it_ran(self, began):
        self.wait_for_note("ran", self.ran)
        return time.monotonic() - began
