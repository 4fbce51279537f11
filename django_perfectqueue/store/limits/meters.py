"""What limits allow, what is counted against them, and which this process knows."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar

from django_perfectqueue.models import FAMILY

from ..arithmetic.fair_order import lane_of
from ..arithmetic.rate_limit import Allowance, covering, families, governing, key_of, may_hold
from ..database.transaction import Session, reading, retry_transaction

R = TypeVar("R")

LIMITS = """
SELECT "scope", "name", "max_running", "rate", "period", "burst", "paused", NULL, {at}
FROM {limits}
"""
NAMED = LIMITS.replace(
    "{limits}", '"perfectqueue_limit" WHERE "scope" IN ({scopes}) AND "name" IN ({names})'
)
# Families are few, and read whole; where there are more, those that may cover a name are asked for.
FEW_FAMILIES = 100
FAMILIES = """(
    SELECT * FROM "perfectqueue_limit" WHERE "ending" = '*' AND "scope" IN ({scopes}) LIMIT {few}
) AS "family"
"""
METERS = """
SELECT "key", "running", "next_at" FROM "perfectqueue_meter"
WHERE "key" IN ({keys}) ORDER BY "key"
"""
# PostgreSQL takes the type of a column from the first of its values that is not NULL.
RULES = f"""{NAMED} UNION ALL
SELECT '', "key", "running", NULL, NULL, NULL, NULL, "next_at", {{at}} FROM "perfectqueue_meter"
WHERE "key" IN ({{keys}})
UNION ALL {LIMITS.replace("{limits}", FAMILIES)}"""
# How many run behind a limit, and when the next start is that keeps to its rate.
Counts = dict[str, tuple[int, datetime | None]]
# What a limit says: max_running, rate, period, burst, paused; and the time.
Said = Sequence[Any]

MAKE = 'INSERT INTO "perfectqueue_meter" ("key", "running") VALUES {rows} {unless}'
COUNT = """
UPDATE "perfectqueue_meter" SET "running" = "running" + CASE "key" {running} END{next_at}
WHERE "key" IN ({keys})
"""


def allowances(db: Session, keys: Collection[str], *, lock: bool = False) -> dict[str, Allowance]:
    """
    Return what these limits allow, those that exist.

    With ``lock`` no one else changes what is counted until this transaction ends; the
    meters are locked in the order of their keys.
    """
    if not keys:
        return {}
    held: Counts = {}
    ahead = db.unanswered
    if lock and db.dialect.one_writer:
        make(db, keys)
    elif lock and ahead.cursor is db.cursor:
        # A caller's transaction may see only what was counted before it began.
        held = locked(db, keys)
    elif lock:
        make(ahead, keys)
        ahead.execute(METERS + db.dialect.lock_clause, keys=sorted(keys))
    # The locks may have been waited for: what limits say is read after them.
    counted, rows = read_rules(db, keys)
    counted |= held
    if lock and len(counted) < len(keys):
        # One was deleted between the two.
        return allowances(db, keys, lock=True)
    return {key: allowance(db, row, *counted.get(key, (0, None))) for key, row in rows.items()}


def allowance(db: Session, row: Said, running: int, next_at: datetime | None) -> Allowance:
    max_running, rate, period, burst, paused, at = row
    moment = db.dialect.moment(at)
    return Allowance(
        # MariaDB returns decimals where a UNION has signed and unsigned numbers.
        max_running=None if max_running is None else int(max_running),
        interval=period / float(rate) if rate else 0.0,
        burst=int(burst or rate or 1),
        paused=bool(paused),
        running=int(running),
        ahead=(db.dialect.moment(next_at) - moment).total_seconds() if next_at else 0.0,
        moment=moment,
    )


def of_keys(keys: Collection[str], rows: Mapping[str, R]) -> dict[str, R]:
    """Return which of these rows, by their own keys, holds for each key, where there is one."""
    known = families(rows)
    held = ((key, governing(key, rows, known)) for key in keys)
    return {key: rows[by] for key, by in held if by is not None}


def scopes_and_names(keys: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return of which scopes and names these keys are; a row with two of others does no harm."""
    pairs = [key.partition(":")[::2] for key in keys]
    return sorted({scope for scope, _name in pairs}), sorted({name for _scope, name in pairs})


def read_rules(db: Session, keys: Collection[str]) -> tuple[Counts, dict[str, Said]]:
    """Return what is counted behind these keys, and the rows of the limits that hold for them."""
    counted: Counts = {}
    rows: dict[str, Said] = {}
    scopes, names = scopes_and_names(keys)
    parts: dict[str, Any] = {"at": db.dialect.moving_clock if db.now is None else "{now}"}
    parts |= {"few": str(FEW_FAMILIES), "scopes": scopes}
    found = db.rows(RULES, **parts, keys=sorted(keys), names=names)
    if sum(name.endswith(FAMILY) for _scope, name, *_row in found) >= FEW_FAMILIES:
        found += db.rows(NAMED, **parts, names=covering(names))
    for scope, name, *row, next_at, at in found:
        if scope:
            rows[f"{scope}:{name}"] = [*row, at]
        else:
            counted[name] = row[0], next_at
    return counted, of_keys(keys, rows)


def make(db: Session, keys: Collection[str]) -> None:
    """Make those of these meters that are missing."""
    names = {f"k{number}": key for number, key in enumerate(sorted(keys))}
    values = ", ".join([f"(%({name})s, 0)" for name in names])
    unless = db.dialect.upsert("perfectqueue_meter", ["key"], {})
    db.execute(MAKE, names, rows=values, unless=unless)


