"""When a schedule's ticks come: of a cron expression or an interval, without a database."""

from __future__ import annotations

import functools
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from itertools import chain, islice, takewhile
from typing import TYPE_CHECKING, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from django_perfectqueue.exceptions import ConfigError, InvalidScheduleError
from django_perfectqueue.lib.checks import nearest

if TYPE_CHECKING:
    from cronsim import CronSim

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
SECOND = timedelta(seconds=1)
WEEK = timedelta(days=7)
# So many passed ticks are counted; beyond that the latest are sought from the end.
MOST_STEPS = 20_000

IsDue = Callable[[datetime], bool]

NICKNAMES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}


class Passed(NamedTuple):
    """Ticks that have come: those to look at, how many were left out before, the next one."""

    ticks: list[datetime]
    omitted: int
    next_tick: datetime | None


@dataclass(frozen=True, slots=True)
class TickTiming:
    """
    The sequence of a schedule's ticks, in UTC, from ``starts_at`` to ``ends_at``.

    Either a ``cron`` expression of five fields, six with seconds first, or a nickname, which
    is read in ``zone``; or ``every`` so many seconds, counted from ``starts_at``, or else from
    1970. At a change of clocks cron does what Debian's does: an expression with fixed minutes
    and hours comes once, at the end of a gap if its time is in it; one whose minute or hour
    begins with ``*`` follows the clock, in both passes of an hour that comes twice.
    """

    cron: str = ""
    every: float | None = None
    zone: str = "UTC"
    starts_at: datetime | None = None
    ends_at: datetime | None = None

    def after(self, moment: datetime) -> Iterator[datetime]:
        """
        Yield the ticks that are later than a moment.

        Raise InvalidScheduleError for an unknown zone or an invalid expression, ConfigError
        where cronsim is not installed.
        """
        if self.starts_at is not None:
            moment = max(moment, self.starts_at - timedelta(microseconds=1))
        ticks = self._intervals(moment, self.every) if self.every else self._crons(moment)
        for tick in ticks:
            if self.ends_at is not None and tick > self.ends_at:
                return
            yield tick

    def first_after(self, moment: datetime) -> datetime | None:
        """Return the first tick that is later than a moment, or None if none is."""
        return next(self.after(moment), None)

    def _intervals(self, moment: datetime, every: float) -> Iterator[datetime]:
        step, anchor = timedelta(seconds=every), self.starts_at or EPOCH
        if step <= timedelta():
            raise InvalidScheduleError(f"An interval is above 0, not {every!r}.")
        number = (moment - anchor) // step + 1
        while True:
            try:
                yield (anchor + number * step).astimezone(timezone.utc)
            except OverflowError:
                return
            number += 1

    def _crons(self, moment: datetime) -> Iterator[datetime]:
        zone = zone_of(self.zone)
        if follows_the_clock(self.cron):
            yield from self._by_the_clock(moment, zone)
            return
        last = moment
        # In the second pass of an hour cronsim may begin with a time of the first.
        for local in simulation(self.cron, moment.astimezone(zone)):
            tick = local.astimezone(timezone.utc)
            if tick > last:
                yield tick
                last = tick

    def _by_the_clock(self, moment: datetime, zone: ZoneInfo) -> Iterator[datetime]:
        # At a change of half an hour cronsim leaves times out, so each offset is simulated apart.
        last = begin = moment.astimezone(timezone.utc)
        while True:
            offset = offset_of(last, zone)
            for local in simulation(self.cron, begin.replace(tzinfo=None) + offset):
                tick = (local - offset).replace(tzinfo=timezone.utc)
                change = change_between(last, tick, zone)
                if change is not None:
                    last, begin = change, change - SECOND
                    break
                yield tick
                last = tick
            else:
                return

    def first_passed(self, first: datetime, is_due: IsDue, most: int) -> Passed:
        """Return up to so many of the ticks that are due, from ``first`` on, which is one."""
        ticks: list[datetime] = []
        for tick in chain([first], self.after(first)):
            if len(ticks) == most or not is_due(tick):
                return Passed(ticks, 0, tick)
            ticks.append(tick)
        return Passed(ticks, 0, None)

    def last_passed(self, first: datetime, is_due: IsDue, keep: int, sure: datetime) -> Passed:
        """
        Return the last ``keep`` of the ticks that are due, from ``first`` on, which is one.

        All ticks until ``sure`` are due. Up to MOST_STEPS of those before are counted.
        """
        kept: deque[datetime] = deque(maxlen=keep)
        omitted = 0
        ticks: Iterator[datetime] = chain([first], self.after(first))
        while (tick := next(ticks, None)) is not None:
            if not is_due(tick):
                return Passed(list(kept), omitted, tick)
            omitted += len(kept) == keep
            kept.append(tick)
            if omitted == MOST_STEPS:
                ticks = self.after(max(tick, self.before_last(sure, keep)))
        return Passed(list(kept), omitted, None)

    def before_last(self, last: datetime, count: int) -> datetime:
        """Return a moment after which so many ticks come until then, or a few more."""
        span = SECOND
        while True:
            since = last - span
            ticks = takewhile(lambda tick: tick <= last, islice(self.after(since), count + 1))
            if sum(1 for _tick in ticks) > count or span > 60 * 366 * 86_400 * SECOND:
                return since
            span *= 2

    def explain(self) -> str:
        """Return the timing in words, in English."""
        if self.every:
            return f"Every {self.every:g} seconds"
        return str(simulation(self.cron, EPOCH).explain())


