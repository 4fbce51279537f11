"""What each statement reads, as the database itself counts it."""

import json
import re
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain

from django.db import connection

OURS = "perfectqueue_"
NAMES = ("task", "ticket", "attempt", "deadletter", "account", "lane", "fairshare")
BIG = {*NAMES, *(OURS + name for name in NAMES)}
STEPS = 10


@dataclass
class Reading:
    """
    One statement: the rows that it read, and the tables that it went through from end to end.

    On SQLite, which counts no rows, they are steps of its virtual machine. ``pages`` are
    PostgreSQL's.
    """

    sql: str
    rows: int
    scans: set[str]
    plan: str
    pages: int = 0
    seconds: float = 0.0


@dataclass
class Meter:
    """The statements on our tables that ran while it was on."""

    readings: list[Reading] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def rows(self):
        return sum(reading.rows for reading in self.readings)

    @property
    def pages(self):
        return sum(reading.pages for reading in self.readings)

    def leave_out(self, table):
        self.readings = [reading for reading in self.readings if table not in reading.sql]

    def worst(self):
        """Return what to look at: the statement that reads the most, and its plan."""
        if not self.readings:
            return ""
        worst = max(self.readings, key=lambda reading: reading.rows)
        return f"{worst.rows} of them by {' '.join(worst.sql.split())[:600]}\n{worst.plan}"

    @contextmanager
    def on(self):
        measure = MEASURES[connection.vendor]

        def watch(execute, sql, params, many, context):
            if OURS not in sql or many or not sql.lstrip(" (\n").startswith(VERBS):
                return execute(sql, params, many, context)
            with measure(sql, params) as reading:
                start = time.monotonic()
                result = execute(sql, params, many, context)
                reading.seconds = time.monotonic() - start
            self.readings.append(reading)
            self.seconds += reading.seconds
            return result

        with connection.execute_wrapper(watch):
            yield self


VERBS = ("SELECT", "INSERT", "UPDATE", "DELETE", "WITH")


@contextmanager
def on_postgresql(sql, params):
    """Run the statements of a packet once more before, and take them back."""
    plans = []
    with connection.connection.cursor() as cursor:
        cursor.execute("SAVEPOINT scale_look")
        for statement in sql.split("; "):
            cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}", params)
            [[found]] = cursor.fetchall()
            plans.append((json.loads(found) if isinstance(found, str) else found)[0]["Plan"])
        cursor.execute("ROLLBACK TO SAVEPOINT scale_look")
        cursor.execute("RELEASE SAVEPOINT scale_look")
    reading = Reading(sql, 0, set(), json.dumps(plans, indent=1))
    reading.pages = sum(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] for plan in plans)
    for node in chain.from_iterable(map(nodes, plans)):
        if not node["Node Type"].endswith("Scan"):
            continue
        if node.get("Relation Name") in BIG:
            reading.rows += int(touched(node))
            if node["Node Type"] == "Seq Scan" and node["Actual Loops"]:
                reading.scans.add(node["Relation Name"])
        elif node["Node Type"] == "Bitmap Index Scan":
            reading.rows += int(touched(node))
    yield reading


def nodes(plan):
    yield plan
    for part in plan.get("Plans", ()):
        yield from nodes(part)


def touched(node):
    names = ("Actual Rows", "Rows Removed by Filter", "Rows Removed by Index Recheck")
    return sum(node.get(name, 0) for name in names) * node["Actual Loops"]


@contextmanager
def on_mysql(sql, params):
    """Ask for the plans before, and count what the session reads meanwhile."""
    with connection.connection.cursor() as cursor:
        plans = []
        for statement in sql.split(";"):
            cursor.execute(f"EXPLAIN FORMAT=JSON {statement}", params)
            plans.append(cursor.fetchall()[0][0])
        found = [each for plan in plans for each in tables(json.loads(plan))]
        scans = {name for name, access in found if access == "ALL"}
        reading = Reading(sql, 0, scans & BIG, "\n".join(plans))
        before = handled(cursor)
        yield reading
        reading.rows = handled(cursor) - before


def handled(cursor):
    cursor.execute(
        "SHOW SESSION STATUS WHERE Variable_name LIKE 'Handler\\_read%%'"
        " OR Variable_name LIKE 'Handler\\_icp\\_attempts'",
        (),
    )
    counts = dict(cursor.fetchall())
    return sum(int(count) for name, count in counts.items() if name not in OF_TEMPORARY)


OF_TEMPORARY = ("Handler_read_rnd_deleted", "Handler_icp_match")


def tables(part):
    """Yield each table that a plan names, and how it is reached."""
    if isinstance(part, dict):
        if "access_type" in part and "table_name" in part:
            yield part["table_name"], part["access_type"]
        part = list(part.values())
    if isinstance(part, list):
        for inner in part:
            yield from tables(inner)


@contextmanager
def on_sqlite(sql, params):
    """Ask for the plan before, and count the steps of the virtual machine."""
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN QUERY PLAN {sql}", params)
        plan = "\n".join(row[3] for row in cursor.fetchall())
        reading = Reading(sql, 0, set(FULL_SCAN.findall(plan)) & BIG, plan)
        if sql.lstrip(" (\n").startswith("SELECT") or "RECURSIVE" in sql:
            # A query goes on while its rows are fetched.
            with counting(reading):
                cursor.cursor.execute(sql, params)
                cursor.fetchall()
            yield reading
            return
    with counting(reading):
        yield reading


@contextmanager
def counting(reading):
    def step():
        reading.rows += STEPS

    connection.connection.set_progress_handler(step, STEPS)
    try:
        yield
    finally:
        connection.connection.set_progress_handler(None, 0)


FULL_SCAN = re.compile(r"SCAN (\w+)(?! USING)\b(?! USING)")
MEASURES = {"postgresql": on_postgresql, "mysql": on_mysql, "sqlite": on_sqlite}
