"""A claim reads little although an old snapshot keeps what was taken since it began."""

import math
from collections import Counter
from contextlib import closing
from datetime import timedelta
from unittest import mock, skipUnless

from django.db import connection, connections, transaction
from django.test import TransactionTestCase
from django.utils import timezone

from django_perfectqueue import store
from django_perfectqueue.fairness.limits import set_limit
from django_perfectqueue.fairness.shares import set_share
from django_perfectqueue.models import Account, State, Ticket
from django_perfectqueue.store.claims.acquire import AHEAD
from django_perfectqueue.store.database.transaction import reading
from django_perfectqueue.store.lanes import wake
from django_perfectqueue.store.values import Watermarks, new_holder
from tests.factories import (
    assert_books_balance,
    completion,
    elsewhere,
    finish_and_acquire,
    submit,
    submit_many,
)

from .meter import Meter

TAKEN = 100_000
PAGES = 100
LEASE = 600.0

FILL = """
WITH "task" AS (
    INSERT INTO "perfectqueue_task" (
        "queue", "key", "type", "user", "data", "priority", "created_at", "run_at", "limits",
        "outcome", "attempt", "worker"
    )
    SELECT 'default', 'dead-' || n, 'report', '', '{}', 0, now(), now(), '', '', 0, ''
    FROM generate_series(1, %s) AS n RETURNING "id", "run_at"
)
INSERT INTO "perfectqueue_ticket" (
    "task_id", "lane", "state", "rank", "run_at", "attempt", "errors", "crashes",
    "cancel_requested", "watched", "last_ending"
)
SELECT "id", %s, 0, 0, "run_at", 0, 0, 0, false, false, 0 FROM "task"
"""
TAKE = """
UPDATE "perfectqueue_ticket" SET "state" = 2, "timer_at" = now() + %s
WHERE "task_id" IN (SELECT "id" FROM "perfectqueue_task" WHERE "key" LIKE 'dead-%%')
"""
DELETE = """
DELETE FROM "perfectqueue_ticket"
WHERE "task_id" IN (SELECT "id" FROM "perfectqueue_task" WHERE "key" LIKE 'dead-%')
"""


def execute(sql, *values):
    with connection.cursor() as cursor:
        cursor.execute(sql, values or None)


keeps_what_is_gone = skipUnless(
    connection.vendor == "postgresql", "Only PostgreSQL keeps entries of what is gone."
)
all_is_slow = mock.patch.multiple(Watermarks, MANY=0, SLOW=0.0, LEAST=600.0, MOST=600.0)


class Pinned(TransactionTestCase):
    """Beside an open snapshot, with a task that was taken before it."""

    def setUp(self):
        self.marks = Watermarks()
        submit("first", now=None)
        [self.first] = self.claim()
        pinned = connections.create_connection("default")
        self.enterContext(closing(pinned))
        with pinned.cursor() as cursor:
            cursor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            cursor.execute("SELECT txid_current()")

    def claim(self, limit=1):
        request = store.values.ClaimRequest(
            queues=["default"],
            limit=limit,
            alive_time=LEASE,
            holder=new_holder(),
            using="default",
            marks=self.marks,
        )
        return store.acquire(request)