def jitter_of(name: str, tick: datetime, seconds: float) -> timedelta:
    """Return a wait of up to so many seconds, the same on every host for the same tick."""
    part = zlib.crc32(f"{name}@{tick.timestamp():.6f}".encode()) / 2**32
    return timedelta(seconds=seconds * part)


@functools.lru_cache(maxsize=1_000)
def zone_of(name: str) -> ZoneInfo:
    """
    Return a time zone of the IANA database.

    Raise InvalidScheduleError for an unknown one, with the nearest that there is.
    """
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        known = available_timezones()
    if not known:
        raise ConfigError("This host has no time zones. Install the package tzdata.")
    raise InvalidScheduleError(f"There is no time zone '{name}'.{nearest(name, known)}")


def follows_the_clock(cron: str) -> bool:
    """Return whether an expression comes in both passes of an hour that comes twice."""
    fields = NICKNAMES.get(cron, cron).split()
    return len(fields) == 6 or any(field.startswith("*") for field in fields[:2])


def offset_of(moment: datetime, zone: ZoneInfo) -> timedelta:
    return moment.astimezone(zone).utcoffset() or timedelta()


def change_between(first: datetime, last: datetime, zone: ZoneInfo) -> datetime | None:
    """Return the first change of a zone's offset after one moment until another, in UTC."""
    offset = offset_of(first, zone)
    before = after = first.replace(microsecond=0)
    while after < last and offset_of(after, zone) == offset:
        before, after = after, min(last, after + WEEK)
    if offset_of(after, zone) == offset:
        return None
    while after - before > SECOND:
        middle = before + (after - before) // (2 * SECOND) * SECOND
        before, after = (middle, after) if offset_of(middle, zone) == offset else (before, middle)
    return after


def simulation(cron: str, moment: datetime) -> CronSim:
    """
    Return cronsim's iterator over the times after a moment, in the time zone of that.

    Raise InvalidScheduleError for an invalid expression, ConfigError without cronsim.
    """
    try:
        from cronsim import CronSim, CronSimError
    except ImportError:
        raise ConfigError(
            "A cron expression needs cronsim: pip install 'django-perfectqueue[schedules]'."
            " Intervals work without it."
        ) from None
    if cron.startswith("@") and cron not in NICKNAMES:
        raise InvalidScheduleError(f"There is no '{cron}'.{nearest(cron, NICKNAMES)}")
    try:
        return CronSim(NICKNAMES.get(cron, cron), moment)
    except CronSimError as error:
        why = str(error)
        with suppress(CronSimError, IndexError):
            CronSim(" ".join([*cron.split()[:-2], "*", cron.split()[-1]]), moment)
            why = "its months have no such day"
        raise InvalidScheduleError(
            f"The cron expression '{cron}' is wrong: {why}. It has five fields: minute, hour,"
            " day of the month, month, day of the week; or six, with seconds first."
        ) from error
