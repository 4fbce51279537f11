"""How many functions of this package one task costs: exact, whatever else the machine does."""

import sys
from pathlib import Path
from unittest import mock

from django.db import connection
from django.test import TransactionTestCase

import django_perfectqueue
from django_perfectqueue.queue import Queue
from django_perfectqueue.store.limits.meters import forget_limits

from ..factories import submit
from ..worker.runners import runner_for

PACKAGE = str(Path(django_perfectqueue.__file__).parent)
TIMES = 10

# Raise one of these only for what is worth it; Python before 3.12 calls comprehensions, too.
# On PostgreSQL two are for columns that are spelled once for all databases.
SUBMIT = {"sqlite": 73, "postgresql": 57, "mysql": 92}
# The life of an attempt is a list of seven steps, each a function.
RUN = 17
COMPREHENSIONS = 1.0 if sys.version_info >= (3, 12) else 1.2


def calls(act):
    """Return how often a function of the package is called by one act, at least."""
    counts = []

    def note(frame, event, arg):
        counts[-1] += event == "call" and frame.f_code.co_filename.startswith(PACKAGE)

    for _ in range(TIMES):
        counts.append(0)
        sys.setprofile(note)
        try:
            act()
        finally:
            sys.setprofile(None)
    return min(counts)


class CallsTests(TransactionTestCase):
    def setUp(self):
        forget_limits("default")
        # A process that imports the worker notes what handlers leave in a session.
        connection.ensure_connection()
        patched = mock.patch.object(connection, "execute_wrappers", [])
        patched.start()
        self.addCleanup(patched.stop)

    def assert_at_most(self, most, act):
        self.assertLessEqual(calls(act), most * COMPREHENSIONS)

    def test_a_submit(self):
        keys = iter(range(100))
        most = SUBMIT[connection.vendor]
        self.assert_at_most(most, lambda: Queue().submit(str(next(keys)), "report", {"i": 1}))

    def test_a_run(self):
        for number in range(TIMES):
            submit(f"k{number}", now=None)
        acquired = iter(Queue().acquire(TIMES))
        runner = runner_for(lambda task: None)
        self.addCleanup(runner.wakeup.close)
        self.assert_at_most(RUN, lambda: runner.run(next(acquired)))
