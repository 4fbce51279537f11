"""Write what tasks got and how they ended, and whose had to wait for more."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from operator import attrgetter
from typing import Any, NamedTuple

from django_perfectqueue.models import ALL_TYPES, WAIT_BUCKETS, Bucket

from ..arithmetic.entitlement import bucket_of
from ..database.transaction import Session, in_transaction, is_callers, reading, retry_transaction
from ..values import Now

MOST_ROWS = 1_000
MOST_TYPES = 200
ROWS_A_STATEMENT = 500

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)

TABLE = "perfectqueue_usage"
KEY = ("queue", "span", "type", "start", "others", "user")
SEEN = ("eager", "paused", "capped", "limited")
ENDINGS = ("finished", "retried", "failed", "cancelled", "lost")
# The column that counts an attempt, by how it ended; others are counted in none.
COLUMNS = {word: word for word in ENDINGS} | {
    "discarded": "cancelled",
    "preempted": "lost",
    "crashed": "lost",
}
WAITS = tuple(f"wait_{number}" for number in range(WAIT_BUCKETS))
RUNS = tuple(f"run_{number}" for number in range(WAIT_BUCKETS))
WHOLE = ("ended", *ENDINGS, "submitted", *SEEN)
PARTS = ("seconds", "entitled", "lasted", "squares", "waited", "wait_squares", "longest")
AMOUNTS = (*WHOLE, *PARTS, *WAITS, *RUNS)
single_amounts = attrgetter(*WHOLE, *PARTS)

SUM = "{old} + {new}"
LARGEST = "CASE WHEN {new} > {old} THEN {new} ELSE {old} END"

CLOCK = "SELECT {now}"
WAITING = """
WITH RECURSIVE "line" AS ({waiting_lanes})
SELECT "own"."queue", "own"."user", "lane"."held_by", "own"."paused", "own"."max_running",
    "own"."running"
