"""Write what tasks got, and whose had to wait for more."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any, NamedTuple

from django.db import connections
from django.db.backends.utils import CursorWrapper as Cursor

from django_perfectqueue.models import WAIT_BUCKETS, Bucket

from ..arithmetic.entitlement import bucket_of
from ..database.dialects import Dialect
from ..database.transaction import is_callers, reading, repeated, unit

MOST_ROWS = 1_000
ROWS_A_STATEMENT = 500

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)

TABLE = "perfectqueue_usage"
KEY = ("queue", "span", "start", "others", "user")
SEEN = ("eager", "paused", "capped", "limited")
WAITS = tuple(f"wait_{number}" for number in range(WAIT_BUCKETS))
AMOUNTS = ("ended", "seconds", "entitled", *SEEN, "longest", *WAITS)

SUM = "{old} + {new}"
ONCE = "CASE WHEN {new} > {old} THEN {new} ELSE {old} END"
LATEST = "{new}"

CLOCK = "SELECT {now}"
WAITING = """
WITH RECURSIVE "line" AS ({waiting_lanes})
SELECT "lane"."queue", "lane"."user", "lane"."held", "lane"."paused", "lane"."max_running",
    "lane"."running"
FROM "line" JOIN "perfectqueue_lane" AS "lane" ON "lane"."id" = "line"."lane"
LIMIT %(limit)s
"""


class UsageKey(NamedTuple):
    """A user in a queue, or with ``others`` those who have no row of their own."""

    queue: str
    others: bool
    user: str


@dataclass(slots=True)
class Tally:
    """What one user got within some time; see the model for what each is."""

    ended: int = 0
    seconds: float = 0.0
    entitled: float = 0.0
    eager: int = 0
    paused: int = 0
    capped: int = 0
    limited: int = 0
    longest: float = 0.0
    waits: list[int] = field(default_factory=lambda: [0] * WAIT_BUCKETS)

    @classmethod
    def of(cls, amounts: Iterable[Any]) -> Tally:
        """Return one from the columns of AMOUNTS; sums come as decimals from some databases."""
        ended, seconds, entitled, *counts = amounts
        eager, paused, capped, limited = map(int, counts[:4])
        waits = list(map(int, counts[5:]))
        seen = eager, paused, capped, limited, float(counts[4])
        return cls(int(ended), float(seconds), float(entitled), *seen, waits)

    def amounts(self) -> tuple[float, ...]:
        *figures, waits = astuple(self)
        return (*figures, *waits)

    def wait(self, *waits: float) -> None:
        """Count tasks that have waited so many seconds each."""
        for seconds in waits:
            self.waits[bucket_of(seconds)] += 1
        self.longest = max([self.longest, *waits])

    def add(self, other: Tally) -> None:
        for name in ("ended", "seconds", "entitled", *SEEN):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.longest = max(self.longest, other.longest)
        for number, count in enumerate(other.waits):
            self.waits[number] += count


Tallies = Mapping[UsageKey, Tally]


def clock(*, using: str, now: datetime | None = None) -> datetime:
    """Return the time of the database server."""
    with reading(using) as (cursor, dialect):
        return dialect.moment(dialect.execute(cursor, CLOCK, now=now).fetchone()[0])


def start_of(span: int, moment: datetime) -> datetime:
    """Return when the span began that this moment is in."""
    return moment - (moment - EPOCH) % timedelta(seconds=int(span))


def folded(tallies: Tallies, most: int) -> dict[UsageKey, Tally]:
    """
    Return so many tallies, and what is in the others under the name of the others.

    Those stay that received most, or were entitled to it.
    """

    def size(usage_key: UsageKey) -> tuple[bool, float, UsageKey]:
        tally = tallies[usage_key]
        return usage_key.others, -max(tally.seconds, tally.entitled), usage_key

    kept: dict[UsageKey, Tally] = {}
    for number, usage_key in enumerate(sorted(tallies, key=size)):
        if number < most and not usage_key.others:
            kept[usage_key] = tallies[usage_key]
        else:
            others = UsageKey(usage_key.queue, others=True, user="")
            kept.setdefault(others, Tally()).add(tallies[usage_key])
    return kept


@repeated
def add_usage(tallies: Tallies, *, using: str, at: datetime) -> None:
    """
    Add to what is known of the slice in which ``at`` is, by the server's clock.

    On PostgreSQL the last second of it may be lost in a crash of the server. Unlike other
    verbs this does harm if it is repeated after an answer was lost: it would count twice.
    """
    write_slice(tallies, using=using, at=at)


def write_slice(tallies: Tallies, *, using: str, at: datetime) -> None:
    lasting = is_callers(connections[using])
    with unit(using) as (cursor, dialect):
        if dialect.asynchronous_commit and not lasting:
            dialect.execute(cursor, "SELECT 1" + dialect.asynchronous_commit)
        write(cursor, dialect, Bucket.SLICE, start_of(Bucket.SLICE, at), tallies, SUM)


@repeated
def note_waiting(*, using: str, now: datetime | None = None, limit: int = MOST_ROWS) -> int:
    """
    Note in the present slice who has tasks waiting, and what for; return how many lanes that is.

    At most ``limit`` lanes are looked at; where there are more, that is noted for the others
    of their queues.
    """
    with reading(using) as (cursor, dialect):
        statement = WAITING.replace("{waiting_lanes}", dialect.waiting_lanes())
        rows = dialect.execute(cursor, statement, {"limit": limit + 1}).fetchall()
        if not rows:
            return 0
    tallies: dict[UsageKey, Tally] = {}
    for queue, user, held, paused, max_running, running in rows[:limit]:
        tally = tallies.setdefault(UsageKey(queue, others=False, user=user), Tally())
        word = standing(bool(held), paused, max_running, running)
        setattr(tally, word, 1)
    if len(rows) > limit:
        for queue in {row[0] for row in rows}:
            tallies[UsageKey(queue, others=True, user="")] = Tally(eager=1)
    write_slice(tallies, using=using, at=clock(using=using, now=now))
    return len(rows[:limit])


def standing(is_held: bool, paused: bool, max_running: int | None, running: int) -> str:
    """Return why tasks of a lane wait: there are others, or it is held back."""
    if paused:
        return "paused"
    if max_running is not None and running >= max_running:
        return "capped"
    return "limited" if is_held else "eager"


def write(
    cursor: Cursor, dialect: Dialect, span: int, start: datetime, tallies: Tallies, how: str
) -> None:
    """
    Store tallies of one span. With ``how`` being SUM they are added to those that are there,
    but of what was seen, and of the longest wait, the larger is kept; with LATEST they take
    their place.

    Rows are written in the order of their key, so two writers never wait in a ring.
    """
    changes = dict.fromkeys(AMOUNTS, how)
    if how == SUM:
        changes.update(dict.fromkeys((*SEEN, "longest"), ONCE))
    clause = dialect.upsert(TABLE, KEY, changes)
    columns = ", ".join(f'"{column}"' for column in (*KEY, *AMOUNTS))
    everyone = sorted(tallies)
    for first in range(0, len(everyone), ROWS_A_STATEMENT):
        rows, values = [], {"start": dialect.parameter(start)}
        for number, usage_key in enumerate(everyone[first : first + ROWS_A_STATEMENT]):
            values[f"q{number}"], values[f"u{number}"] = usage_key.queue, usage_key.user
            others = "TRUE" if usage_key.others else "FALSE"
            amounts = ", ".join(map(repr, tallies[usage_key].amounts()))
            rows.append(
                f"(%(q{number})s, {int(span)}, %(start)s, {others}, %(u{number})s, {amounts})"
            )
        statement = f'INSERT INTO "{TABLE}" ({columns}) VALUES {", ".join(rows)} {clause}'
        dialect.execute(cursor, statement, values)
