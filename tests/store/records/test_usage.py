from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from unittest import mock

from django.db import connection
from django.db.models import Sum
from django.test import TestCase, TransactionTestCase
from django.test.utils import CaptureQueriesContext

from django_perfectqueue import store
from django_perfectqueue.models import Account, Bucket, FairShare, Limit, Usage
from django_perfectqueue.queue import Queue
from django_perfectqueue.store.records import Tally, UsageKey
from django_perfectqueue.store.records.usage import start_of
from tests.factories import NOON, acquire, after, submit, submit_many

DAYS = 86_400.0


def usage_key(user, queue="default"):
    return UsageKey(queue, others=False, user=user)


def add(at=NOON, queue="default", **seconds):
    """Book so many seconds for each user."""
    tallies = {
        usage_key(user, queue): Tally(ended=1, seconds=float(n)) for user, n in seconds.items()
    }
    store.records.add_usage(tallies, using="default", at=at)


def note(now=NOON, **options):
    return store.records.note_waiting(using="default", now=now, **options)


def sum_up(now, keep=30 * DAYS):
    store.records.roll_up(using="default", keep=keep, now=now)


def shares(over="hour", now=NOON, **options):
    return {share.user: share for share in Queue().shares(over, now=now, **options)}


def spans(span):
    return list(Usage.objects.filter(span=span).order_by("start").values_list("start", flat=True))


class AddTests(TestCase):
    def test_what_several_processors_write_adds_up(self):
        add(ann=2)
        add(after(1), ann=3, bob=1)

        ann = Usage.objects.get(user="ann")
        self.assertEqual((ann.seconds, ann.ended, ann.start, ann.span), (5.0, 2, NOON, 60))
        self.assertEqual(Usage.objects.count(), 2)

    def test_each_wait_is_counted_in_its_bucket(self):
        tally = Tally(waits=[0] * 28)
        tally.waits[0], tally.waits[27] = 2, 1
        for _time in range(2):
            store.records.add_usage({usage_key("ann"): tally}, using="default", at=NOON)

        ann = Usage.objects.get()
        self.assertEqual((ann.wait_0, ann.wait_1, ann.wait_27), (4, 0, 2))

    def test_the_longest_wait_is_kept_and_reported(self):
        """Of three that waited for 1.1 s none waited longer, though their bucket ends at 2 s."""
        for at, waits in ((NOON, (1.1, 1.1)), (NOON, (1.05,)), (after(70), (0.2,))):
            tally = Tally(ended=1, seconds=1.0)
            for wait in waits:
                tally.wait(wait)
            store.records.add_usage({usage_key("ann"): tally}, using="default", at=at)
        longest = Usage.objects.filter(span=60).order_by("start").values_list("longest", flat=True)
        self.assertEqual(list(longest), [1.1, 0.2])
        for summed in (False, True):
            if summed:
                store.records.roll_up(using="default", keep=None, now=after(5_000))
            with self.subTest(summed=summed):
                [share] = Queue().shares("day", now=after(5_200))
                self.assertEqual(share.p95, 1.1)

    def test_users_are_distinguished_byte_for_byte(self):
        names = ["ann", "Ann", "ann ", "änn", "it's", 'quo"te', "per%cent", "back\\slash", ""]
        for _time in range(2):
            add(**dict.fromkeys(names, 1))

        self.assertEqual(set(Usage.objects.values_list("user", "seconds")), {(n, 2) for n in names})

    def test_a_thousand_users_cost_a_few_statements(self):
        with CaptureQueriesContext(connection) as queries:
            add(**{f"user-{number}": 1 for number in range(1_000)})

        self.assertEqual(Usage.objects.count(), 1_000)
        self.assertLessEqual(len(queries), 6)

    def test_a_minute_begins_every_sixty_seconds(self):
        moment = NOON + timedelta(seconds=119, microseconds=999_999)
        self.assertEqual(start_of(60, moment), after(60))
        self.assertEqual(start_of(3_600, moment), NOON)

    def test_the_clock_is_the_servers(self):
        self.assertEqual(store.records.clock(using="default", now=NOON), NOON)
        self.assertIsNotNone(store.records.clock(using="default").utcoffset())