@keeps_what_is_gone
@all_is_slow
class OldSnapshotTests(Pinned):
    def take_many(self, ahead=timedelta(minutes=-1)):
        """Have many tickets of the lane taken whose leases end so far ahead, and deleted."""
        execute(FILL, TAKEN, self.first.lane)
        # By statistics of an empty table each ticket could be looked for in all tasks.
        execute('ANALYZE "perfectqueue_task", "perfectqueue_ticket"')
        execute(TAKE, ahead)
        execute(DELETE)
        execute('ANALYZE "perfectqueue_ticket"')

    def take_alone(self):
        request = store.values.ClaimRequest(
            queues=["default"],
            limit=1,
            alive_time=LEASE,
            holder=new_holder(),
            using="default",
            marks=self.marks,
        )
        return store.take_alone(request)

    def fire(self):
        store.schedules.fire_due_timers(using="default", marks=self.marks)

    def look(self):
        return store.look(["default"], using="default", marks=self.marks)

    def pages(self, act):
        """Return how many pages it reads from the start, and then from the marks."""
        meters = []
        self.marks.until = self.marks.timers_until = 0.0
        for _time in range(2):
            with transaction.atomic(), Meter().on() as meter:
                act()
            meters.append(meter.pages)
            self.assertEqual(len(self.claim()), 1)
        return meters

    def test_only_the_first_claim_and_look_read_what_was_taken(self):
        """What was taken is of the lane of what waits, and its leases ended a minute ago."""
        self.take_many()
        submit_many(16, now=None)
        for act in (self.claim, self.fire, self.look, self.take_alone):
            with self.subTest(act.__name__):
                many, few = self.pages(act)
                self.assertGreater(many, 10 * PAGES)
                self.assertLessEqual(few, PAGES)

    def test_a_claim_that_gets_too_little_reads_no_more(self):
        self.take_many()
        submit_many(3, now=None)
        self.claim()
        with transaction.atomic(), Meter().on() as meter:
            self.assertEqual(len(self.claim(10)), 2)
        self.assertLessEqual(meter.pages, PAGES)

    def test_lanes_that_give_their_only_task_sleep_with_that_claim(self):
        submit_many(2, now=None)
        self.claim()
        submit("hers", user="ann", now=None)
        submit("his", user="bob", now=None)
        self.assertEqual(len(self.claim(10)), 3)
        self.assertEqual(Account.objects.filter(user__gt="", has_waiting=True).count(), 0)

    def test_a_claim_that_fires_timers_begins_at_the_marks(self):
        self.take_many()
        submit_many(3, now=None)
        self.claim()
        submit("scheduled", run_at=timezone.now(), now=None)
        with transaction.atomic(), Meter().on() as meter:
            self.assertIn("scheduled", [lease.key for lease in self.claim(10)])
        self.assertLessEqual(meter.pages, 2 * PAGES)

    def test_a_look_from_the_marks_finds_what_has_come_due_since(self):
        self.fire()
        submit("scheduled", run_at=timezone.now(), now=None)
        self.assertTrue(self.look().due)
        self.fire()
        self.assertIsNotNone(self.marks.timers_at)
        self.assertTrue(Ticket.objects.filter(state=0, task__key="scheduled").exists())

    def test_what_stands_before_the_marks_is_taken_from_the_start(self):
        submit_many(4, now=None)
        self.claim()
        elsewhere(lambda: submit("urgent", priority=1, now=None))
        self.assertNotEqual(self.claim()[0].key, "urgent")
        self.assertEqual(len(self.claim(10)), 2)
        self.assertEqual([lease.key for lease in self.claim()], ["urgent"])
        self.assertEqual(self.claim(), [])

    def test_a_claim_that_finds_nothing_behind_them_begins_at_the_start(self):
        submit_many(2, now=None)
        self.claim(2)
        submit("urgent", priority=1, now=None)
        self.assertEqual([lease.key for lease in self.claim()], ["urgent"])

    def committed_late(self):
        """Look at timers, and have one committed that was due long before, beside one due later."""
        self.fire()
        later = timezone.now() + timedelta(hours=1)
        submit("later", run_at=later, now=None)
        submit("late", run_at=timezone.now() - timedelta(minutes=1), now=None)
        Ticket.objects.filter(task__key="late").update(
            state=State.SCHEDULED, timer_at=timezone.now() - timedelta(minutes=1)
        )

    def test_a_claim_that_gets_nothing_looks_at_timers_from_the_start(self):
        self.committed_late()
        self.assertIsNotNone(self.marks.timers_at)
        self.marks.until = 0.0
        self.assertEqual([lease.key for lease in self.claim()], ["late"])
        self.assertEqual(self.claim(), [])

    def test_a_look_that_finds_nothing_due_from_the_marks_is_made_from_the_start(self):
        self.committed_late()
        self.assertTrue(self.look().due)
        self.claim()
        submit_many(2, now=None)
        self.claim(2)
        self.assertFalse(self.look().due)
        elsewhere(lambda: submit("urgent", priority=1, now=None))
        # It does so in a tenth of the time.
        self.marks.back_at = math.inf
        self.assertFalse(self.look().due)
        self.marks.back_at = 0.0
        self.assertTrue(self.look().due)

    def test_looks_at_a_resting_queue_read_little(self):
        """Others than the first, though leases that have ended would end in a minute."""
        self.take_many(timedelta(minutes=1))
        submit_many(2, now=None)
        self.claim(2)
        self.assertFalse(self.look().due)
        self.marks.back_at = math.inf
        with transaction.atomic(), Meter().on() as meter:
            self.assertEqual(self.look().wait, AHEAD)
        self.assertLessEqual(meter.pages, PAGES)

    def test_a_look_reads_each_lane_from_its_mark(self):
        self.take_many()
        submit_many(3, now=None)
        submit_many(3, user="ann", now=None)
        self.claim(4)
        self.assertEqual(len(self.marks.lanes), 2)
        with transaction.atomic(), Meter().on() as meter:
            self.assertTrue(self.look().due)
        self.assertLessEqual(meter.pages, PAGES)


