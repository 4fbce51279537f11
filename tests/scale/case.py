"""Tests on full tables: filled once for a class, and every act taken back."""

from contextlib import ExitStack, contextmanager, suppress
from unittest import mock

from django.db import OperationalError, ProgrammingError, connection, transaction
from django.test import TransactionTestCase

from django_perfectqueue import models
from django_perfectqueue.admin.pages import names
from django_perfectqueue.admin.parts import base, filters
from django_perfectqueue.inspection import why_waiting
from django_perfectqueue.management.commands import pq_queue as figures
from django_perfectqueue.store.records import counts

from .filling import SCALE, TABLES, Filling
from .meter import Meter

LARGE = 500_000
BEHIND_LIMITS = (models.Lane, models.Limit, models.Meter, models.Hold)


class ScaleTestCase(TransactionTestCase):
    """``fill`` is called once; each act that is measured is taken back."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.filling = Filling()
        cls.addClassCleanup(cls.leave)
        cls.fill()

    @classmethod
    def fill(cls):
        """Fill the tables for all tests of the class."""

    @classmethod
    def leave(cls):
        cls.filling.clear()
        forget()
        connection.close()

    def _fixture_teardown(self):
        """Keep the rows for the next test."""


def measured(scenario):
    """Return what an act reads, and take it back."""
    with transaction.atomic(), short_of_sight():
        expect_large_tables()
        given = scenario.prepare()
        with Meter().on() as meter:
            scenario.act(*given)
        transaction.set_rollback(True)
    return meter


def expect_large_tables():
    """Have PostgreSQL read by an index already where the tables are as small as here."""
    if connection.vendor == "postgresql" and SCALE < LARGE:
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL random_page_cost = 1.1")


def short_of_sight():
    """Have the lists look less far, as the tables are small too."""
    stack = ExitStack()
    for module, name, bound in BOUNDS:
        stack.enter_context(mock.patch.object(module, name, bound))
    return stack


BOUNDS = (
    (filters, "REACH", 2000),
    (names, "MOST", 20),
    (base, "COUNTED", 500),
    (filters, "FOUND", 100),
    (figures, "COUNTED", 500),
    (counts, "COUNTED", 500),
    (counts, "LANES", 100),
    (why_waiting, "COUNTED", 20),
)


def refresh():
    """Have the database count its rows, as it does by itself every now and then."""
    to_each_table(REFRESH[connection.vendor])


REFRESH = {
    "postgresql": "VACUUM (ANALYZE) {}",
    "mysql": "ANALYZE TABLE {}",
    "sqlite": "ANALYZE {}",
}


@contextmanager
def not_counting():
    """Keep the database from counting its rows by itself."""
    off, on = COUNTING.get(connection.vendor, ("", ""))
    to_each_table(off)
    try:
        yield
    finally:
        to_each_table(on)


COUNTING = {
    "postgresql": (
        "ALTER TABLE {} SET (autovacuum_enabled = off)",
        "ALTER TABLE {} RESET (autovacuum_enabled)",
    ),
    "mysql": ("ALTER TABLE {} STATS_AUTO_RECALC = 0", "ALTER TABLE {} STATS_AUTO_RECALC = DEFAULT"),
}


def forget():
    """Have the database know nothing of what it counted; MySQL does when a table is emptied."""
    if connection.vendor == "postgresql":
        with suppress(ProgrammingError):  # which takes a superuser
            to_each_table("DELETE FROM pg_statistic WHERE starelid = '{}'::regclass")
    if connection.vendor == "sqlite":
        with suppress(OperationalError):  # where nothing was ever counted
            to_each_table("DELETE FROM sqlite_stat1")
        connection.close()


def to_each_table(statement):
    with connection.cursor() as cursor:
        for table in (*TABLES, *BEHIND_LIMITS) if statement else ():
            cursor.execute(statement.format(connection.ops.quote_name(table._meta.db_table)))