def locked(db: Session, keys: Collection[str]) -> Counts:
    """Return what is counted, which no one else can change; make the rows that are missing."""
    # First what is missing, as allowances() does: else the two may wait for each other.
    make(db, keys)
    rows = db.rows(METERS + db.dialect.lock_clause, keys=sorted(keys))
    counted = {key: (running, next_at) for key, running, next_at in rows}
    return counted if len(counted) == len(keys) else locked(db, keys)


@dataclass(slots=True)
class Meters:
    """
    What one transaction counts against limits.

    Meters are locked before lanes, all that it needs at once, in the order of their keys.
    ``before`` is how many ran behind each limit, and how many it let start, when it was
    locked. ``starts_back`` is how many tasks go on later, whose start a rate is not to count twice.
    """

    running: Counter[str] = field(default_factory=Counter)
    known: dict[str, Allowance] = field(default_factory=dict)
    locked: set[str] = field(default_factory=set)
    before: dict[str, tuple[int, int]] = field(default_factory=dict)
    starts_back: Counter[str] = field(default_factory=Counter)

    def lock(self, db: Session, keys: Collection[str]) -> dict[str, Allowance]:
        """Return what these limits allow; no one else changes it until this transaction ends."""
        if fresh := set(keys) - self.locked:
            self.locked |= fresh
            found = allowances(db, fresh, lock=True)
            self.known |= found
            self.before |= {key: (limit.running, limit.room) for key, limit in found.items()}
        return self.known

    def write(self, db: Session) -> None:
        keys = sorted(key for key in self.running if self.running[key])
        if not keys:
            return
        self.lock(db, keys)
        known = self.known
        for key, starts in self.starts_back.items():
            if key in known:
                known[key].ahead = max(0.0, known[key].ahead - starts * known[key].interval)
        names = {f"k{number}": key for number, key in enumerate(keys)}
        running = [f"WHEN %({name})s THEN {self.running[key]}" for name, key in names.items()]
        values: dict[str, object] = dict(names)
        moments = []
        for name, key in names.items():
            if key in known and known[key].interval:
                values[f"at_{name}"] = db.dialect.parameter(known[key].next_at)
                moments.append(f"WHEN %({name})s THEN %(at_{name})s")
        next_at = f', "next_at" = CASE "key" {" ".join(moments)} ELSE "next_at" END'
        next_at = next_at if moments else ""
        db.unanswered.execute(COUNT, values, keys=keys, running=" ".join(running), next_at=next_at)
        # What they are once this transaction is committed.
        for key, limit in known.items():
            limit.running = self.before[key][0] + self.running[key]

    def freed(self) -> set[str]:
        """Return the limits that let tasks start after this transaction, and did not before."""
        return {key for key, limit in self.known.items() if limit.room and not self.before[key][1]}


# Which limits there are, as far as this process has heard.


FRESH = 1.0
# In seconds, where there are no limits: until then a task may be moved when it is acquired.
FRESH_WITHOUT = 30.0
MOST = 1_000
MOST_ASKED = 10_000

FIRST = 'SELECT "scope", "name" FROM "perfectqueue_limit" LIMIT %(limit)s'


@dataclass(slots=True)
class Heard:
    """
    What holds ``until`` a time: the keys of all limits, and the families of them, or where
    there are more than MOST, of each key that was asked for whether a limit holds for it.
    """

    until: float
    keys: frozenset[str]
    families: Sequence[str]
    all: bool
    asked: dict[str, bool] = field(default_factory=dict)


heard: dict[str, Heard] = {}


def lane_behind(queue: str, type_: str, user: str, names: Iterable[str], *, using: str) -> int:
    """Return the lane of a task's user, behind all limits known to hold for the task."""
    return lane_of(queue, user, limits_of(queue, type_, user, names, using=using))


def limits_of(
    queue: str, type_: str, user: str, names: Iterable[str], *, using: str
) -> tuple[str, ...]:
    """Return the keys of the limits that exist for a task, sorted, as known_limits() has heard."""
    known = heard.get(using)
    if known and known.all and not known.keys and time.monotonic() < known.until:
        return ()
    return tuple(sorted(known_limits(may_hold(queue, type_, user, names), using=using)))


def known_limits(keys: Collection[str], *, using: str) -> set[str]:
    """
    Return which of these limits exist; it is asked for anew once a second, and where there are
    none, each half minute.

    It spares a task that is submitted a move to another lane, which it otherwise gets when
    it is acquired. So what has been missed does no harm.
    """
    known = heard.get(using)
    if known is None or time.monotonic() >= known.until:
        known = heard[using] = first_limits(using=using)
    if known.all:
        return {key for key in keys if governing(key, known.keys, known.families)}
    if unknown := [key for key in keys if key not in known.asked]:
        if len(known.asked) > MOST_ASKED:
            known.asked.clear()
        found = existing(unknown, using=using)
        known.asked.update((key, key in found) for key in unknown)
    return {key for key in keys if known.asked.get(key)}


@retry_transaction
def first_limits(*, using: str) -> Heard:
    with reading(using) as db:
        rows = db.rows(FIRST, {"limit": MOST + 1})
    keys = frozenset(key_of(scope, name) for scope, name in rows)
    until = time.monotonic() + (FRESH if keys else FRESH_WITHOUT)
    return Heard(until, keys, families(keys), all=len(rows) <= MOST)


@retry_transaction
def existing(keys: Collection[str], *, using: str) -> set[str]:
    with reading(using) as db:
        return set(read_rules(db, keys)[1])


def forget_limits(using: str) -> None:
    """Ask for them anew the next time."""
    heard.pop(using, None)
