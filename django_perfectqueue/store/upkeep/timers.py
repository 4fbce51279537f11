"""What the clock moves: due tasks, lapsed leases, what a dead holder had, sleeping lanes."""

from __future__ import annotations

import time
from collections.abc import Collection

from django_perfectqueue.conf import OTHERS, options
from django_perfectqueue.models import State

from ..arithmetic.fair_order import rule_of
from ..database.dialects.base import Row
from ..database.transaction import Session, in_transaction, is_callers, reading, retry_transaction
from ..lanes.accounts import Accounts
from ..lanes.wake import event_rounds, owners_of, rounds, wake
from ..limits.holds import FIRST_ID, SHUT, open_all_shut
from ..notify.ring import notify_workers
from ..records.dependency_events import follow, follow_uncommitted
from ..tasks import close
from ..values import Now, Watermarks

BATCH = 500
MOST = 4 * BATCH

# In seconds, how late the commit of a timer may be that was due before a look; the clocks of host
# and server may move apart between looks, too.
LATE_COMMIT = 0.5

TIMER_DUE = """(
    SELECT 1 FROM "perfectqueue_ticket" WHERE "timer_at" <= {now}{since}
    ORDER BY "timer_at" LIMIT 1
)"""
ANY_DUE = f"""
SELECT {TIMER_DUE}, (
    SELECT 1 FROM "perfectqueue_schedule" WHERE "due_at" <= {{now}} ORDER BY "due_at" LIMIT 1
)
"""
DUE = """
SELECT "task_id", "state"{asynchronous_commit} FROM "perfectqueue_ticket"
WHERE "timer_at" <= {now}{since} ORDER BY "timer_at" LIMIT %(limit)s
"""
READMIT = """
UPDATE "perfectqueue_ticket"{hint} SET "state" = 0, "timer_at" = NULL
WHERE "task_id" IN ({ids})
"""
SLEEPING = """
WITH RECURSIVE "line" AS ({waiting_lanes})
SELECT (
    SELECT "ticket"."task_id" FROM "perfectqueue_ticket" AS "ticket"
    WHERE "ticket"."state" = 0 AND "ticket"."lane" = "line"."lane"
    ORDER BY "ticket"."rank" LIMIT 1
)
FROM "line" LEFT JOIN "perfectqueue_lane" AS "lane" ON "lane"."id" = "line"."lane"
LEFT JOIN "perfectqueue_account" AS "own"
    ON "own"."id" = COALESCE("lane"."account", "line"."lane")
WHERE "line"."lane" IS NOT NULL AND (
    COALESCE("lane"."has_waiting", "own"."has_waiting", FALSE) = FALSE
    OR "own"."policy" <> {policy} OR ("lane"."held_by" = 0 AND "own"."has_open" = FALSE)
)
LIMIT %(limit)s
"""
FORGOTTEN = f"SELECT EXISTS ({SHUT}), EXISTS ({SLEEPING})"


def fire_timers(marks: Watermarks, *, using: str, now: Now) -> int:
    """
    Admit scheduled tasks and take back lapsed leases, MOST at a time; return how many.
    """
    fired, began = 0, time.monotonic()
    while fired < MOST:
        some = fire_batch(marks, using=using, now=now)
        fired += some
        if some < BATCH:
            # What others have locked they fire.
            marks.none_due(began)
            break
    if fired:
        # Others may have looked while these were locked here, and gone to rest.
        notify_workers(using=using)
    return fired


@retry_transaction
def are_due(marks: Watermarks, *, using: str, now: Now) -> tuple[bool, bool]:
    """Return whether tickets are due, and whether schedules are."""
    with reading(using, now=now) as db:
        began = time.monotonic()
        timers, ticks = db.execute(ANY_DUE, since=since(db, marks)).fetchone()
        note_look(db, marks, began, due=timers is not None)
        return timers is not None, ticks is not None


def since(db: Session, marks: Watermarks) -> str:
    """Return the condition of timers that have come due since a look has found none."""
    if (none_at := marks.begin_look()) is None:
        return ""
    ago = time.monotonic() - none_at + LATE_COMMIT
    return f' AND "timer_at" >= {db.dialect.later(f"-{ago:.6f}")}'


def note_look(db: Session, marks: Watermarks, began: float, *, due: bool) -> None:
    """Note whether a look that began then, by the monotonic clock, has found a timer due."""
    if db.dialect.keeps_dead_entries:
        marks.looked(began, due=due)


@retry_transaction
def fire_batch(marks: Watermarks, *, using: str, now: Now) -> int:
    lasting = is_callers(using)
    with in_transaction(using, now=now) as db:
        more = "" if lasting else db.dialect.asynchronous_commit
        parts = {"asynchronous_commit": more, "since": since(db, marks)}
        # What others hold, they fire.
        rows = db.rows(DUE + db.dialect.skip_clause, {"limit": BATCH}, **parts)
        accounts = Accounts()
        lapsed = [task_id for task_id, state, *_ in rows if state == State.RUNNING]
        loss = close.Loss(crashed=lapsed)
        back = close.lose(db, accounts, close.lock_tickets(db, lapsed), loss)
        back += [task_id for task_id, state, *_ in rows if state != State.RUNNING]
        admit(db, back, accounts)
        accounts.write(db)
        return len(rows)


