"""What schedules cost who looks for work."""

from unittest import skipUnless

from django.db import connection
from django.test import TestCase
from django.test.utils import CaptureQueriesContext

from django_perfectqueue import store
from django_perfectqueue.models import Schedule

from .test_schedules import HOUR, NOON


def fill(count):
    rows = (
        Schedule(name=f"s{n}", queue="default", type="report", every=60.0, next_at=at, due_at=at)
        for n in range(count)
        for at in [NOON + HOUR]
    )
    Schedule.objects.bulk_create(rows)


class LookTests(TestCase):
    def test_a_look_is_one_statement_with_or_without_schedules(self):
        for count in (0, 100):
            fill(count)
            with self.subTest(count=count), self.assertNumQueries(1):
                outlook = store.look(["default"], using="default", now=NOON)
        self.assertEqual(outlook, store.Outlook(due=False, wait=3600.0, tick=3600.0))

    def test_a_janitors_look_is_one_statement_too(self):
        fill(100)
        with self.assertNumQueries(1):
            store.schedules.fire_due_timers(using="default", now=NOON)

    @skipUnless(connection.vendor == "postgresql", "Only there a result is sorted by its name.")
    def test_it_reads_the_first_of_the_index_and_sorts_nothing(self):
        fill(5_000)
        with CaptureQueriesContext(connection) as queries:
            store.look(["default"], using="default", now=NOON)
        with connection.cursor() as cursor:
            cursor.execute(f"EXPLAIN {queries.captured_queries[0]['sql']}")
            plan = "\n".join(line for (line,) in cursor.fetchall())
        # How the lanes are read depends on what other tests have left in their table.
        self.assertIn("using perfectqueue_schedule_due", plan)
        self.assertNotIn("Sort Key: perfectqueue_schedule", plan)
