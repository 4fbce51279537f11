"""What each verb, command and page reads does not grow with what is stored."""

import os
import sys

from django.db import connection
from django.test import tag

from .case import ScaleTestCase, forget, measured, not_counting, refresh
from .filling import SCALE, mostly
from .scenarios import ALL, COMMANDS, EDITS, PAGES, ROUSE, STORE

A_TASK = 36
# By its sample of the rows PostgreSQL may merge two ranges of ids, 2,000 tickets and the 4,200
# tasks beside them, in the count and in the page, after it has looked for the range's end.
A_LIST = 15_000
ODD = 100
FEW = 1_000
MORE = 1.05
# SQLite counts the steps of its program, those of a row's CHECK at each update among them.
UNIT = {"postgresql": 1, "mysql": 1, "sqlite": 30}
GROWS = {
    "pq_queue purge": "It looks at every task once.",
    "pq_task list --key-prefix": "It sorts all that begin so, or reads past those that do not.",
    "pq_user list": "MariaDB sorts the rows that someone has entered.",
}


HOT = [scenario for scenario in STORE if scenario.tasks <= 100]


def allowed(scenario):
    """Return what may be read however much is stored: so much a task, or a list's bounds."""
    listed = scenario in COMMANDS or scenario in PAGES
    rows = A_LIST if listed else A_TASK * scenario.tasks + ODD
    return rows * UNIT[connection.vendor]


def steady(scenarios):
    """Return those of which it is promised."""
    return [scenario for scenario in scenarios if scenario.name not in GROWS]


@tag("thorough")
class GrowthTests(ScaleTestCase):
    """The same acts with a quarter of the tasks and with all of them."""

    @classmethod
    def fill(cls):
        cls.filling.grow(SCALE // 4)
        refresh()
        cls.few = {scenario.name: measured(scenario) for scenario in ALL}
        cls.filling.grow(SCALE - SCALE // 4)
        refresh()
        cls.many = {scenario.name: measured(scenario) for scenario in ALL}
        if os.environ.get("PERFECTQUEUE_SCALE"):
            cls.tell()

    @classmethod
    def tell(cls):
        """Say what was read, and in how many seconds, with a quarter of the tasks and with all."""
        for name, many in cls.many.items():
            few = cls.few[name]
            line = f"{name:32}{few.rows:10,}{many.rows:10,}{few.seconds:9.4f}{many.seconds:9.4f}"
            sys.stderr.write(line + "\n")

    def test_what_the_store_reads(self):
        self.check(STORE + EDITS + ROUSE)

    def test_what_the_commands_read(self):
        self.check(COMMANDS)

    def test_what_the_admin_reads(self):
        self.check(PAGES)

    def test_no_table_is_gone_through_from_end_to_end(self):
        """A plan may say so of a look at a few rows, or of a table as small as the batch."""
        for scenario in steady(STORE + EDITS + ROUSE + PAGES):
            for reading in self.many[scenario.name].readings:
                with self.subTest(f"{scenario.name}: {' '.join(reading.sql.split())[:60]}"):
                    rows = reading.rows if reading.scans else 0
                    most = A_TASK * scenario.tasks + FEW
                    self.assertLessEqual(rows, most * UNIT[connection.vendor], reading.plan)

    def check(self, scenarios):
        for scenario in steady(scenarios):
            with self.subTest(scenario.name):
                few, many = self.few[scenario.name], self.many[scenario.name]
                most = max(allowed(scenario), few.rows * MORE + ODD)
                self.assertLessEqual(many.rows, most, many.worst())


@tag("thorough")
class ShareTests(ScaleTestCase):
    """Whatever nearly all of the tasks are, what the workers do costs the same."""

    def test_hardly_any_of_another_status(self):
        self.filling.busy = 20
        for status in ("finished", "waiting", "scheduled", "running", "failed"):
            self.filling.clear()
            self.filling.grow(SCALE // 2, mostly(status))
            refresh()
            for scenario in HOT:
                with self.subTest(f"{scenario.name}, mostly {status}"):
                    meter = measured(scenario)
                    self.assertLessEqual(meter.rows, allowed(scenario), meter.worst())


@tag("thorough")
class StatisticsTests(ScaleTestCase):
    """
    A server that has not looked at the tables for long, or never, finds the same ways.

    Only the shares it may read through, which are as many as someone has entered.
    """

    def test_statistics_of_empty_tables(self):
        self.filling.clear()
        refresh()
        with not_counting():
            self.filling.grow(SCALE)
            self.check()

    def test_no_statistics(self):
        self.filling.clear()
        forget()
        with not_counting():
            self.filling.grow(SCALE)
            self.check()

    def check(self):
        for scenario in HOT:
            with self.subTest(scenario.name):
                meter = measured(scenario)
                meter.leave_out("perfectqueue_fairshare")
                self.assertLessEqual(meter.rows, allowed(scenario), meter.worst())
