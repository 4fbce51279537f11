"""When ticks come: intervals, cron expressions, time zones and changes of clocks."""

import sys
from datetime import datetime, timedelta, timezone
from itertools import islice
from unittest import mock
from zoneinfo import ZoneInfo

from django.test import SimpleTestCase
from hypothesis import given
from hypothesis import strategies as st

from django_perfectqueue.exceptions import ConfigError, InvalidScheduleError
from django_perfectqueue.store.arithmetic import ticks
from django_perfectqueue.store.arithmetic.ticks import NICKNAMES, TickTiming, jitter_of

UTC = timezone.utc
NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)
ZONES = ("America/New_York", "Europe/Paris", "Australia/Lord_Howe", "Antarctica/Troll",
         "America/Santiago", "Africa/Casablanca")  # fmt: skip


class IntervalTests(SimpleTestCase):
    def test_ticks_are_counted_from_1970_so_that_restarts_do_not_drift(self):
        timing = TickTiming(every=900)
        for seconds in (0.001, 60, 899.999):
            self.assertEqual(
                timing.first_after(NEW_YEAR + timedelta(seconds=seconds)),
                NEW_YEAR + timedelta(minutes=15),
            )
        self.assertEqual(timing.first_after(NEW_YEAR), NEW_YEAR + timedelta(minutes=15))

    def test_ticks_are_counted_from_the_start_where_there_is_one(self):
        starts_at = NEW_YEAR + timedelta(seconds=7)
        timing = TickTiming(every=60, starts_at=starts_at)
        self.assertEqual(timing.first_after(NEW_YEAR), starts_at)
        self.assertEqual(timing.first_after(starts_at), starts_at + timedelta(seconds=60))

    def test_there_is_none_after_the_end(self):
        timing = TickTiming(every=60, ends_at=NEW_YEAR + timedelta(seconds=120))
        self.assertEqual(len(list(timing.after(NEW_YEAR))), 2)

    @given(st.floats(1, 1e9), st.integers(0, 10**9))
    def test_the_next_tick_is_later_and_at_most_one_interval_away(self, every, offset):
        moment = NEW_YEAR + timedelta(seconds=offset)
        first, second = islice(TickTiming(every=every).after(moment), 2)
        self.assertGreater(first, moment)
        self.assertLessEqual(first - moment, timedelta(seconds=every))
        self.assertEqual(second - first, timedelta(seconds=every))


def local(zone, *when, count=3, cron):
    """Return the next ticks after a wall-clock time, as wall-clock times with their offset."""
    at = datetime(*when, tzinfo=ZoneInfo(zone))
    found = islice(TickTiming(cron=cron, zone=zone).after(at), count)
    return [tick.astimezone(ZoneInfo(zone)).strftime("%d %H:%M %z") for tick in found]


class ClockChangeTests(SimpleTestCase):
    """Debian's rule: fixed times once, at the end of a gap; wildcards by the wall clock."""

    def test_new_york(self):
        gap = local("America/New_York", 2026, 3, 7, 12, cron="30 2 * * *")
        self.assertEqual(gap, ["08 03:00 -0400", "09 02:30 -0400", "10 02:30 -0400"])
        twice = local("America/New_York", 2026, 10, 31, 12, cron="30 1 * * *")
        self.assertEqual(twice, ["01 01:30 -0400", "02 01:30 -0500", "03 01:30 -0500"])
        both = local("America/New_York", 2026, 11, 1, 0, 45, cron="*/30 * * * *", count=5)
        self.assertEqual(
            both,
            ["01 01:00 -0400", "01 01:30 -0400", "01 01:00 -0500", "01 01:30 -0500",
             "01 02:00 -0500"],
        )  # fmt: skip
        skipped = local("America/New_York", 2026, 3, 8, 1, 15, cron="*/30 * * * *")
        self.assertEqual(skipped, ["08 01:30 -0500", "08 03:00 -0400", "08 03:30 -0400"])

    def test_one_that_begins_in_the_second_pass_meets_no_time_of_the_first(self):
        second_pass = datetime(2026, 11, 1, 6, 15, tzinfo=UTC)
        timing = TickTiming(cron="30 1 * * *", zone="America/New_York")
        self.assertEqual(timing.first_after(second_pass), datetime(2026, 11, 2, 6, 30, tzinfo=UTC))

    def test_paris(self):
        gap = local("Europe/Paris", 2026, 3, 28, 12, cron="30 2 * * *", count=2)
        self.assertEqual(gap, ["29 03:00 +0200", "30 02:30 +0200"])
        twice = local("Europe/Paris", 2026, 10, 24, 12, cron="30 2 * * *", count=2)
        self.assertEqual(twice, ["25 02:30 +0200", "26 02:30 +0100"])

    def test_lord_howe_by_half_an_hour(self):
        gap = local("Australia/Lord_Howe", 2026, 10, 3, 12, cron="15 2 * * *", count=2)
        self.assertEqual(gap, ["04 02:30 +1100", "05 02:15 +1100"])
        twice = local("Australia/Lord_Howe", 2026, 4, 4, 12, cron="45 1 * * *", count=2)
        self.assertEqual(twice, ["05 01:45 +1100", "06 01:45 +1030"])
        both = local("Australia/Lord_Howe", 2026, 4, 5, 1, 40, cron="*/15 * * * *", count=4)
        self.assertEqual(
            both, ["05 01:45 +1100", "05 01:30 +1030", "05 01:45 +1030", "05 02:00 +1030"]
        )

    def test_troll_by_two_hours(self):
        gap = local("Antarctica/Troll", 2026, 3, 28, 12, cron="30 1 * * *", count=2)
        self.assertEqual(gap, ["29 03:00 +0200", "30 01:30 +0200"])
        twice = local("Antarctica/Troll", 2026, 10, 24, 12, cron="30 1 * * *", count=2)
        self.assertEqual(twice, ["25 01:30 +0200", "26 01:30 +0000"])

    def test_santiago_at_midnight(self):
        gap = local("America/Santiago", 2026, 9, 5, 12, cron="0 0 * * *", count=2)
        self.assertEqual(gap, ["06 01:00 -0300", "07 00:00 -0300"])
        twice = local("America/Santiago", 2026, 4, 4, 12, cron="30 23 * * *", count=2)
        self.assertEqual(twice, ["04 23:30 -0300", "05 23:30 -0400"])

    def test_casablanca_in_ramadan(self):
        back = local("Africa/Casablanca", 2026, 2, 14, 12, cron="30 2 * * *", count=2)
        self.assertEqual(back, ["15 02:30 +0100", "16 02:30 +0000"])
        gap = local("Africa/Casablanca", 2026, 3, 21, 12, cron="30 2 * * *", count=2)
        self.assertEqual(gap, ["22 03:00 +0100", "23 02:30 +0100"])

    @given(
        st.sampled_from(ZONES),
        st.sampled_from(["30 2 * * *", "0 0 * * *", "30 1 * * *", "*/20 * * * *", "15 */2 * * *"]),
        st.integers(0, 365 * 24 * 12),
    )
    def test_the_sequence_is_the_same_wherever_one_begins(self, zone, cron, steps):
        """A cursor that is set from any moment meets the ticks that one set before would."""
        timing = TickTiming(cron=cron, zone=zone)
        moment = NEW_YEAR + steps * timedelta(minutes=5)
        earlier = timing.after(moment - timedelta(days=2))
        expected = next(tick for tick in earlier if tick > moment)
        self.assertEqual(timing.first_after(moment), expected)


