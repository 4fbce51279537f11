"""
What a page, a refresh and a scrape cost on a full database, against one that is hardly filled.

Times are of this process's processor, which other load does not change. On SQLite they have the
database in them; of the servers test_growth counts what they read.
"""

import os
import statistics
import sys
import time
from datetime import timedelta
from unittest import mock

from django.db import connection
from django.test import tag
from django.test.utils import CaptureQueriesContext

from django_perfectqueue import store
from django_perfectqueue.metrics import families, text
from django_perfectqueue.store.records.usage import MOST_TYPES, Tally, UsageKey, type_key

from ..factories import register
from . import filling
from .case import ScaleTestCase, refresh
from .filling import SCALE
from .scenarios import ADMIN, PAGES, Scenario, client, page

HARDLY_ANY = 20_000
"""As many as fill each list's first page."""
TYPES = 10_000
BUSY = 60
ROUNDS = 5
STATEMENTS = 12
RATIO = 2.0
FULLER = ("task list, user's", "task list, key")
"""Lists that have more rows on a full database."""
SLACK = 0.02
"""Seconds by which a page may be slower, as short ones vary so much."""


def refreshed():
    """Return a client and the ETag that it has of the overview."""
    user = client()[0]
    return user, user.get(f"{ADMIN}/overview/")["ETag"]


def again(user, etag):
    assert user.get(f"{ADMIN}/overview/", headers={"If-None-Match": etag}).status_code in (200, 304)


def scrape():
    families.kept.clear()
    text.of_database("default")


FIGURES = page("overview/figures/", queue="default", user="user3", over="month")
SHOWN = [
    *PAGES,
    Scenario("figures of a user", FIGURES, 1, client),
    Scenario("live refresh", again, 1, refreshed),
    Scenario("scrape of metrics", scrape),
]


def add_usage():
    """Have what types and users got in each minute of an hour."""
    now = store.clock(using="default")
    for minute in range(60):
        tallies = {}
        for queue in ("default", "other"):
            for number in range(MOST_TYPES):
                tallies[type_key(queue, f"type-{number}")] = Tally(seconds=1.0, ended=1, finished=1)
                user = UsageKey(queue, others=False, user=f"user{number}")
                tallies[user] = Tally(seconds=1.0, ended=1, finished=1)
        store.add_usage(tallies, using="default", at=now - timedelta(minutes=minute))
    store.roll_up(using="default", keep=30 * 86_400.0, now=now)


def timed(scenario):
    """Return the median of the seconds that it takes, and its most statements."""
    seconds, counts = [], []
    for _round in range(ROUNDS + 1):
        given = scenario.prepare()
        with CaptureQueriesContext(connection) as captured:
            begun = time.process_time()
            scenario.act(*given)
            seconds.append(time.process_time() - begun)
        counts.append(len(captured))
        clean()
    return statistics.median(seconds[1:]), max(counts[1:])


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
            cls.few = {scenario.name: timed(scenario) for scenario in SHOWN}
            cls.filling.grow(SCALE - HARDLY_ANY)
        refresh()
        register("default", "other", types=[], patterns=[(".*", 0)], now=None)
        cls.many = {scenario.name: timed(scenario) for scenario in SHOWN}
        if os.environ.get("PERFECTQUEUE_SCALE"):
            for name, (seconds, count) in cls.many.items():
                before = cls.few[name][0]
                line = f"{name:32}{count:4}{before * 1e3:9.1f}{seconds * 1e3:9.1f}"
                sys.stderr.write(f"{line}{seconds / before:7.2f}\n")

    def test_a_page_takes_few_statements(self):
        for name, (_seconds, count) in self.many.items():
            with self.subTest(name):
                self.assertLessEqual(count, STATEMENTS)

    def test_a_page_is_not_slower_on_a_full_database(self):
        for name, (seconds, _count) in self.many.items():
            with self.subTest(name):
                most = RATIO * self.few[name][0] + SLACK
                self.assertTrue(seconds <= most or name in FULLER, f"{seconds} s, {most} s")
