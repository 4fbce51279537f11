"""Ticks where it is easy to lose one: changes of clocks, long absences, and edits."""

from datetime import datetime, timedelta, timezone
from itertools import pairwise, takewhile
from zoneinfo import ZoneInfo

from django.test import SimpleTestCase

from django_perfectqueue.models import Schedule
from django_perfectqueue.store.arithmetic.ticks import TickTiming
from django_perfectqueue.store.schedules import decide, due_time, start_over, timing_of

from .test_schedules import HOUR, MINUTE, NOON, Case

HOURS = set(range(24))
CHANGES = {
    "America/New_York": ("2026-03-08", "2026-11-01"),
    "Europe/Paris": ("2026-03-29", "2026-10-25"),
    "Australia/Lord_Howe": ("2026-10-04", "2026-04-05"),
    "Antarctica/Troll": ("2026-03-29", "2026-10-25"),
    "America/Santiago": ("2026-09-06", "2026-04-05"),
    "Africa/Casablanca": ("2026-03-22", "2026-02-15"),
}
FIXED = {
    "0 2 * * *": ({0}, {2}),
    "15 2 * * *": ({15}, {2}),
    "30 1 * * *": ({30}, {1}),
    "0 0 * * *": ({0}, {0}),
    "30 23 * * *": ({30}, {23}),
    "10,40 1,2 * * *": ({10, 40}, {1, 2}),
}
BY_THE_CLOCK = {
    "*/15 * * * *": ({0, 15, 30, 45}, HOURS),
    "30 * * * *": ({30}, HOURS),
    "* 2 * * *": (set(range(60)), {2}),
    "*/20 1-3 * * *": ({0, 20, 40}, {1, 2, 3}),
    "45 */2 * * *": ({45}, set(range(0, 24, 2))),
}


def minutes(since, until, zone):
    """Yield each minute of a time, with what the clock on the wall shows."""
    while since < until:
        yield since, since.astimezone(ZoneInfo(zone)).replace(tzinfo=None)
        since += MINUTE


def followed(when, since, until, zone):
    """What a cron that looks at the wall each minute runs."""
    return [at for at, wall in minutes(since, until, zone) if is_meant(wall, when)]


def once(when, since, until, zone):
    """What a cron runs that makes up for minutes the wall leaves out, and repeats none."""
    found, seen = [], (since - MINUTE).astimezone(ZoneInfo(zone)).replace(tzinfo=None)
    for at, wall in minutes(since, until, zone):
        new = [seen + number * MINUTE for number in range(1, (wall - seen) // MINUTE + 1)]
        if any(is_meant(minute, when) for minute in new):
            found.append(at)
        seen = max(seen, wall)
    return found


def is_meant(wall, when):
    return wall.minute in when[0] and wall.hour in when[1]


class WallClockTests(SimpleTestCase):
    """Compared with a second cron that goes from minute to minute."""

    def check(self, expressions, expected):
        for zone, days in CHANGES.items():
            for day in days:
                since = datetime.fromisoformat(f"{day}T00:00+00:00") - 24 * HOUR
                until = since + 72 * HOUR
                for cron, when in expressions.items():
                    with self.subTest(zone=zone, day=day, cron=cron):
                        timing = TickTiming(cron=cron, zone=zone)
                        ticks = timing.after(since - timedelta(microseconds=1))
                        found = list(takewhile(until.__gt__, ticks))
                        self.assertEqual(found, expected(when, since, until, zone))
                        for one, following in pairwise(found):
                            self.assertEqual(timing.first_after(one), following)

    def test_fixed_times_come_once(self):
        self.check(FIXED, once)

    def test_wildcards_follow_the_clock_also_where_it_moves_by_half_an_hour(self):
        self.check(BY_THE_CLOCK, followed)

    def test_a_rare_wildcard_comes_in_both_passes_of_its_hour(self):
        timing = TickTiming(cron="*/30 2 25 10 *", zone="Europe/Paris")
        ticks = timing.after(datetime(2026, 1, 1, tzinfo=timezone.utc))
        night = datetime(2026, 10, 25, tzinfo=timezone.utc)
        expected = [night + number * MINUTE for number in (0, 30, 60, 90)]
        self.assertEqual([next(ticks) for _ in expected], expected)


class AbsenceTests(SimpleTestCase):
    def test_a_delayed_schedule_loses_no_tick_that_is_not_yet_due(self):
        for jitter in (0.0, 20.0):
            row = Schedule(name="s", every=1.0, delay=60.0, jitter=jitter, overlap="allow")
            start_over(row, NOON)
            now = NOON + 8 * HOUR
            (tick,) = decide(row, now, None).ticks
            self.assertLessEqual(due_time(row, tick), now)
            self.assertGreater(tick, now - timedelta(seconds=60 + jitter + 2))
            self.assertEqual(row.next_at, timing_of(row).first_after(tick))


class EditTests(Case):
    def test_one_that_has_ended_goes_on_when_it_is_given_more_to_submit(self):
        schedule = self.put(remaining=1, overlap="allow")
        self.fire(NOON + MINUTE)
        self.assertEqual(schedule.row().state, "ended")
        schedule.change(priority=2, now=NOON + 5 * MINUTE)
        self.assertEqual(schedule.row().state, "ended")
        schedule.change(remaining=2, now=NOON + 10 * MINUTE)
        for minute in range(10, 15):
            self.fire(NOON + minute * MINUTE)
        self.assertEqual(self.ticks(), [1, 11, 12])
        self.assertEqual(schedule.row().state, "ended")

    def test_an_edit_does_not_hold_back_the_tick_that_waits(self):
        schedule = self.put(every="1h", overlap="queue_one")
        self.fire(NOON + HOUR)
        self.fire(NOON + 2 * HOUR)
        schedule.change(priority=2, now=NOON + 2 * HOUR)
        self.end(NOON + 2 * HOUR)
        self.fire(NOON + 2 * HOUR + MINUTE)
        self.assertEqual(self.ticks(), [60, 120])

    def test_an_edit_does_not_end_the_wait_of_the_last_tick(self):
        schedule = self.put(every="1h", overlap="queue_one", ends_at=NOON + 2 * HOUR)
        self.fire(NOON + HOUR)
        self.fire(NOON + 2 * HOUR)
        schedule.change(priority=2, now=NOON + 2 * HOUR)
        self.end(NOON + 2 * HOUR)
        self.fire(NOON + 2 * HOUR + MINUTE)
        self.assertEqual(self.ticks(), [60, 120])