class CronTests(SimpleTestCase):
    def test_the_seven_nicknames(self):
        self.assertEqual(len(NICKNAMES), 7)
        for nickname, cron in NICKNAMES.items():
            with self.subTest(nickname=nickname):
                named = TickTiming(cron=nickname).first_after(NEW_YEAR)
                self.assertEqual(named, TickTiming(cron=cron).first_after(NEW_YEAR))

    def test_six_fields_have_the_seconds_first(self):
        found = list(islice(TickTiming(cron="*/20 * * * * *").after(NEW_YEAR), 3))
        self.assertEqual([tick.second for tick in found], [20, 40, 0])

    def test_a_day_with_a_star_and_a_weekday_must_both_match(self):
        (tick,) = islice(TickTiming(cron="0 0 */2 * mon").after(NEW_YEAR), 1)
        self.assertEqual((tick.weekday(), tick.day % 2), (0, 1))

    def test_words_explain_it(self):
        self.assertIn("03:00", TickTiming(cron="0 3 * * mon-fri").explain())
        self.assertEqual(TickTiming(every=900).explain(), "Every 900 seconds")

    def test_without_cronsim_intervals_work_and_cron_says_what_to_install(self):
        with mock.patch.dict(sys.modules, {"cronsim": None}):
            self.assertIsNotNone(TickTiming(every=60).first_after(NEW_YEAR))
            with self.assertRaisesMessage(ConfigError, "django-perfectqueue[schedules]"):
                TickTiming(cron="@daily").first_after(NEW_YEAR)

    def test_without_time_zones_it_says_what_to_install(self):
        ticks.zone_of.cache_clear()
        with (
            mock.patch.object(ticks, "ZoneInfo", side_effect=ticks.ZoneInfoNotFoundError),
            mock.patch.object(ticks, "available_timezones", return_value=set()),
            self.assertRaisesMessage(ConfigError, "tzdata"),
        ):
            ticks.zone_of("Europe/Paris")

    def test_an_unknown_zone_is_refused_with_the_nearest(self):
        with self.assertRaisesMessage(InvalidScheduleError, "Europe/Paris"):
            TickTiming(cron="@daily", zone="Europe/Pariss").first_after(NEW_YEAR)


class PassedTests(SimpleTestCase):
    def passed(self, timing, first, now, keep):
        return timing.last_passed(first, lambda tick: tick <= now, keep, now)

    def test_the_last_ticks_are_returned_and_those_before_counted(self):
        now = NEW_YEAR + timedelta(minutes=10, seconds=30)
        found = self.passed(TickTiming(every=60), NEW_YEAR, now, 2)
        self.assertEqual(found.ticks, [NEW_YEAR + timedelta(minutes=m) for m in (9, 10)])
        self.assertEqual(found.omitted, 9)
        self.assertEqual(found.next_tick, NEW_YEAR + timedelta(minutes=11))

    def test_after_years_it_is_as_quick(self):
        first = NEW_YEAR - timedelta(days=3650)
        for timing in (TickTiming(every=1), TickTiming(cron="* * * * *")):
            with self.subTest(timing=timing):
                first_tick = timing.first_after(first)
                found = self.passed(timing, first_tick, NEW_YEAR, 3)
                self.assertEqual(len(found.ticks), 3)
                self.assertEqual(found.ticks[-1], NEW_YEAR)
                self.assertEqual(found.next_tick, timing.first_after(NEW_YEAR))
                self.assertLess(found.omitted, ticks.MOST_STEPS + 100)

    def test_jitter_is_steady_for_a_tick_and_differs_between_ticks(self):
        later = NEW_YEAR + timedelta(hours=1)
        self.assertEqual(jitter_of("s", NEW_YEAR, 60), jitter_of("s", NEW_YEAR, 60))
        self.assertNotEqual(jitter_of("s", NEW_YEAR, 60), jitter_of("s", later, 60))
        self.assertLess(jitter_of("s", NEW_YEAR, 60), timedelta(seconds=60))
