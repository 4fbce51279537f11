"""
What a page, a refresh and a scrape cost on a full database, against one that is hardly filled.

The tests count statements and calls; test_growth counts what the database reads. The times that
are printed are of this process's processor. On SQLite they have the database in them.
"""

import os
import statistics
import sys
import time
from contextlib import contextmanager
from datetime import timedelta
from typing import NamedTuple
from unittest import mock

from django.db import connection
from django.test import tag
from django.test.utils import CaptureQueriesContext

from django_perfectqueue import store
from django_perfectqueue.metrics import families, views
from django_perfectqueue.store.records.usage import MOST_TYPES, Tally, UsageKey, type_key

from ..factories import register
from . import filling
from .case import ScaleTestCase, refresh
from .filling import SCALE
from .scenarios import PAGES, Scenario, client, page

HARDLY_ANY = 20_000
"""As many as fill each list's first page."""
TYPES = 10_000
BUSY = 60
ROUNDS = 5 if os.environ.get("PERFECTQUEUE_SCALE") else 1
TIMES = 3
STATEMENTS = 15
RATIO = 1.1
FULLER = (
    "task list, type",
    "task list, user's",
    "task list, key",
    "task page, waiting",
    "dead letters, group",
    "workers",
)
"""Pages that have more rows on a full database."""


def scrape():
    families.kept.clear()
    views.of_database("default")


FIGURES = page("overview/figures/", queue="default", user="user3", over="month")
SHOWN = [
    *PAGES,
    Scenario("figures of a user", FIGURES, 1, client),
    Scenario("scrape of metrics", scrape),
]


def add_usage():
    """Have what types and users got in each minute of an hour."""
    now = store.records.clock(using="default")
    for minute in range(60):
        tallies = {}
        for queue in ("default", "other"):
            for number in range(MOST_TYPES):
                tallies[type_key(queue, f"type-{number}")] = Tally(seconds=1.0, ended=1, finished=1)
                user = UsageKey(queue, others=False, user=f"user{number}")
                tallies[user] = Tally(seconds=1.0, ended=1, finished=1)
        store.records.add_usage(tallies, using="default", at=now - timedelta(minutes=minute))
    store.records.roll_up(using="default", keep=30 * 86_400.0, now=now)


class Cost(NamedTuple):
    seconds: float
    statements: int
    calls: int


def cost_of(scenario):
    """Return the median of the seconds that it takes, its most statements and its calls."""
    seconds, statements = [], []
    for _round in range(ROUNDS + 1):
        with prepared(scenario) as given, CaptureQueriesContext(connection) as captured:
            begun = time.process_time()
            scenario.act(*given)
            seconds.append(time.process_time() - begun)
        statements.append(len(captured))
    return Cost(statistics.median(seconds[1:]), max(statements[1:]), calls_of(scenario))


def calls_of(scenario):
    """Return how many functions it calls in this thread at least, Django's among them."""
    counts = []

    def note(frame, event, arg):
        counts[-1] += event in ("call", "c_call")

    for _time in range(TIMES):
        with prepared(scenario) as given:
            counts.append(0)
            sys.setprofile(note)
            try:
                scenario.act(*given)
            finally:
                sys.setprofile(None)
    return min(counts)


@contextmanager
def prepared(scenario):
    yield scenario.prepare()
    clean()


def clean():
    """Take back what a preparation has stored."""
    from django.contrib.auth.models import User

    User.objects.all().delete()


@tag("thorough")
class PageTests(ScaleTestCase):
    """``PERFECTQUEUE_SCALE=1000000`` prints the table of the documentation."""

    @classmethod
    def fill(cls):
        types = {**filling.LABELS, "type": f"(id %% {TYPES})"}
        with mock.patch.object(filling, "LABELS", types):
            cls.filling.busy = BUSY
            register("default", "other", types=[], patterns=[(".*", 0)], now=None)
            add_usage()
            cls.filling.grow(HARDLY_ANY)
            refresh()
            cls.few = {scenario.name: cost_of(scenario) for scenario in SHOWN}
            cls.filling.grow(SCALE - HARDLY_ANY)
        refresh()
        register("default", "other", types=[], patterns=[(".*", 0)], now=None)
        cls.many = {scenario.name: cost_of(scenario) for scenario in SHOWN}
        if os.environ.get("PERFECTQUEUE_SCALE"):
            for name, cost in cls.many.items():
                before = cls.few[name].seconds
                line = f"{name:32}{cost.statements:4}{before * 1e3:9.1f}{cost.seconds * 1e3:9.1f}"
                sys.stderr.write(
                    f"{line}{cost.seconds / before:7.2f}{cls.few[name].calls:9}{cost.calls:9}\n"
                )

    def test_a_page_takes_few_statements(self):
        for name, cost in self.many.items():
            with self.subTest(name):
                self.assertLessEqual(cost.statements, STATEMENTS)

    def test_a_page_calls_no_more_on_a_full_database(self):
        fullest = max(cost.calls for cost in self.few.values())
        for name, cost in self.many.items():
            with self.subTest(name):
                most = fullest if name in FULLER else RATIO * self.few[name].calls
                self.assertLessEqual(cost.calls, most)