class NoteTests(TestCase):
    def seen(self):
        columns = ("eager", "paused", "capped", "limited")
        return {row.user: [c for c in columns if getattr(row, c)] for row in Usage.objects.all()}

    def test_it_tells_who_competes_and_who_is_held_back(self):
        for user, limits in (("ann", {}), ("bob", {"paused": True}), ("cem", {"max_running": 1})):
            FairShare.objects.create(user=user, **limits)
            submit_many(3, user=user)
        submit(user="dan", key="only")
        acquire(4)
        self.assertEqual(Account.objects.get(user="dan").running, 1)

        note()
        self.assertEqual(self.seen(), {"ann": ["eager"], "bob": ["paused"], "cem": ["capped"]})

    def test_who_waits_for_others_behind_an_open_gate_competes(self):
        Limit.objects.create(scope="name", name="free", max_running=9)
        Limit.objects.create(scope="name", name="full", max_running=0)
        for user, limit in (("ann", "free"), ("bob", "full")):
            submit_many(2, user=user, limits=[limit])
        acquire()
        note()

        seen = {usage.user: (usage.eager, usage.limited) for usage in Usage.objects.all()}
        self.assertEqual(seen, {"ann": (1, 0), "bob": (0, 1)})

    def test_what_was_seen_twice_in_a_minute_counts_once(self):
        submit_many(2)
        acquire()
        note()
        note(after(59))
        note(after(60))

        self.assertEqual(list(Usage.objects.values_list("eager", flat=True)), [1, 1])

    def test_with_nothing_to_do_nothing_is_written(self):
        self.assertEqual(note(), 0)
        self.assertFalse(Usage.objects.exists())

    def test_of_too_many_it_is_reported_that_there_are_more(self):
        for number in range(4):
            submit(user=f"user-{number}")
        submit()
        acquire()

        self.assertEqual(note(limit=2), 2)
        self.assertEqual(Usage.objects.filter(others=False).count(), 2)
        self.assertEqual(Usage.objects.get(others=True).eager, 1)