VERSIONS = 5_000
CHARGE_OFTEN = f"""
DO $$ BEGIN FOR n IN 1..{VERSIONS} LOOP
    UPDATE "perfectqueue_account" SET "virtual_time" = n * 0.001 WHERE "user" = 'dan';
    COMMIT;
END LOOP; END $$
"""


@keeps_what_is_gone
@all_is_slow
class ManyVersionsTests(Pinned):
    """Beside the older versions of a user's row, each with a turn of its own."""

    def setUp(self):
        super().setUp()
        for user in ("dan", "ann", "bob", "carl"):
            for number in range(10):
                submit(f"{user}-{number}", user=user, now=None)

    def charge_often(self):
        """Leave many versions before the others, of a user who is paused then."""
        execute(CHARGE_OFTEN)
        Account.objects.filter(user="dan").update(paused=True)
        Account.objects.exclude(user="dan").update(virtual_time=VERSIONS * 0.001)

    def take_some(self, count):
        return [lease.user for _number in range(count) for lease in self.claim()]

    def test_only_the_first_claim_reads_them(self):
        self.charge_often()
        pages = []
        for _number in range(4):
            with transaction.atomic(), Meter().on() as meter:
                self.assertEqual(len(self.claim()), 1)
            pages.append(meter.pages)
        self.assertGreater(pages[0], PAGES)
        self.assertLess(max(pages[1:]), PAGES, pages)

    def test_only_the_first_floor_reads_them(self):
        self.charge_often()
        wake.fronts.clear()
        self.enterContext(mock.patch.object(wake, "MAY_TAKE", 0.0))
        pages = []
        for _number in range(3):
            with transaction.atomic(), reading("default") as db, Meter().on() as meter:
                self.assertGreater(wake.floor(db, "default").virtual_time, 0.0)
            pages.append(meter.pages)
        self.assertGreater(pages[0], PAGES)
        self.assertLess(max(pages[1:]), PAGES, pages)

    def test_all_are_served_and_the_books_balance(self):
        served = Counter(self.take_some(40))
        self.assertEqual(served, dict.fromkeys(("ann", "bob", "carl", "dan"), 10))
        self.assertTrue(self.marks.turns)
        assert_books_balance(self)

    def test_one_who_comes_anew_is_served_beside_them(self):
        self.take_some(20)
        submit("new", user="new", now=None)
        self.assertIn("new", self.take_some(21))
        self.assertTrue(self.marks.turns)

    def test_one_with_a_cap_is_served_again_as_soon_as_its_task_has_ended(self):
        set_share("ann", max_running=1)
        [own] = [lease for lease in self.claim(limit=50) if lease.user == "ann"]
        Account.objects.exclude(user="ann").update(virtual_time=1000.0)
        submit("far", user="bob", now=None)
        self.assertEqual(self.take_some(1), ["bob"])
        taken, _refused = finish_and_acquire([completion(own)], now=None, marks=self.marks)
        self.assertEqual([lease.user for lease in taken], ["ann"])

    def test_one_behind_a_limit_is_served_as_soon_as_that_lets_it(self):
        set_limit("api", max_running=1)
        for number in range(2):
            submit(f"eve-{number}", user="eve", limits=["api"], now=None)
        [own] = [lease for lease in self.claim(limit=50) if lease.user == "eve"]
        Account.objects.exclude(user="eve").update(virtual_time=1000.0)
        submit("far", user="bob", now=None)
        self.assertEqual(self.take_some(1), ["bob"])
        taken, _refused = finish_and_acquire([completion(own)], now=None, marks=self.marks)
        self.assertEqual([lease.user for lease in taken], ["eve"])