FROM "line" LEFT JOIN "perfectqueue_lane" AS "lane" ON "lane"."id" = "line"."lane"
JOIN "perfectqueue_account" AS "own" ON "own"."id" = COALESCE("lane"."account", "line"."lane")
LIMIT %(limit)s
"""


class UsageKey(NamedTuple):
    """
    A user in a queue, or with ``others`` those who have no row of their own.

    With a ``type`` it is that type, and with ``others``, too, all types.
    """

    queue: str
    others: bool
    user: str
    type: str = ""


def type_key(queue: str, type_: str) -> UsageKey:
    return UsageKey(queue, others=False, user="", type=type_)


def all_types_key(queue: str) -> UsageKey:
    return UsageKey(queue, others=True, user="", type=ALL_TYPES)


def key_for(queue: str, type_: str | None, user: str | None) -> UsageKey:
    """Return the key of a type, of a user, or where both are None of all types."""
    if type_ is not None:
        return type_key(queue, type_)
    if user is not None:
        return UsageKey(queue, others=False, user=user)
    return all_types_key(queue)


@dataclass(slots=True)
class Tally:
    """What one user or type got within some time; see the model for what each is."""

    ended: int = 0
    finished: int = 0
    retried: int = 0
    failed: int = 0
    cancelled: int = 0
    lost: int = 0
    submitted: int = 0
    eager: int = 0
    paused: int = 0
    capped: int = 0
    limited: int = 0
    seconds: float = 0.0
    entitled: float = 0.0
    lasted: float = 0.0
    squares: float = 0.0
    waited: float = 0.0
    wait_squares: float = 0.0
    longest: float = 0.0
    waits: list[int] = field(default_factory=([0] * WAIT_BUCKETS).copy)
    runs: list[int] = field(default_factory=([0] * WAIT_BUCKETS).copy)

    @classmethod
    def of(cls, amounts: Iterable[Decimal | float]) -> Tally:
        """Return one from the columns of AMOUNTS. Sums come as decimals from some databases."""
        values = list(amounts)
        parts, waits = len(WHOLE), len(WHOLE) + len(PARTS)
        counts, histograms = map(int, values[:parts]), [*map(int, values[waits:])]
        sums = map(float, values[parts:waits])
        found: list[Any] = [*counts, *sums, histograms[:WAIT_BUCKETS], histograms[WAIT_BUCKETS:]]
        return cls(*found)

    @classmethod
    def sum(cls, tallies: Iterable[Tally]) -> Tally:
        """Return what all got together, and the longest wait of any of them."""
        some = list(tallies)
        if not some:
            return cls()
        # By columns, since there may be one for each of very many users.
        total = cls.of(map(sum, zip(*[one.amounts() for one in some], strict=True)))
        total.longest = max([one.longest for one in some])
        return total

    def amounts(self) -> tuple[float, ...]:
        """Return the values of AMOUNTS."""
        return (*single_amounts(self), *self.waits, *self.runs)

    def wait(self, *waits: float) -> None:
        """Count tasks that have waited so many seconds each."""
        for seconds in waits:
            self.waits[bucket_of(seconds)] += 1
            if seconds > 0.0:
                self.waited += seconds
                self.wait_squares += seconds * seconds
        self.longest = max([self.longest, *waits])

    def run(self, lasted: Sequence[float]) -> None:
        """Count attempts that have ended after so many seconds each."""
        self.ended += len(lasted)
        for seconds in lasted:
            self.runs[bucket_of(seconds)] += 1
            if seconds > 0.0:
                self.lasted += seconds
                self.squares += seconds * seconds


def count_endings(
    tallies: defaultdict[UsageKey, Tally], endings: Iterable[tuple[str, str, str, str]]
) -> None:
    """Add attempts to the tallies, by queue, user, type, and how they ended."""
    for (queue, user, type_, word), count in Counter(endings).items():
        if column := COLUMNS.get(word):
            for key in (UsageKey(queue, False, user), type_key(queue, type_), all_types_key(queue)):
                setattr(tallies[key], column, getattr(tallies[key], column) + count)


Tallies = Mapping[UsageKey, Tally]


def clock(*, using: str, now: Now = None) -> datetime:
    """Return the time of the database server."""
    with reading(using, now=now) as db:
        return db.dialect.moment(db.execute(CLOCK).fetchone()[0])


def start_of(span: int, moment: datetime) -> datetime:
    """Return when the span began that this moment is in."""
    return moment - (moment - EPOCH) % timedelta(seconds=int(span))


def folded(tallies: Tallies, most: int) -> dict[UsageKey, Tally]:
    """
    Return the tallies of so many users, and of the others under the name of the others.

    Those stay that received most, or were entitled to it. Of the types MOST_TYPES stay; what
    the others got is in the tally of all types.
    """

    def size(usage_key: UsageKey) -> tuple[bool, float, UsageKey]:
        tally = tallies[usage_key]
        return usage_key.others, -max(tally.seconds, tally.entitled), usage_key

    ranked = sorted(tallies, key=size)
    kept: dict[UsageKey, Tally] = {}
    rest: defaultdict[UsageKey, list[Tally]] = defaultdict(list)
    for number, usage_key in enumerate([one for one in ranked if not one.type]):
        if number < most and not usage_key.others:
            kept[usage_key] = tallies[usage_key]
        else:
            others = UsageKey(usage_key.queue, others=True, user="")
            rest[others].append(tallies[usage_key])
    kept |= {others: Tally.sum(some) for others, some in rest.items()}
    types = [one for one in ranked if one.type and not one.others][:MOST_TYPES]
    everything = [one for one in ranked if one.type and one.others]
    return kept | {usage_key: tallies[usage_key] for usage_key in (*types, *everything)}


@retry_transaction
def add_usage(tallies: Tallies, *, using: str, at: datetime) -> None:
    """
    Add to what is known of the minute in which ``at`` is, by the server's clock.

    What types got is added to their totals, too.

    On PostgreSQL the last second of it may be lost in a crash of the server. Unlike other
    verbs this does harm if it is repeated after an answer was lost: it would count twice.
    """
    lasting = is_callers(using)
    with in_transaction(using) as db:
        if db.dialect.asynchronous_commit and not lasting:
            db.execute("SELECT 1" + db.dialect.asynchronous_commit)
        write(db, Bucket.MINUTE, start_of(Bucket.MINUTE, at), tallies)
        types = {usage_key: tally for usage_key, tally in tallies.items() if usage_key.type}
        write(db, Bucket.TOTAL, EPOCH, types)


@retry_transaction
def note_waiting(*, using: str, now: Now = None, limit: int = MOST_ROWS) -> int:
    """
    Note in the present minute who has tasks waiting, and what for; return how many lanes that is.

    At most ``limit`` lanes are looked at; where there are more, that is noted for the others
    of their queues.
    """
    with reading(using) as db:
        rows = db.rows(WAITING, {"limit": limit + 1}, waiting_lanes=db.dialect.waiting_lanes)
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
    add_usage(tallies, using=using, at=clock(using=using, now=now))
    return len(rows[:limit])


def standing(is_held: bool, paused: bool, max_running: int | None, running: int) -> str:
    """Return why tasks of a lane wait: there are others, or it is held back."""
    if paused:
        return "paused"
    if max_running is not None and running >= max_running:
        return "capped"
    return "limited" if is_held else "eager"


def write(db: Session, span: int, start: datetime, tallies: Tallies) -> None:
    """
    Add tallies of one span to those that are there; of the longest wait, and of what was seen
    in a minute, the larger is kept.

    Rows are written in the order of their key, so two writers never wait in a ring.
    """
    largest = ("longest", *SEEN) if span == Bucket.MINUTE else ("longest",)
    changes = {column: LARGEST if column in largest else SUM for column in AMOUNTS}
    clause = db.dialect.upsert(TABLE, KEY, changes)
    columns = ", ".join(f'"{column}"' for column in (*KEY, *AMOUNTS))
    everyone = sorted(tallies)
    for first in range(0, len(everyone), ROWS_A_STATEMENT):
        rows, values = [], {"start": db.dialect.parameter(start)}
        for number, usage_key in enumerate(everyone[first : first + ROWS_A_STATEMENT]):
            values[f"q{number}"], values[f"u{number}"] = usage_key.queue, usage_key.user
            values[f"t{number}"] = usage_key.type
            others = "TRUE" if usage_key.others else "FALSE"
            amounts = ", ".join(map(repr, tallies[usage_key].amounts()))
            rows.append(
                f"(%(q{number})s, {int(span)}, %(t{number})s, %(start)s, {others},"
                f" %(u{number})s, {amounts})"
            )
        statement = f'INSERT INTO "{TABLE}" ({columns}) VALUES {", ".join(rows)} {clause}'
        db.execute(statement, values)