class BalanceTests(TestCase):
    """What users received and were entitled to, over some minutes."""

    def setUp(self):
        FairShare.objects.create(user="bob", weight=3)
        for user in ("ann", "bob"):
            submit_many(3, user=user)
        acquire(2)

    def test_those_who_compete_are_entitled_by_weight(self):
        add(ann=5, bob=5)
        note()

        found = shares()
        self.assertEqual((found["ann"].received, found["bob"].received), (0.5, 0.5))
        self.assertEqual((found["ann"].entitled, found["bob"].entitled), (0.25, 0.75))
        self.assertEqual(found["bob"].difference, -0.25)
        self.assertEqual(
            (found["bob"].weight, found["bob"].waiting, found["bob"].running), (3, 1, 2)
        )

    def test_who_does_not_wait_is_entitled_to_what_it_got(self):
        add(ann=1, bob=9)

        self.assertEqual(shares()["bob"].entitled, 0.9)

    def test_time_when_one_was_alone_is_no_debt(self):
        add(ann=10)
        note(after(60))
        add(after(60), ann=5, bob=5)

        found = shares(now=after(65))
        self.assertEqual(
            (found["ann"].entitled_seconds, found["bob"].entitled_seconds), (12.5, 7.5)
        )

    def test_who_waits_in_vain_is_reported(self):
        add(ann=10)
        note()

        bob = shares()["bob"]
        self.assertEqual((bob.received, bob.entitled, bob.tasks, bob.p50), (0.0, 0.75, 0, None))
        self.assertEqual(bob.held, "")

    def test_who_is_paused_is_reported_and_entitled_to_nothing(self):
        Account.objects.filter(user="bob").update(paused=True)
        add(ann=10)
        note()

        bob = shares()["bob"]
        self.assertEqual((bob.entitled, bob.held, bob.waiting), (0.0, "paused", 1))

    def test_a_cap_is_all_that_one_is_entitled_to(self):
        Account.objects.filter(user="bob").update(max_running=3)
        add(ann=360, bob=20)
        note()

        self.assertEqual(shares()["bob"].entitled_seconds, 180.0)

    def test_who_waits_behind_its_cap_is_reported_so(self):
        Account.objects.filter(user="bob").update(max_running=2)
        add(ann=20, bob=20)
        note()

        bob = shares()["bob"]
        self.assertEqual((bob.entitled_seconds, bob.held, bob.max_running), (20.0, "capped", 2))

    def test_who_reaches_its_cap_now_and_then_is_held_by_it(self):
        """
        Between two tasks of its none runs for a moment.
        """
        add(ann=15, bob=5)
        note()
        Account.objects.filter(user="bob").update(max_running=2)
        note()

        bob = shares()["bob"]
        self.assertEqual((bob.entitled_seconds, bob.held), (5.0, "capped"))

    def test_where_more_wait_than_are_looked_at_all_who_got_time_have_waited(self):
        add(ann=5, bob=5)
        note(limit=1)

        self.assertEqual(shares()["ann"].entitled, 0.25)

    def test_those_beyond_the_top_are_summed_up(self):
        add(ann=1, bob=3, cem=6)

        found = Queue().shares(top=1, now=NOON)
        self.assertEqual([(one.user, one.others) for one in found], [("cem", False), ("", True)])
        self.assertAlmostEqual(sum(one.received for one in found), 1.0)
        self.assertEqual(found[1].tasks, 2)

    def test_one_user_is_asked_for(self):
        add(ann=1, bob=3)

        [ann, others] = Queue().shares(user="ann", now=NOON)
        self.assertEqual((ann.user, ann.received), ("ann", 0.25))
        self.assertTrue(others.others)

    def test_queues_are_apart(self):
        add(ann=1)
        add(queue="reports", ann=5)

        self.assertEqual([s.seconds for s in Queue("reports").shares(now=NOON)], [5.0])

    def test_nothing_yet_is_an_empty_list(self):
        self.assertEqual(Queue().shares(now=NOON), [])

    def test_an_unknown_window_is_refused(self):
        with self.assertRaisesMessage(ValueError, "over is 'minute', 'hour' or 'day', not 'week'."):
            Queue().shares("week")

    async def test_the_async_twin_tells_the_same(self):
        self.assertEqual(await Queue().ashares(now=NOON), [])

    def test_what_waits_is_counted_no_further_than_a_thousand(self):
        submit_many(1_100, user="ann")
        add(ann=1)

        self.assertEqual(shares()["ann"].waiting, 1_001)


