"""Take the tickets of those whose turn it is, and fail those whose rows can't be read."""

from __future__ import annotations

import contextlib
import logging
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from django_perfectqueue import signals
from django_perfectqueue.models import Outcome, State

from ..arithmetic.fair_order import Pick, counted
from ..database.transaction import (
    Session,
    in_transaction,
    is_callers,
    may_be_a_row,
    reading,
    retry_transaction,
)
from ..lanes.accounts import Accounts
from ..leases import LINE, TASK, ClaimedRow, in_line, leased
from ..notify.ring import announce_ids
from ..tasks.close import EndedAttempt, add_dead_letters, expire, lock_tickets
from ..values import ClaimRequest, Failure, Lease, Now, as_text, new_token
from .sql import BY_VENDOR


@dataclass(slots=True)
class Tickets:
    """Takes tickets for one holder, all under one token; ``expired`` counts those it closed."""

    db: Session
    accounts: Accounts
    request: ClaimRequest
    expired: int = 0
    token: int = field(default_factory=new_token)

    def take(self, picks: Sequence[Pick], limit: int, *, alone: bool) -> list[Lease]:
        """
        Take up to so many of what was chosen; a lane that has less is put to sleep, unless it
        is ``alone``.

        Raise UnreadableError where one can't be taken for what is in its row.
        """
        wants, marks = counted(picks), self.request.marks
        claim = BY_VENDOR[self.db.cursor.db.vendor].claim
        marked = set(marks.lanes) if marks.in_use else set[int]()
        with noting_unreadable(wants, using=self.request.using):
            lines = by_lane(claim(self.db, wants, limit, self.request, self.token))
            if not alone:
                for lane in short(wants, lines, limit):
                    # Whether it is empty is read from its start: of one that gives again and
                    # again not before it gave nothing.
                    if not (lane in marked and lines.get(lane)):
                        self.accounts.found_short(lane)
            return self.in_order(picks, lines)

    def in_order(
        self, picks: Iterable[Pick], lines: Mapping[int, deque[ClaimedRow]]
    ) -> list[Lease]:
        """Charge the lanes; return the leases in the order of the picks. Close what is too late."""
        aware = BY_VENDOR[self.db.cursor.db.vendor].aware
        using, holder = self.request.using, self.request.holder
        whose: dict[str, Any] = {"using": using, "holder": holder, "token": self.token}
        leases: list[Lease] = []
        late: list[Lease] = []
        for pick in picks:
            line = lines[pick.lane]
            some = min(pick.count, len(line))
            if some:
                self.accounts.begin(pick.lane, pick.cost, some)
            for _ in range(some):
                row = line.popleft()
                lease = leased(row, pick, moment=aware, **whose)
                (late if row.late else leases).append(lease)
        for lease in late:
            expire(self.db, self.accounts, lease)
        self.expired += len(late)
        return leases


def by_lane(rows: Iterable[ClaimedRow]) -> defaultdict[int, deque[ClaimedRow]]:
    """Return each lane's rows in the order in which they should run."""
    lines: defaultdict[int, deque[ClaimedRow]] = defaultdict(deque)
    for row in sorted(rows, key=in_line):
        lines[row.lane].append(row)
    return lines


def short(wants: Mapping[int, int], lines: Mapping[int, Sequence[object]], limit: int) -> list[int]:
    """Return the lanes that have less than was wanted, of those that were asked at all."""
    found = []
    for lane, count in wants.items():
        has = len(lines.get(lane, ()))
        limit -= has
        if limit <= 0:
            break
        if has < count:
            found.append(lane)
    return found


# Fail tasks whose rows can't be read, so that they do not hold up others.


R = TypeVar("R")

logger = logging.getLogger("django_perfectqueue.database")

UNREADABLE = "unreadable"
MOST_ATTEMPTS = 2**31 - 1

ROW = f"""
SELECT "ticket"."attempt", "ticket"."run_at", "task"."created_at", {TASK}
FROM "perfectqueue_ticket" AS "ticket"
JOIN "perfectqueue_task" AS "task" ON "task"."id" = "ticket"."task_id"
WHERE "ticket"."task_id" = %(task_id)s
"""


class UnreadableError(Exception):
    """
    A claim has failed, maybe for what is in a row: one of so many of these lanes.

    The transaction is rolled back; set_aside() then finds the row.
    """

    def __init__(self, wants: Mapping[int, int]) -> None:
        super().__init__(wants)
        self.wants = wants


@contextlib.contextmanager
def noting_unreadable(wants: Mapping[int, int], *, using: str) -> Iterator[None]:
    """Raise UnreadableError where one of these tasks can't be taken for what is in its row."""
    try:
        yield
    except Exception as error:
        if may_be_a_row(error, using=using):
            raise UnreadableError(wants) from error
        raise


def past_unreadable(claim: Callable[[], R], request: ClaimRequest) -> R:
    """
    Claim; and again once what can't be read is out of the line.

    In a transaction of the caller's the error goes up: it is the caller's to roll back.
    """
    using = request.using
    while True:
        try:
            return claim()
        except UnreadableError as error:
            own = not is_callers(using)
            if not (own and set_aside(error.wants, using=using, now=request.now)):
                raise error.__cause__ or error from None


def set_aside(wants: Mapping[int, int], *, using: str, now: Now) -> int:
    """
    Fail those of the next tasks of these lanes that can't be read; return how many.

    Each is read by itself, which is slow; so it is called where reading them together failed.
    """
    count = 0
    for task_id in next_of(wants, using=using):
        if why := problem(task_id, using=using):
            count += give_up(task_id, why, using=using, now=now)
    return count


@retry_transaction
def next_of(wants: Mapping[int, int], *, using: str) -> list[int]:
    found: list[int] = []
    with reading(using) as db:
        for lane, count in wants.items():
            rows = db.rows(LINE, {"lane": lane, "count": count})
            found += [task_id for (task_id,) in rows]
    return found


@retry_transaction
def problem(task_id: int, *, using: str) -> str:
    """Return why a task can't be read, or an empty text."""
    try:
        with reading(using) as db:
            row = db.execute(ROW, {"task_id": task_id}).fetchone()
        if row is None:
            return ""
        attempt, *times = row[:3]
        for time in times:
            db.dialect.moment(time)
    except Exception as error:
        if not may_be_a_row(error, using=using):
            raise
        return f"{type(error).__name__}: {error}"
    if attempt >= MOST_ATTEMPTS:
        return f"It has been acquired {attempt} times, the largest countable number."
    return ""


@retry_transaction
def give_up(task_id: int, why: str, *, using: str, now: Now) -> bool:
    """Fail a task that is still in line; return whether it was."""
    with in_transaction(using, now=now) as db:
        tickets = lock_tickets(db, [task_id])
        if [ticket.state for ticket in tickets] != [State.WAITING]:
            return False
        reason = Failure(error=UNREADABLE, message=f"The task's row can't be read: {why}")
        held = [EndedAttempt.of(ticket) for ticket in tickets]
        add_dead_letters(db, held, Outcome.FAILED, reason)
    logger.error(
        "A task can't be read and has failed; other tasks continue. id=%s error=%s",
        task_id,
        as_text(" ".join(why.split()), 500),
    )
    # Its names may be what can't be read.
    with contextlib.suppress(Exception), reading(using) as db:
        announce_ids(db, [(signals.task_failed, [task_id])])
    return True
