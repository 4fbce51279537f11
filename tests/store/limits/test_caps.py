"""Caps and limits that change all the time, watched by the database itself at every write."""

import random
import time
from datetime import datetime, timezone

from django.db import connection
from django.test import TransactionTestCase, tag

from django_perfectqueue import store
from django_perfectqueue.models import Account, FairShare, Limit, Meter, Ticket
from django_perfectqueue.queue import Queue
from django_perfectqueue.store.values import new_holder

from ...databases.environment import kind_of
from ...factories import assert_books_balance, completion, finish_and_acquire
from ...waiting import LONG
from ..leases.test_concurrency import Processes, fork

PROCESSORS = 8
SECONDS = 6.0
USERS = ("ann", "bob", "carl")
MOST = 6
SETTLED = 1.0
FIXED = {"name:tenant:0": 1}

TABLES = """
CREATE TABLE watched_lane (lane bigint, running int, cap int)
---
CREATE TABLE watched_meter (name varchar(255), running int, at double precision)
"""
WATCH = {
    "sqlite": """
CREATE TRIGGER watch_lane AFTER UPDATE ON perfectqueue_account
WHEN NEW.running > OLD.running AND NEW.max_running IS NOT NULL
BEGIN INSERT INTO watched_lane VALUES (NEW.id, NEW.running, NEW.max_running); END
---
CREATE TRIGGER watch_meter AFTER UPDATE ON perfectqueue_meter WHEN NEW.running > OLD.running
BEGIN
    INSERT INTO watched_meter
    VALUES (NEW.key, NEW.running, (julianday('now') - 2440587.5) * 86400.0);
END
""",
    "postgresql": """
CREATE FUNCTION watch_lane() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.running > OLD.running AND NEW.max_running IS NOT NULL THEN
        INSERT INTO watched_lane VALUES (NEW.id, NEW.running, NEW.max_running);
    END IF;
    RETURN NEW;
END $$
---
CREATE FUNCTION watch_meter() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.running > OLD.running THEN
        INSERT INTO watched_meter
        VALUES (NEW.key, NEW.running, extract(epoch FROM clock_timestamp()));
    END IF;
    RETURN NEW;
END $$
---
CREATE TRIGGER watch_lane AFTER UPDATE ON perfectqueue_account
FOR EACH ROW EXECUTE FUNCTION watch_lane()
---
CREATE TRIGGER watch_meter AFTER UPDATE ON perfectqueue_meter
FOR EACH ROW EXECUTE FUNCTION watch_meter()
""",
    "mysql": """
CREATE TRIGGER watch_lane AFTER UPDATE ON perfectqueue_account FOR EACH ROW
IF NEW.running > OLD.running AND NEW.max_running IS NOT NULL THEN
    INSERT INTO watched_lane VALUES (NEW.id, NEW.running, NEW.max_running);
END IF
---
CREATE TRIGGER watch_meter AFTER UPDATE ON perfectqueue_meter FOR EACH ROW
IF NEW.running > OLD.running THEN
    INSERT INTO watched_meter
    VALUES (NEW.`key`, NEW.running, UNIX_TIMESTAMP(SYSDATE(6)));
END IF
""",
}
FORGET = {
    "sqlite": "DROP TRIGGER watch_lane --- DROP TRIGGER watch_meter",
    "postgresql": "DROP FUNCTION watch_lane CASCADE --- DROP FUNCTION watch_meter CASCADE",
    "mysql": "DROP TRIGGER watch_lane --- DROP TRIGGER watch_meter",
}


DEADLOCKS = {
    "postgresql": "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()",
    "mariadb": (
        "SELECT variable_value FROM information_schema.global_status"
        " WHERE variable_name = 'Innodb_deadlocks'"
    ),
    "mysql": "SELECT count FROM information_schema.innodb_metrics WHERE name = 'lock_deadlocks'",
}


def deadlocks():
    """Return how many the server has met, or None where it does not know."""
    statement = DEADLOCKS.get(kind_of(connection))
    if statement is None:
        return None
    with connection.cursor() as cursor:
        cursor.execute(statement)
        row = cursor.fetchone()
        return row and int(row[0])