class WindowTests(TestCase):
    """The same is reported before and after minutes are summed up."""

    def test_what_is_older_than_the_window_is_left_out(self):
        add(after(-70), ann=1)
        add(after(-60), ann=2)
        add(after(-5), ann=4)

        self.assertEqual(shares("minute")["ann"].seconds, 6.0)
        self.assertEqual(shares("hour")["ann"].seconds, 7.0)

    def test_summing_up_changes_no_figure(self):
        submit_many(9, user="ann")
        submit_many(9, user="bob")
        acquire()
        now = after(8_000)
        for number in range(130):
            add(after(number * 60), ann=number % 7, bob=1)
            if number % 3:
                note(after(number * 60))
        before = {over: Queue().shares(over, now=now) for over in ("minute", "hour", "day")}

        for _round in range(10):
            sum_up(now)
        self.assertEqual(len(set(spans(Bucket.HOUR))), 2)
        self.assertEqual(len(set(spans(Bucket.MINUTE))), 60)

        for over, reported in before.items():
            for one, two in zip(reported, Queue().shares(over, now=now), strict=True):
                with self.subTest(over=over, user=one.user):
                    self.assertEqual((one.tasks, one.seconds), (two.tasks, two.seconds))
                    self.assertAlmostEqual(one.entitled, two.entitled)

    def test_a_minute_goes_to_its_hour_when_it_is_an_hour_old(self):
        add(after(540), ann=1)
        add(after(600), ann=2)

        sum_up(after(600 + 61 * 60))
        self.assertEqual((len(spans(Bucket.MINUTE)), spans(Bucket.HOUR)), (2, []))
        sum_up(after(600 + 62 * 60))
        self.assertEqual((len(spans(Bucket.MINUTE)), spans(Bucket.HOUR)), (1, [NOON]))
        sum_up(after(1_200 + 62 * 60))
        self.assertEqual((len(spans(Bucket.MINUTE)), spans(Bucket.HOUR)), (0, [NOON]))
        self.assertEqual(Usage.objects.get(span=Bucket.HOUR).seconds, 3.0)

    def test_long_ago_and_after_a_rest_nothing_is_left_out(self):
        add(after(0), ann=1)
        add(after(9 * 3_600), ann=2)

        for _round in range(3):
            sum_up(after(9 * 3_600 + 5_000))
        self.assertEqual(spans(Bucket.HOUR), [NOON, after(9 * 3_600)])
        self.assertEqual(shares("day", now=after(36_000))["ann"].seconds, 3.0)

    def test_what_is_old_goes(self):
        add(ann=1)
        for now, hours in ((after(5_000), 1), (after(30 * DAYS), 1), (after(30 * DAYS + 1), 0)):
            sum_up(now)
            self.assertEqual((len(spans(Bucket.MINUTE)), len(spans(Bucket.HOUR))), (0, hours))

    def test_a_user_that_only_waited_and_a_type_that_only_ended_are_summed_up(self):
        """No minute is deleted before, whatever its rows are."""
        submit_many(2)
        acquire()
        note()
        counts = defaultdict(Tally)
        store.records.count_endings(counts, [("reports", "ann", "type", "finished")])
        types = {key: tally for key, tally in counts.items() if key.type}
        store.records.add_usage(types, using="default", at=NOON)
        sum_up(after(3 * 3_600))

        summed = Usage.objects.filter(span=Bucket.HOUR).values_list("queue", "eager", "finished")
        self.assertCountEqual(summed, [("default", 1, 0), ("reports", 0, 1), ("reports", 0, 1)])
        self.assertEqual(spans(Bucket.MINUTE), [])

    def test_of_too_many_users_those_with_little_are_summed_up_as_others(self):
        """What they were entitled to stays, as bob's tasks have waited."""
        for user in ("ann", "bob", "cem"):
            submit_many(3, user=user)
        acquire()
        add(ann=9, bob=2, cem=1)
        note()
        before = shares("hour", now=after(80))["ann"].entitled
        with mock.patch("django_perfectqueue.store.records.usage.MOST_ROWS", 1):
            for _host in range(2):
                sum_up(after(75))

        self.assertEqual(Usage.objects.filter(span=Bucket.MINUTE).count(), 2)
        found = Queue().shares("hour", now=after(80))
        self.assertEqual(
            [(one.user, one.others, one.seconds, one.tasks) for one in found],
            [("ann", False, 9.0, 1), ("", True, 3.0, 2)],
        )
        self.assertAlmostEqual(found[0].entitled, before)


