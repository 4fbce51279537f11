"""
Act on what was committed about dependencies: mark them as met, release or cancel children.

What ends a parent only appends an event. A reader of it, right after the commit or in a sweep,
locks the children's tickets; so of two readers of the ends of two parents of one child, the second
sees what the first has marked, and releases it. A ticket that another holds is not waited for:
its events stay for a later look.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence, Set
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from django.db import connections

from django_perfectqueue import signals
from django_perfectqueue.models import Dependency, DependencyEvent, IfFailed, Outcome

from ..database.session import Session
from ..database.transaction import in_transaction, is_callers, retry_transaction
from ..lanes.accounts import Accounts
from ..notify.ring import ring
from ..notify.signals import announce_ids
from ..records.dependency_events import event_followers, note_added
from ..tasks.close import EndedAttempt, bury
from ..upkeep.timers import admit
from ..values import Failure
from .parents import Parents, Standing

EVENTS = 200
EDGES = 1_000
ROUNDS = 2_000
PAUSES = (0.002, 0.005, 0.01, 0.02, 0.05)
"""In seconds: how long it waits for tickets that others have locked."""
REST = 2.0
"""For so many seconds it does not wait again, when that was in vain."""

TAKE = """
SELECT "id", "task_id", "kind"{asynchronous_commit} FROM "perfectqueue_dependencyevent"
WHERE "id" > %(after)s ORDER BY "id" LIMIT %(limit)s
"""
EDGE = 'SELECT "id", "child_id", "parent_id", "if_failed" FROM "perfectqueue_dependency"'
OF_PARENTS = EDGE + ' WHERE "parent_id" IN ({ids}) AND "state" < %(below)s LIMIT %(limit)s'
OF_CHILDREN = EDGE + ' WHERE "child_id" IN ({ids}) AND "state" = 0 LIMIT %(limit)s'
PARENTS_NOW = 'SELECT "id", "parent_id" FROM "perfectqueue_dependency" WHERE "id" IN ({ids})'
CHILDREN = """
SELECT "task_id", "attempt", "errors", "crashes" FROM "perfectqueue_ticket"
WHERE "task_id" IN ({ids}) AND "state" = 3 ORDER BY "task_id"
"""
BLOCKED = 'SELECT "task_id" FROM "perfectqueue_ticket" WHERE "task_id" IN ({ids}) AND "state" = 3'
# What another has marked since these were read stays: a state only rises.
MARK = """
UPDATE "perfectqueue_dependency" SET "state" = %(state)s
WHERE "id" IN ({ids}) AND "state" < %(state)s
"""
# Read from behind: mostly the parents end in their order, and the last is unmet until the end.
READY = """
SELECT "id", "run_at" <= {now} FROM "perfectqueue_task" WHERE "id" IN ({ids}) AND (
    SELECT "id" FROM "perfectqueue_dependency"
    WHERE "child_id" = "perfectqueue_task"."id" AND "state" < 3 ORDER BY "id" DESC LIMIT 1
) IS NULL
"""
SCHEDULE = """
UPDATE "perfectqueue_ticket"{hint} SET "state" = 1, "alarm_at" = (
    SELECT "run_at" FROM "perfectqueue_task" WHERE "id" = "perfectqueue_ticket"."task_id"
) WHERE "task_id" IN ({ids})
"""

GROUP = "dependency"

rested: dict[str, float] = {}
"""By database until when it does not wait, by the monotonic clock."""

folding: ContextVar[bool] = ContextVar("folding", default=False)


class Edge(NamedTuple):
    id: int
    child: int
    parent: int
    if_failed: int


class Folded(NamedTuple):
    """
    How much a batch has done, whether it has left any of its events, and whether there may be
    more: it has left some, read as many as it may, or ended tasks itself. ``last`` is the id of
    its last event where it has read as many as it may.
    """

    done: int = 0
    left: bool = False
    more: bool = False
    last: int = 0


def fold(*, using: str, now: datetime | None = None) -> int:
    """
    Act on the events that are there and that nobody else acts on; return how many.

    It is called after each commit that appends some. What is missed, because a process died or
    a ticket was locked for long, the sweep finds.
    """
    if folding.get():
        return 0
    total, after, pauses = 0, 0, iter(PAUSES)
    token = folding.set(True)
    try:
        for _round in range(ROUNDS):
            batch = fold_batch(after=after, using=using, now=now)
            total += batch.done
            if batch.done or not batch.left:
                if not batch.more:
                    break
            elif batch.last:
                # All of these wait for tickets that others hold: look behind them.
                after = batch.last
            elif after or time.monotonic() < rested.get(using, 0.0):
                break
            elif (pause := next(pauses, None)) is None:
                rested[using] = time.monotonic() + REST
                break
            else:
                time.sleep(pause)
    finally:
        folding.reset(token)
    return total


event_followers.append(fold)


@retry_transaction
def fold_batch(*, after: int, using: str, now: datetime | None) -> Folded:
    own = not is_callers(connections[using])
    with in_transaction(using) as db:
        if own:
            db.dialect.see_commits(db.cursor)
        # What is lost in a crash of the server, the sweep does again.
        more = db.dialect.asynchronous_commit if own else ""
        statement = TAKE.replace("{asynchronous_commit}", more) + db.dialect.skip_clause()
        rows = db.rows(statement, {"after": after, "limit": EVENTS})
        events = [row[:3] for row in rows]
        if not events:
            return Folded()
        kinds = DependencyEvent.Kind
        ended = sorted({task_id for _id, task_id, kind in events if kind == kinds.ENDED})
        added = sorted({task_id for _id, task_id, kind in events if kind == kinds.ADDED})
        batch = Fold(db, now)
        unfinished = batch.look(ended, added)
        batch.write()
        done = [id_ for id_, task_id, kind in events if (kind, task_id) not in unfinished]
        if done:
            db.dialect.delete(db.cursor, "perfectqueue_dependencyevent", done)
        progress = len(done) + len(batch.met) + len(batch.failed) + len(batch.awaited)
    left = len(done) < len(events)
    last = events[-1][0] if len(events) == EVENTS else 0
    return Folded(progress, left, left or bool(last or batch.cancelled or batch.dead), last)


@dataclass
class Fold:
    """
    What becomes of the dependencies of some events: their ids, by their new state.

    ``blocked`` are the children whose tickets it has locked, ``dead`` those that have ended.
    """

    db: Session
    now: datetime | None
    blocked: dict[int, EndedAttempt] = field(default_factory=dict)
    dead: set[int] = field(default_factory=set)
    awaited: list[int] = field(default_factory=list)
    failed: list[int] = field(default_factory=list)
    met: list[int] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)
    cancelled: dict[int, str] = field(default_factory=dict)

    def look(self, ended: Sequence[int], added: Sequence[int]) -> set[tuple[int, int]]:
        """Judge the dependencies; return the events that are to be looked at again."""
        fresh = self.edges(OF_CHILDREN, added)
        standing = Parents(self.db).follow({*ended, *(edge.parent for edge in fresh)})
        over = [id_ for id_ in ended if standing[id_].has_finished or standing[id_].is_gone]
        dead = [id_ for id_ in ended if standing[id_].is_dead]
        edges = self.edges(OF_PARENTS, over, below=3) + self.edges(OF_PARENTS, dead, below=2)
        held = self.lock({*added, *(edge.child for edge in edges)})
        every = {*edges, *fresh}
        for edge in every - self.transferred(every, standing):
            if edge.child not in held:
                self.judge(edge, standing[edge.parent])
        kinds, many = DependencyEvent.Kind, max(len(edges), len(fresh)) >= EDGES
        locked = {id_ for id_ in ended if standing[id_].is_locked}
        locked |= {edge.parent for edge in edges if edge.child in held}
        busy = {edge.child for edge in fresh if standing[edge.parent].is_locked}
        busy |= held.intersection(added)
        return {(kinds.ENDED.value, id_) for id_ in (ended if many else locked)} | {
            (kinds.ADDED.value, id_) for id_ in (added if many else busy)
        }

    def edges(self, statement: str, ids: Collection[int], **values: int) -> list[Edge]:
        if not ids:
            return []
        rows = self.db.rows(statement, {"limit": EDGES, **values}, ids=ids)
        return [Edge(*row) for row in rows]

    def transferred(self, edges: Set[Edge], standing: Mapping[int, Standing]) -> set[Edge]:
        """Return those whose parent was replaced since they were read: they have an event."""
        gone = {edge.id: edge for edge in edges if standing[edge.parent].is_gone}
        if not gone:
            return set()
        rows = self.db.rows(PARENTS_NOW, ids=gone)
        return {gone[id_] for id_, parent in rows if parent != gone[id_].parent}

    def lock(self, children: set[int]) -> set[int]:
        """Lock the tickets of the blocked children; return those that others hold."""
        if not children:
            return set()
        statement = CHILDREN + self.db.dialect.skip_clause()
        for task_id, attempt, errors, crashes in self.db.rows(statement, ids=children):
            self.blocked[task_id] = EndedAttempt(
                task_id=task_id, attempt=attempt, errors=errors, crashes=crashes
            )
        left = children - self.blocked.keys()
        held = {task_id for (task_id,) in self.db.rows(BLOCKED, ids=left)} if left else set()
        self.dead = left - held
        return held

    def judge(self, edge: Edge, parent: Standing) -> None:
        if parent.is_locked:
            return
        if parent.is_live:
            self.awaited.append(edge.id)
        elif parent.has_finished or edge.if_failed == IfFailed.RUN:
            self.met.append(edge.id)
        elif parent.is_gone:
            self.dropped.append(edge.id)
            self.cancelled[edge.child] = "A task for which it waited was deleted."
        else:
            self.failed.append(edge.id)
            if edge.if_failed == IfFailed.CANCEL:
                # By its id: who may read this may not know the other's key.
                why = f"Task #{edge.parent}, for which it waited, is {parent.outcome}."
                self.cancelled[edge.child] = why

    def write(self) -> None:
        states = Dependency.State
        for state, ids in (
            (states.AWAITED, self.awaited),
            (states.FAILED, self.failed),
            (states.MET, self.met),
        ):
            if ids:
                self.db.execute(MARK, {"state": state.value}, ids=ids)
        if self.met and self.dead:
            # Who puts one back before the commit does not see it marked: it is looked at again.
            note_added(self.db, self.dead)
        if self.dropped:
            self.db.dialect.delete(self.db.cursor, "perfectqueue_dependency", sorted(self.dropped))
        self.cancel()
        self.release()

    def cancel(self) -> None:
        gone = [child for child in sorted(self.cancelled) if child in self.blocked]
        for child in gone:
            why = Failure(error=GROUP, message=self.cancelled[child])
            held = self.blocked.pop(child)
            bury(self.db, [held], Outcome.CANCELLED, why, now=self.now)
        announce_ids(self.db, [(signals.task_cancelled, gone)])

    def release(self) -> None:
        """Put the children that wait for nothing more in their lines, or on the clock."""
        if not self.blocked:
            return
        rows = self.db.rows(READY, now=self.now, ids=self.blocked)
        due = sorted(task_id for task_id, is_due in rows if is_due)
        later = sorted(task_id for task_id, is_due in rows if not is_due)
        if later:
            schedule = SCHEDULE.replace("{hint}", self.db.dialect.by_primary_key)
            self.db.execute(schedule, ids=later)
        accounts = Accounts(self.now)
        admit(self.db, due, accounts)
        accounts.write(self.db)
        if rows:
            ring(using=self.db.cursor.db.alias)