@retry_transaction
def wake_forgotten_lanes(*, using: str) -> int:
    """
    Wake lanes that sleep although they have waiting tickets, and lanes whose policy is not that of
    the settings; look again at limits that hold back lanes although they have room, as after an
    edit that sent no signal. Return how many, of the lanes BATCH at most.

    Who submits a task wakes its lane after the commit. What is missed then, because its
    program died or the lane fell asleep in that moment, is found here. Costs one statement
    when nothing is forgotten.
    """
    with reading(using) as db:
        holds, _lanes = found = sleeping(db, FORGOTTEN)[0]
    if not any(found):
        return 0
    woken = open_all_shut(using=using) if holds else 0
    with reading(using) as db:
        ids = [task_id for (task_id,) in sleeping(db, SLEEPING) if task_id is not None]
    if ids:
        with in_transaction(using) as db:
            woken += wake(db, owners_of(db, ids))
    if woken:
        notify_workers(using=using)
    return woken


def wake_all_forgotten_lanes(*, using: str) -> None:
    """Wake forgotten lanes until none is left."""
    while wake_forgotten_lanes(using=using) >= BATCH:
        pass


def wake_forgotten_lanes_if_due(*, using: str) -> int:
    """
    Wake forgotten lanes if this process has not looked for some seconds.

    wake_forgotten_lanes() goes through all lanes that have waiting tickets, also those of
    users who are paused; so an acquire that finds nothing does not do it every time. More
    often it acts on events and counts that others have left, as they died or rolled back.
    """
    if moved := follow_uncommitted(using=using):
        return moved
    if event_rounds[using].are_due():
        moved = follow(using=using)
        event_rounds[using].began(time.monotonic())
        if moved:
            return moved
    if not rounds[using].are_due():
        return 0
    began = time.monotonic()
    woken = wake_forgotten_lanes(using=using)
    if woken < BATCH:
        rounds[using].began(began)
    return woken


def sleeping(db: Session, statement: str) -> list[Row]:
    """Return what a statement says of the lanes that are to be woken."""
    policy, names = policies()
    values = {"limit": BATCH, "after": FIRST_ID, **names}
    return db.rows(statement, values, waiting_lanes=db.dialect.waiting_lanes, policy=policy)


def policies() -> tuple[str, dict[str, str]]:
    """Return the SQL of the policy that a lane should have, and its parameters."""
    given = options().POLICY
    own = set() if isinstance(given, str) else {*given} - {OTHERS}
    if not own:
        return str(rule_of(OTHERS).code.value), {}
    names = {f"queue{number}": queue for number, queue in enumerate(sorted(own))}
    cases = (f"WHEN %({name})s THEN {rule_of(queue).code}" for name, queue in names.items())
    return f'CASE "own"."queue" {" ".join(cases)} ELSE {rule_of(OTHERS).code} END', names


def admit(db: Session, ids: list[int], accounts: Accounts) -> None:
    """Put tickets in their lanes, and wake those; lock first what is to be charged."""
    owners = owners_of(db, ids) if ids else []
    accounts.lock(db, {owner.account for owner in owners})
    if ids:
        db.unanswered.execute(READMIT, ids=ids)
        wake(db, owners)


# Give back what a holder has, such as a processor that died.


HELD = f"""
{close.TICKET} WHERE "state" = 2 AND "holder" = %(holder)s AND "timer_at" <= {{horizon}}
ORDER BY "task_id" + 0
"""


@retry_transaction
def give_back(
    holder: int,
    *,
    using: str,
    alive_time: float,
    loss: close.Loss,
    keep: Collection[tuple[int, int]] = (),
    now: Now = None,
) -> int:
    """
    Take tasks from their holder, so that others may acquire them; return how many.

    For those that ``loss`` calls crashed it counts as a crash; the others lose nothing.
    ``keep`` are the fences of the leases that the holder still works under. No lease of the
    holder may be longer than ``alive_time``.
    """
    with in_transaction(using, now=now) as db:
        statement = HELD + db.dialect.lock_clause
        found = db.rows(statement, {"holder": holder}, after={"horizon": alive_time + 1})
        tickets = [close.LockedTicket(*row) for row in found]
        left = [ticket for ticket in tickets if (ticket.task_id, ticket.token) not in keep]
        accounts = Accounts()
        back = close.lose(db, accounts, left, loss)
        admit(db, sorted(back), accounts)
        accounts.write(db)
    if back:
        notify_workers(using=using)
    return len(left)