class SubmittedTests(TestCase):
    """Counted from the ids of tasks a minute later, so that a submit pays nothing for it."""

    def look(self, newest, now=NOON):
        return store.records.count_submitted(newest, using="default", now=now)

    def submitted(self, span=Bucket.TOTAL):
        rows = Usage.objects.filter(span=span).exclude(queue="").order_by("queue", "start")
        return list(rows.values_list("queue", "submitted"))

    def test_each_task_is_counted_once_by_queue_however_many_look(self):
        submit_many(3)
        submit(queue="mail")
        newest = self.look(0)
        self.assertEqual(self.submitted(), [])
        submit(queue="mail")
        for _host in range(2):
            self.look(newest)
        self.assertEqual(self.submitted(), [("default", 3), ("mail", 1)])
        self.look(self.look(newest), after(60))
        self.assertEqual(self.submitted(), [("default", 3), ("mail", 2)])
        self.assertEqual(self.submitted(Bucket.MINUTE), [("default", 3), ("mail", 2)])
        sum_up(after(5_000))
        self.assertEqual(self.submitted(Bucket.HOUR), [("default", 3), ("mail", 2)])

    def test_each_task_is_counted_in_its_minute_or_some_minutes_ago(self):
        for seconds in (-7_200, -3_600, 0, 30, 60, 100):
            submit(now=after(seconds))
        self.look(self.look(0), after(130))
        self.assertEqual(self.submitted(), [("default", 6)])
        minutes = [("default", 2), ("default", 2), ("default", 2)]
        self.assertEqual(self.submitted(Bucket.MINUTE), minutes)
        starts = Usage.objects.filter(span=Bucket.MINUTE).order_by("start")
        self.assertEqual(
            list(starts.values_list("start", flat=True)), [after(-480), NOON, after(60)]
        )

    def test_a_look_that_finds_nothing_new_is_one_statement(self):
        submit()
        newest = self.look(self.look(0))
        with self.assertNumQueries(1):
            self.look(newest)

    def test_what_was_purged_before_it_was_first_counted_is_no_part_of_it(self):
        submit_many(5)
        newest = self.look(0)
        Queue().clear()
        submit_many(2)
        self.look(newest)
        self.assertEqual(self.submitted(), [])
        self.look(self.look(newest))
        self.assertEqual(self.submitted(), [("default", 2)])

    def test_many_are_counted_from_some_of_them(self):
        submit_many(240)
        submit_many(160, queue="mail")
        with (
            mock.patch("django_perfectqueue.store.records.usage_read.COUNTED", 100),
            CaptureQueriesContext(connection) as queries,
        ):
            self.look(self.look(0))
        self.assertEqual(self.submitted(), [("default", 240), ("mail", 160)])
        self.assertLessEqual(len(queries), 9)


class SeveralHostsTests(TransactionTestCase):
    def test_what_processors_write_and_hosts_move_at_once_is_there_once(self):
        submit_many(30)
        newest = store.records.count_submitted(0, using="default")
        users = [f"user-{number}" for number in range(20)]
        for minute in range(15):
            add(after(60 * minute), **dict.fromkeys(users, 1))

        def act(number):
            try:
                if number % 3:
                    add(after(4_990 + number % 5), **dict.fromkeys(users, 1))
                else:
                    store.records.count_submitted(newest, using="default")
                    sum_up(after(5_000))
            finally:
                connection.close()

        with ThreadPoolExecutor(6) as pool:
            list(pool.map(act, range(30)))
        # A host passes over what another one moves.
        sum_up(after(5_000))
        sum_up(after(5_000))
        rows = Usage.objects.filter(type="").values("user").annotate(got=Sum("seconds"))
        self.assertEqual({row["user"]: row["got"] for row in rows}, dict.fromkeys(users, 35.0))
        self.assertEqual(len(set(spans(Bucket.MINUTE))), 1)
        total = Usage.objects.get(span=Bucket.TOTAL, queue="default")
        self.assertEqual(total.submitted, 30)


class FoldTests(TestCase):
    def test_each_queue_has_its_others_and_nothing_is_lost(self):
        tallies = {usage_key(f"u{n}", queue): Tally(seconds=n) for n in range(5) for queue in "ab"}

        kept = store.records.folded(tallies, 3)
        self.assertEqual(
            [key for key in kept if not key.others][:2],
            [usage_key("u4", "a"), usage_key("u4", "b")],
        )
        self.assertEqual(sum(tally.seconds for tally in kept.values()), 20)
        self.assertEqual(sum(key.others for key in kept), 2)
