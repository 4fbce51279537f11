"""Take due tasks under a lease, in fair order."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any

from django.db import connections

from ..models import State
from .accounts import Accounts
from .alarms import BATCH, answer_alarms, answer_ringing, rouse
from .claim import Claim
from .dialects import Dialect
from .dialects.base import numbers
from .finish import close
from .lanes import next_picks
from .lineup import RINGS, Lineup
from .transaction import REPEATS, Tries, is_callers, pauses, reading, recalled, repeated, unit
from .values import Completion, Lease

ROUNDS = 5
OTHERS = 6
ROUNDS_IN_VAIN = 20

LEFT = f"""
SELECT {RINGS},
    EXISTS (
        SELECT 1 FROM "perfectqueue_lane"
        WHERE "queue" IN ({{queues}}) AND "open" = TRUE AND EXISTS (
            SELECT 1 FROM "perfectqueue_ticket" AS "ticket"
            WHERE "ticket"."state" = 0 AND {{in_lane}}
        )
    )
"""
TAKEN = """
SELECT "task_id", "attempt", "holder", "state" FROM "perfectqueue_ticket"
WHERE "task_id" IN ({ids}) ORDER BY "task_id"
"""


def acquire(
    queues: Sequence[str],
    *,
    limit: int,
    alive_time: float,
    holder: int,
    using: str,
    now: datetime | None = None,
    finished: Sequence[Completion] = (),
    refused: list[Completion] | None = None,
    worker: str = "",
) -> list[Lease]:
    """
    Take up to ``limit`` due tasks, in the order in which they should run.

    Queues are tried in the order given. An empty answer means that nothing is due that
    may run. ``finished`` are tasks to be closed in the same transaction; those of them
    that finish() would have refused are added to ``refused``.
    """
    terms: dict[str, Any] = {
        "limit": limit,
        "alive_time": alive_time,
        "holder": holder,
        "using": using,
        "now": now,
    }
    haul = take(queues, finished=finished, worker=worker, heed=True, **terms)
    if refused is not None:
        refused += haul.refused
    more = haul.ringing
    if more:
        more = answer_ringing(using=using, now=now)
        haul = take(queues, **terms)
    leases = press_on(queues, haul, more=more, **terms)
    return leases or take_when_quiet(queues, **terms)


def press_on(
    queues: Sequence[str],
    haul: Haul,
    *,
    more: bool,
    using: str,
    now: datetime | None,
    **terms: Any,
) -> list[Lease]:
    """Take again while nothing was taken and something has been cleared from the way."""
    contended, roused = 0, BATCH
    while not haul.leases:
        if haul.contended and contended < REPEATS:
            contended += 1
        elif more:
            more = answer_alarms(using=using, now=now)
        elif not haul.advanced and (roused < BATCH or not (roused := rouse(using=using))):
            break
        haul = take(queues, using=using, now=now, **terms)
    return haul.leases


def take_when_quiet(
    queues: Sequence[str], *, using: str, now: datetime | None, **terms: Any
) -> list[Lease]:
    """
    Take once no alarm rings and no lane is open.

    Someone else may be answering an alarm or waking a lane right now, and what that will
    make ready is due: so the last look comes after theirs.
    """
    waits = islice(pauses(), OTHERS)
    while True:
        ringing, is_open = what_is_left(queues, using=using, now=now)
        if not (ringing or is_open):
            return []
        wait = next(waits, None) if ringing else None
        time.sleep(wait or 0.0)
        more = answer_alarms(using=using, now=now)
        haul = take(queues, using=using, now=now, **terms)
        leases = press_on(queues, haul, more=more, using=using, now=now, **terms)
        if leases or wait is None:
            return leases


@repeated
def what_is_left(queues: Sequence[str], *, using: str, now: datetime | None) -> tuple[bool, bool]:
    """Tell whether an alarm rings, and whether a task may be taken, both at one moment."""
    names = {f"queue{number}": queue for number, queue in enumerate(queues)}
    statement = LEFT.replace("{queues}", ", ".join(f"%({name})s" for name in names))
    with reading(using) as (cursor, dialect):
        in_lane = dialect.in_lane.replace("{lane}", '"perfectqueue_lane"."id"')
        statement = statement.replace("{in_lane}", in_lane)
        ringing, is_open = dialect.execute(cursor, statement, names, now=now).fetchone()
    return bool(ringing), bool(is_open)


@dataclass(frozen=True, slots=True)
class Haul:
    """
    What one transaction took and refused.

    Where it took nothing, ``ringing`` tells that an alarm has to be answered first,
    ``advanced`` that it has cleared away what stood before others, and ``contended`` that
    others held or filled lanes that it has passed over.
    """

    leases: list[Lease]
    refused: list[Completion]
    ringing: bool
    advanced: bool
    contended: bool


@recalled
def take(
    tries: Tries,
    queues: Sequence[str],
    *,
    limit: int,
    alive_time: float,
    holder: int,
    using: str,
    now: datetime | None,
    finished: Sequence[Completion] = (),
    worker: str = "",
    heed: bool = False,
) -> Haul:
    """
    Take tasks in one transaction; with ``heed`` none while an alarm rings.

    What it writes may be lost in a crash of the server unless it finishes tasks: they are
    then taken again.
    """
    taken: list[Lease] = []
    refused: list[Completion] = []
    lasting = bool(finished) or is_callers(connections[using])
    with unit(using) as (cursor, dialect):
        for lost in tries.doubtful:
            if left := still_held(cursor, dialect, lost.leases):
                return Haul(left, lost.refused, lost.ringing, lost.advanced, lost.contended)
        accounts = Accounts()
        if finished:
            refused = close(cursor, dialect, accounts, finished, worker=worker, now=now)
        lineup = Lineup(cursor, dialect, accounts, heed=heed, lasting=lasting, now=now)
        claim = Claim(
            cursor=cursor,
            dialect=dialect,
            accounts=accounts,
            using=using,
            holder=holder,
            alive_time=alive_time,
            now=now,
        )
        search = Search(lineup, claim, accounts)
        for queue in queues:
            if len(taken) < limit and not lineup.ringing:
                taken += search.in_queue(queue, limit - len(taken))
        slept = accounts.write(cursor, dialect)
        advanced = claim.expired > 0 or (search.stopped and slept > 0)
        haul = Haul(taken, refused, lineup.ringing, advanced, lineup.contended)
        if taken:
            tries.commits(haul)
    return haul


def still_held(cursor: Any, dialect: Dialect, leases: list[Lease]) -> list[Lease]:
    """
    Return which of these were taken indeed, by a try that got no answer, and are held yet.

    Their rows are locked whatever is in them: so a commit that is still under way is
    waited for.
    """
    ids = numbers(lease.task_id for lease in leases)
    statement = TAKEN.replace("{ids}", ids) + dialect.lock_clause()
    rows = set(dialect.execute(cursor, statement).fetchall())
    return [
        lease
        for lease in leases
        if (lease.task_id, lease.attempt, lease.holder, State.RUNNING) in rows
    ]


@dataclass(slots=True)
class Search:
    """One transaction's search; ``stopped`` tells that it has given up with lanes left."""

    lineup: Lineup
    claim: Claim
    accounts: Accounts
    stopped: bool = False

    def in_queue(self, queue: str, limit: int) -> list[Lease]:
        """Serve lanes until the limit is met or none is left that has a task."""
        lineup, claim = self.lineup, self.claim
        lineup.passed.clear()
        taken: list[Lease] = []
        rounds, vain = 0, False
        while len(taken) < limit and (rounds < ROUNDS or not taken):
            if rounds == ROUNDS_IN_VAIN:
                self.stopped = True
                break
            rounds += 1
            missing, passed, expired = limit - len(taken), len(lineup.passed), claim.expired
            read = lineup.next_with_tasks if vain else lineup.next
            lanes = read(queue, missing)
            if not lanes:
                if lineup.ringing or len(lineup.passed) == passed:
                    break
                vain = True
                continue
            alone = len(lanes) == 1 and not lineup.passed
            picks = next_picks(lanes, missing, holder=claim.holder)
            taken += claim.take(picks, missing, alone=alone)
            short = self.accounts.short & {lane.id for lane in lanes}
            lineup.passed |= short | {lane.id for lane in lanes if lane.room is not None}
            if not short and (taken or claim.expired == expired):
                break
            vain = not taken
        return taken
