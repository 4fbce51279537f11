"""What each user of a queue was entitled to, what it received, and how long its tasks waited."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta

from django_perfectqueue import store
from django_perfectqueue.models import EVERYONE, Account, Bucket, FairShare
from django_perfectqueue.store.arithmetic.entitlement import percentile
from django_perfectqueue.store.database.transaction import reading, with_retries
from django_perfectqueue.store.records import Tally, UsageKey
from django_perfectqueue.store.records.usage import Tallies, start_of
from django_perfectqueue.store.records.usage_read import USERS, Standing, received, standings

WINDOWS = {
    "minute": (timedelta(minutes=1), Bucket.MINUTE),
    "hour": (timedelta(hours=1), Bucket.MINUTE),
    "day": (timedelta(days=1), Bucket.HOUR),
}
COUNTED = 1_000
MOST, KNOWN = 50, 100
LINES = 1_000
WAITING = "waiting"


@dataclass(frozen=True, slots=True, kw_only=True)
class UserShare:
    """
    One user's part of the processor time of a queue within a window of time.

    ``received`` and ``entitled`` are parts of all that was given, from 0 to 1; ``seconds``
    and ``entitled_seconds`` the same in seconds. ``tasks`` is how many attempts ended.
    ``p50`` and ``p95`` are the seconds that half and 95 % of them waited at most, from
    when they were due until they started; None where none did.

    ``running``, ``waiting``, ``weight`` and ``max_running`` are as of now; what waits is
    counted up to 1,000, and 1,001 says that there is more. ``held`` is why tasks waited
    that were not competing: "paused", "capped" or "limited", or "".

    With ``others`` it sums up all users that are not listed.
    """

    user: str = ""
    others: bool = False
    weight: float = 1.0
    max_running: int | None = None
    running: int = 0
    waiting: int = 0
    held: str = ""
    tasks: int = 0
    seconds: float = 0.0
    entitled_seconds: float = 0.0
    received: float = 0.0
    entitled: float = 0.0
    p50: float | None = None
    p95: float | None = None

    @property
    def difference(self) -> float:
        """What it received above what it was entitled to, as a part of all; below 0 if less."""
        return self.received - self.entitled


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """The shares of a queue within a window of time, and what they add up to."""

    queue: str
    since: datetime
    until: datetime
    shares: list[UserShare]
    total: UserShare


def balance(
    queue: str,
    *,
    over: str,
    using: str,
    top: int | None = None,
    user: str | None = None,
    also: Collection[str] = (),
    among: Collection[str] | None = None,
    by: str = "received",
    now: datetime | None = None,
) -> Balance:
    """
    Return what each user received in the last minute, hour or day.

    Those who received most come first, or ``by`` "waiting" those of whom most waits. Beyond
    ``top``, or but for the ``user`` that was asked for, all are summed up as the others. The window
    begins with a whole minute, of the last day with a whole hour, so it is longer by up to one of
    them. The users in ``also`` are listed even beyond ``top``, or if they received nothing; where
    users are given as ``among``, the others are left out.

    Raise ValueError for another window.
    """
    if over not in WINDOWS:
        raise ValueError(f"over is 'minute', 'hour' or 'day', not {over!r}.")

    def read() -> Balance:
        until = now or store.records.clock(using=using)
        length, unit = WINDOWS[over]
        since = start_of(unit, until - length)
        with reading(using) as db:
            found = received(db, queue, since, until + timedelta(seconds=1), USERS)
        line = [*also, *(users_in_line(queue, using=using) if by == WAITING else ())]
        tallies = {UsageKey(queue, others=False, user=name): Tally() for name in line} | found
        if among is not None:
            tallies = {key: tallies[key] for key in tallies if not key.others and key.user in among}
        total = Tally.sum(tallies.values())
        with reading(using) as db:
            first = standings(db, queue, line, COUNTED) if by == WAITING else {}
            chosen, rest = parted(tallies, top, user, {*also}, first)
            facts = standings(db, queue, [key.user for key in chosen], COUNTED)
        shares = [
            share(tally, total, facts.get(key.user), user=key.user) for key, tally in chosen.items()
        ]
        if rest:
            shares.append(share(Tally.sum(rest.values()), total, others=True))
        every = share(total, total, others=True)
        return Balance(queue=queue, since=since, until=until, shares=shares, total=every)

    return with_retries(read, using=using)


def parted(
    tallies: Tallies, top: int | None, user: str | None, also: set[str], line: dict[str, Standing]
) -> tuple[dict[UsageKey, Tally], dict[UsageKey, Tally]]:
    """Return the tallies to list, those of whom most is waiting and the largest first; the rest."""

    def size(key: UsageKey) -> tuple[float, float, float, str]:
        tally, waiting = tallies[key], line.get(key.user, {}).get("waiting", 0)
        return -waiting, -tally.seconds, -tally.entitled, key.user

    named = sorted([k for k in tallies if not k.others and user in (None, k.user)], key=size)
    listed = {*named[:top], *(key for key in named if key.user in also)}
    chosen = {key: tallies[key] for key in named if key in listed}
    return chosen, {key: tally for key, tally in tallies.items() if key not in chosen}


def share(
    tally: Tally,
    total: Tally,
    standing: Standing | None = None,
    *,
    user: str = "",
    others: bool = False,
) -> UserShare:
    return UserShare(
        held=held(tally),
        tasks=tally.ended,
        seconds=tally.seconds,
        entitled_seconds=tally.entitled,
        received=tally.seconds / total.seconds if total.seconds else 0.0,
        entitled=tally.entitled / total.seconds if total.seconds else 0.0,
        p50=percentile(tally.waits, 0.5, tally.longest),
        p95=percentile(tally.waits, 0.95, tally.longest),
        user=user,
        others=others,
        **(standing or {}),
    )


def held(tally: Tally) -> str:
    """Return what held its tasks back, unless in more minutes they might have started."""
    reasons = {"paused": tally.paused, "capped": tally.capped, "limited": tally.limited}
    reason = max(reasons, key=lambda word: reasons[word])
    return reason if reasons[reason] >= max(1, tally.eager) else ""


def known_users(queue: str, *, using: str) -> list[str]:
    """
    Return up to KNOWN users of a queue: first those who are paused or have a share of their own,
    then those with a line, in the order of service.
    """
    shares = FairShare.objects.using(using).filter(queue__in=[queue, ""]).exclude(user=EVERYONE)
    named = shares.order_by("-paused", "-user").values_list("user", flat=True)[:KNOWN]
    found = with_retries(lambda: [*named, *users_in_line(queue, using=using)], using=using)
    return list(dict.fromkeys(found))[:KNOWN]


def users_in_line(queue: str, *, using: str) -> list[str]:
    """Return the users of the first lines of a queue, in the order of service."""
    lines = Account.objects.using(using).filter(queue=queue).order_by("-ready", "turn")
    return list(lines.values_list("user", flat=True)[:LINES])