def execute(text):
    with connection.cursor() as cursor:
        for statement in text.split("---"):
            cursor.execute(statement)


def work(stop):
    """Take a few tasks at a time, keep them for a moment, and finish them."""
    holder = new_holder()
    returned = []
    while not stop.is_set():
        held, _refused = finish_and_acquire(
            returned, random.choice([1, 3, 10]), holder=holder, now=None
        )
        time.sleep(random.uniform(0, 0.02))
        returned = [completion(lease, seconds=0.01) for lease in held]
    store.finish(returned, using="default")


def drawn_name():
    return f"tenant:{random.randint(0, 9)}"


def submit_more(stop):
    number = 0
    while not stop.is_set():
        if Ticket.objects.count() < 300:
            Queue().submit_many(
                {
                    "key": f"task-{number + one}",
                    "type": "report",
                    "user": random.choice(USERS),
                    "limits": random.choice([[], ["smtp"], ["api", "smtp"], [drawn_name()]]),
                }
                for one in range(200)
            )
            number += 200
        time.sleep(0.05)


def change_caps(stop):
    while not stop.is_set():
        for user in USERS:
            share = FairShare.objects.get(user=user)
            share.max_running = random.randint(0, MOST)
            share.save()
        time.sleep(0.02)


class Steps:
    """What a limit was, from when on, and until when a processor may take it to be."""

    def __init__(self):
        self.steps = [[0.0, float("inf"), MOST]]

    def change(self, limit, most):
        limit.max_running = most
        began = datetime.now(timezone.utc).timestamp()
        limit.save()
        self.steps[-1][1] = datetime.now(timezone.utc).timestamp() + SETTLED
        self.steps.append([began, float("inf"), most])

    def most(self, at):
        return max(most for since, until, most in self.steps if since <= at <= until)


@tag("thorough")
class CapTests(TransactionTestCase):
    def setUp(self):
        execute(TABLES)
        self.addCleanup(execute, "DROP TABLE watched_lane --- DROP TABLE watched_meter")
        execute(WATCH[connection.vendor])
        self.addCleanup(execute, FORGET[connection.vendor])

    def test_eight_processors_exceed_none_while_they_change(self):
        for user in USERS:
            FairShare.objects.create(user=user, max_running=MOST)
        limit = Limit.objects.create(scope="name", name="smtp", max_running=MOST)
        Limit.objects.create(scope="name", name="api", max_running=2)
        Limit.objects.create(scope="name", name="tenant:*", max_running=2)
        Limit.objects.create(scope="name", name="tenant:0", max_running=1)
        steps, before = Steps(), deadlocks()
        with Processes() as processes:
            stop = fork.Event()
            for _number in range(PROCESSORS):
                processes.start(work, stop)
            processes.start(submit_more, stop)
            processes.start(change_caps, stop)
            began = time.monotonic()
            while time.monotonic() < began + SECONDS or not self.has_seen_enough():
                self.assertLess(time.monotonic(), began + LONG, "Too little was acquired.")
                steps.change(limit, random.choice([0, 1, 3, MOST]))
                time.sleep(1.5 * SETTLED)
            stop.set()

        self.assertEqual([p.exitcode for p in processes.all], [0] * len(processes.all))
        self.assertEqual(deadlocks(), before)
        lanes, meters = self.watched()
        self.assertEqual([seen for seen in lanes if seen[1] > seen[2]], [])
        self.assertEqual([seen for seen in meters if seen[1] > self.cap(steps, *seen)], [])
        self.assertFalse(Account.objects.exclude(running=0).exists())
        self.assertFalse(Meter.objects.exclude(running=0).exists())
        assert_books_balance(self)

    def has_seen_enough(self):
        lanes, meters = self.watched()
        return len(lanes) > 100 and len(meters) > 50

    def cap(self, steps, name, running, at):
        return FIXED.get(name, 2) if name != "name:smtp" else steps.most(at)

    def watched(self):
        with connection.cursor() as cursor:
            cursor.execute("SELECT lane, running, cap FROM watched_lane")
            lanes = cursor.fetchall()
            cursor.execute("SELECT name, running, at FROM watched_meter")
            return lanes, cursor.fetchall()
