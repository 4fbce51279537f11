import math
from datetime import date, timedelta
from unittest import mock

from django.test import TestCase

from django_perfectqueue import store
from django_perfectqueue.models import Bucket, Usage
from django_perfectqueue.queue import Queue
from django_perfectqueue.store.records import Tally, UsageKey
from django_perfectqueue.store.records import usage as records
from django_perfectqueue.store.records.usage import all_types_key, type_key
from django_perfectqueue.store.records.usage_read import totals

from ..factories import NOON, after
from ..management.running import run, run_json
from ..waiting import wait_until
from ..worker.workers import WorkerTestCase

HOUR, DAY = 3_600, 86_400
TODAY = NOON.date()


def ran(*seconds, at=NOON, queue="default", type="report", user="ann", word="finished"):
    """Have attempts take so many seconds each and end in one way."""
    keys = (
        UsageKey(queue, others=False, user=user),
        type_key(queue, type),
        all_types_key(queue),
    )
    tallies = {key: Tally(seconds=sum(seconds)) for key in keys}
    for tally in tallies.values():
        tally.run(seconds)
        tally.wait(*[1.0] * len(seconds))
        setattr(tally, word, len(seconds))
    store.records.add_usage(tallies, using="default", at=at)


def roll_up(now, keep=30.0 * DAY):
    store.records.roll_up(using="default", keep=keep, now=now)


def since_ever():
    return totals(["default"], most=100, using="default")


class StatisticsTests(TestCase):
    def test_mean_deviation_and_histogram_are_those_of_the_run_times(self):
        ran(1.0, 2.0, 6.0)
        found = Queue().statistics(now=after(1))

        self.assertEqual((found.day, found.ended, found.finished), (TODAY, 3, 3))
        self.assertEqual((found.run.count, found.run.mean), (3, 3.0))
        self.assertAlmostEqual(found.run.deviation, math.sqrt((4 + 1 + 9) / 3))
        counts = {end: count for end, count in found.run.histogram if count}
        self.assertEqual(counts, {2.0: 1, 4.0: 1, 8.0: 1})
        self.assertEqual((found.wait.mean, found.wait.deviation), (1.0, 0.0))

    def test_they_are_those_of_a_queue_a_type_or_a_user(self):
        ran(1.0, 1.0)
        ran(4.0, type="mail", user="bob", word="failed")
        ran(9.0, queue="other")

        for asked, ended, failed in (
            ({}, 3, 1),
            ({"type": "report"}, 2, 0),
            ({"type": "mail"}, 1, 1),
            ({"user": "bob"}, 1, 1),
            ({"user": "cem"}, 0, 0),
        ):
            with self.subTest(asked):
                found = Queue().statistics(now=after(1), **asked)
                self.assertEqual((found.ended, found.failed), (ended, failed))
        with self.assertRaises(ValueError):
            Queue().statistics(type="mail", user="bob")

    def test_each_attempt_counts_once_however_it_is_summed_up(self):
        for minutes in (-24 * 60, -61, -60, -2, -1, 0):
            ran(1.0, at=after(60 * minutes))
        for now in (after(5), after(70), after(HOUR + 20), after(2 * HOUR), after(DAY)):
            roll_up(now)
            with self.subTest(now=now):
                for asked in ({}, {"type": "report"}, {"user": "ann"}):
                    today = Queue().statistics(TODAY, **asked)
                    before = Queue().statistics(TODAY - timedelta(days=1), **asked)
                    self.assertEqual((today.ended, before.ended), (5, 1))
        self.assertTrue(Usage.objects.filter(span=Bucket.HOUR).exists())

    def test_an_hour_is_kept_for_so_long_and_the_total_for_ever(self):
        ran(1.0)
        roll_up(after(2 * DAY))
        roll_up(after(40 * DAY))

        self.assertEqual(Queue().statistics(TODAY).ended, 0)
        self.assertEqual(set(Usage.objects.values_list("span", flat=True)), {Bucket.TOTAL})
        self.assertEqual([one.ended for one in since_ever().values()], [1, 1])

    def test_since_ever_is_of_all_types_and_of_each(self):
        ran(1.0, 1.0, at=after(-400 * DAY))
        ran(1.0, type="mail", word="retried")
        found = since_ever()

        everything = found[all_types_key("default")]
        self.assertEqual((everything.ended, everything.retried), (3, 1))
        self.assertEqual(found[type_key("default", "mail")].ended, 1)
        self.assertEqual(found[type_key("default", "report")].finished, 2)

    def test_of_very_many_types_the_first_have_totals_and_nothing_is_lost(self):
        with mock.patch.object(records, "MOST_TYPES", 2):
            for number in range(5):
                ran(1.0, type=f"type-{number}", at=after(number))
            roll_up(after(HOUR * 2))

        found = since_ever()
        everything = all_types_key("default")
        self.assertEqual(found[everything].ended, 5)
        self.assertEqual({key.type for key in found.keys() - {everything}}, {"type-0", "type-1"})
        self.assertEqual(Queue().statistics(TODAY).ended, 5)
        hours = Usage.objects.filter(span=Bucket.HOUR, others=False).exclude(type="")
        self.assertEqual(hours.count(), 2)

    def test_types_take_nothing_from_what_users_received(self):
        ran(1.0, 3.0)
        for now in (after(1), after(3 * HOUR)):
            [share] = Queue().shares("day", now=now)
            self.assertEqual((share.user, share.seconds, share.received), ("ann", 4.0, 1.0))
            roll_up(after(3 * HOUR))

    def test_with_nothing_counted_there_are_no_lengths(self):
        found = Queue().statistics(date(2030, 1, 1))
        self.assertEqual((found.ended, found.run.count), (0, 0))
        self.assertIsNone(found.run.mean)


class WorkerStatisticsTests(WorkerTestCase):
    def test_a_worker_counts_every_ending(self):
        self.submit("ok", "echo", user="ann")
        self.submit("bad", "fail", user="ann")
        self.burst(MAX_ATTEMPTS=2, RETRY_WAIT=0)

        found = Queue().statistics()
        self.assertEqual((found.finished, found.retried, found.failed), (1, 1, 1))
        self.assertEqual((found.run.count, found.wait.count, found.ended), (3, 3, 3))
        echo = Queue().statistics(type="echo")
        self.assertEqual((echo.finished, echo.run.count), (1, 1))
        self.assertEqual(Queue().statistics(user="ann").ended, found.ended)

    def test_what_dies_with_its_processor_is_lost(self):
        self.submit("dies", "die-once", user="ann")
        self.burst()

        wait_until(lambda: Queue().statistics(type="die-once").lost == 1)
        found = Queue().statistics(user="ann")
        self.assertEqual((found.finished, found.lost), (1, 1))


class CommandTests(TestCase):
    def test_the_command_shows_the_last_hour_or_day(self):
        ran(1.0, 2.0, 6.0)
        ran(1.0, type="mail", word="failed")
        with mock.patch.object(store.records, "clock", return_value=after(1)):
            [mail, found] = run_json("pq_status", "types")
            shown = run("pq_status", "types", "--over", "day", "--queue", "default")
            self.assertIn("No attempt", run("pq_status", "types", "--queue", "nosuch"))
        self.assertEqual((found["queue"], found["type"]), ("default", "report"))
        self.assertEqual((found["finished"], mail["failed"]), (3, 1))
        self.assertEqual(found["run"]["count"], 3)
        self.assertEqual(found["run"]["histogram"][-1], [None, 0])
        self.assertRegex(shown, r"\ndefault +mail +0 +0 +1 .*\ndefault +report +3 +0 +0 .* 3 ")
