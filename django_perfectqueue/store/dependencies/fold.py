"""
Act on what was committed about dependencies and batches: count, mark dependencies as met, release
or cancel children.

What ends a parent only appends an event, and the end of a batch is one more: its callbacks are
children. A reader, right after the commit or in a sweep, locks the batches and the children's
tickets; so of two readers of the ends of two parents of one child, the second sees what the first
has marked, and releases it. What another holds is not waited for: its events stay for a later look.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass, field
from typing import NamedTuple

from django.db import connections

from django_perfectqueue import signals
from django_perfectqueue.models import Dependency, DependencyEvent, IfFailed, Outcome
from django_perfectqueue.models.batch import SEQUENCE, SEQUENCES

from ..database.transaction import Session, in_transaction, is_callers, retry_transaction
from ..lanes.accounts import Accounts
from ..notify.ring import announce_ids, notify_workers
from ..records.dependency_events import Work, acting, followers, note
from ..tasks.close import EndedAttempt, add_dead_letters
from ..upkeep.timers import admit
from ..values import Failure, Now
from .batches import When, batches_to_count, count
from .graph import ParentState, follow, place

EVENTS = 200
EDGES = 1_000
ALL = 2**31 - 1
BATCHES = 50
ROUNDS = 2_000
# In seconds: how long it waits for tickets that others have locked.
PAUSES = (0.002, 0.005, 0.01, 0.02, 0.05)
# For so many seconds it does not wait again, when that was in vain.
REST = 2.0

TAKE = """
SELECT "id", "task_id", "kind"{asynchronous_commit} FROM "perfectqueue_dependencyevent"
WHERE "id" > %(after)s ORDER BY "id" LIMIT %(limit)s
"""
EDGE = 'SELECT "id", "child_id", "parent_id", "if_failed", "state" FROM "perfectqueue_dependency"'
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
# Read from behind: mostly the parents end in their order, and the last is unmet until the end. Of
# its waits the newest one counts, and holds it back as long as it is for a signal and open. What it
# joins counts in a join only: a death between begin_join() and the wait leaves such links.
READY = """
SELECT "id", "run_at" <= {now} FROM "perfectqueue_task" WHERE "id" IN ({ids}) AND (
    SELECT "id" FROM "perfectqueue_dependency"
    WHERE "child_id" = "perfectqueue_task"."id" AND "state" < 3 AND ("if_failed" <> 8 OR (
        SELECT "kind" FROM "perfectqueue_step"
        WHERE "task_id" = "perfectqueue_task"."id" AND "kind" > 1 ORDER BY "id" DESC LIMIT 1
    ) = 4) ORDER BY "id" DESC LIMIT 1
) IS NULL AND (
    SELECT CASE WHEN "wait"."kind" = 2 AND "wait"."result" = '' AND NOT EXISTS (
        SELECT 1 FROM "perfectqueue_step" AS "signal" WHERE "signal"."kind" = 1
            AND "signal"."task_id" = "wait"."task_id" AND "signal"."name" = "wait"."name"
    ) THEN 1 END
    FROM "perfectqueue_step" AS "wait"
    WHERE "wait"."task_id" = "perfectqueue_task"."id" AND "wait"."kind" > 1
    ORDER BY "wait"."id" DESC LIMIT 1
) IS NULL
"""
SCHEDULE = """
UPDATE "perfectqueue_ticket"{hint} SET "state" = 1, "timer_at" = (
    SELECT "run_at" FROM "perfectqueue_task" WHERE "id" = "perfectqueue_ticket"."task_id"
) WHERE "task_id" IN ({ids})
"""

GROUP = "dependency"
OF_DEATHS = (When.FAILED, When.FIRST_FAILURE)
# Those that go on however what they wait for ends.
ANYHOW = (IfFailed.RUN, When.JOINED)
NEVER_FAILED = "All tasks of its batch have finished."

# By database until when it does not wait, by the monotonic clock.
rested: dict[str, float] = {}


class Edge(NamedTuple):
    id: int
    child: int
    parent: int
    if_failed: int
    state: int


class Folded(NamedTuple):
    """
    How much a batch of events has done, whether it has left any of them, and the id of its last
    event where it has read as many as it may; and which batches it had locked.
    """

    done: int = 0
    left: bool = False
    last: int = 0
    locked: Collection[int] = ()


def fold(work: Work, *, using: str, now: Now = None) -> int:
    """
    Act on the events that are there and that nobody else acts on; return how many.

    It is called after each commit that appends some. What is missed, because a process died or
    a ticket was locked for long, the sweep finds.
    """
    connection = connections[using]
    if connection in acting:
        # Eager tasks, receivers of signals and its own commits come here: it looks once more.
        acting[connection].add(work)
        return 0
    acting[connection] = work
    total, after, pauses, due = 0, 0, iter(PAUSES), list[int]()
    try:
        for _round in range(ROUNDS):
            work, acting[connection] = acting[connection], Work()
            if work.batches is None or work.batches:
                due += batches_to_count(work.batches, using=using)
            if not (work.events or due):
                break
            some, due = set(due[:BATCHES]), due[BATCHES:]
            batch = fold_batch(some, after=after, using=using, now=now)
            total += batch.done
            # Who ended a task of these meanwhile passed over them. What others hold, they look at.
            acting[connection].add(Work(batch.left or bool(batch.last), set(batch.locked)))
            if batch.done or due or not batch.left:
                continue
            if batch.last:
                # All of these wait for what others hold: look behind them.
                after = batch.last
            elif after or time.monotonic() < rested.get(using, 0.0):
                break
            elif (pause := next(pauses, None)) is None:
                rested[using] = time.monotonic() + REST
                break
            else:
                time.sleep(pause)
    finally:
        del acting[connection]
    return total


followers.append(fold)


@retry_transaction
def fold_batch(some: set[int], *, after: int, using: str, now: Now) -> Folded:
    """Act on some events, and count some batches."""
    own = not is_callers(using)
    with in_transaction(using, now=now) as db:
        # What is lost in a crash of the server, the sweep does again.
        more = db.dialect.asynchronous_commit if own else ""
        values = {"after": after, "limit": EVENTS}
        rows = db.rows(TAKE + db.dialect.skip_clause, values, asynchronous_commit=more)
        ended = {row[1] for row in rows if row[2] == DependencyEvent.Kind.ENDED}
        added = {row[1] for row in rows if row[2] == DependencyEvent.Kind.ADDED}
        batches, counted = count(db, some.union(-id_ for id_ in ended if id_ < 0))
        if not (rows or batches):
            return Folded()
        fold = Fold(db)
        left = fold.look(ended, added, batches)
        fold.write()
        # The end of a batch has one from now on, where another holds a callback.
        note(db, ended=left[DependencyEvent.Kind.ENDED] - ended)
        if done := [row[0] for row in rows if row[1] not in left[row[2]]]:
            db.dialect.delete(db.unanswered.cursor, "perfectqueue_dependencyevent", done)
    progress = len(done) + counted + sum(map(len, fold.marks.values()))
    last = rows[-1][0] if len(rows) == EVENTS else 0
    # In a transaction of the caller's it looks no better: they stay locked until its commit.
    locked = [-id_ for id_, one in batches.items() if own and not one.is_locked]
    return Folded(progress, any(left.values()), last, locked)


@dataclass
class Fold:
    """
    What becomes of the dependencies of some events: ``marks`` are their ids, by their new state.

    ``blocked`` are the children whose tickets it has locked, ``dead`` those that have ended, and
    ``waiting`` those that wait for a task that is live.
    """

    db: Session
    blocked: dict[int, EndedAttempt] = field(default_factory=dict)
    dead: set[int] = field(default_factory=set)
    waiting: set[int] = field(default_factory=set)
    marks: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    dropped: list[int] = field(default_factory=list)
    cancelled: dict[int, str] = field(default_factory=dict)
    # Those that had ended before their turns, which have come.
    early: set[int] = field(default_factory=set)

    def look(
        self, ended: set[int], added: set[int], batches: Mapping[int, ParentState]
    ) -> dict[int, set[int]]:
        """
        Judge the dependencies; return whose events are to be looked at again, by their kinds.

        ``batches`` says where those stand that were counted, by minus their ids.
        """
        fresh = self.edges(OF_CHILDREN, added)
        if new := {edge.parent for edge in fresh if edge.parent <= SEQUENCES}:
            place(self.db, new)
            fresh = self.edges(OF_CHILDREN, added)
        tasks = ended - batches.keys()
        parents = tasks.union(edge.parent for edge in fresh) - batches.keys()
        standing = {**follow(self.db, parents), **batches}
        over = [id_ for id_ in tasks if standing[id_].has_finished or standing[id_].is_gone]
        dead = [id_ for id_ in tasks if standing[id_].is_dead]
        edges = self.edges(OF_PARENTS, over, below=3) + self.edges(OF_PARENTS, dead, below=2)
        many = max(len(edges), len(fresh)) >= EDGES
        # All of a batch are judged anew each time that it ends.
        over = [id_ for id_, one in batches.items() if one.some_died or not one.is_live]
        edges += [
            edge
            for edge in self.edges(OF_PARENTS, over, below=3, limit=ALL)
            if edge.if_failed == When.FIRST_FAILURE or not batches[edge.parent].is_live
        ]
        held = self.lock({*added, *(edge.child for edge in edges)})
        every = {*edges, *fresh}
        for edge in every - self.transferred(every, standing):
            if edge.child not in held:
                self.judge(edge, standing[edge.parent])
        locked = {id_ for id_ in ended if many or standing[id_].is_locked}
        locked |= {edge.parent for edge in edges if edge.child in held}
        busy = {edge.child for edge in fresh if standing[edge.parent].is_locked}
        busy |= added if many else held.intersection(added)
        return {DependencyEvent.Kind.ENDED: locked, DependencyEvent.Kind.ADDED: busy}

    def edges(self, statement: str, ids: Collection[int], **values: int) -> list[Edge]:
        if not ids:
            return []
        rows = self.db.rows(statement, {"limit": EDGES, **values}, ids=ids)
        return [Edge(*row) for row in rows]

    def transferred(self, edges: Set[Edge], standing: Mapping[int, ParentState]) -> set[Edge]:
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
        statement = CHILDREN + self.db.dialect.skip_clause
        rows = self.db.rows(statement, ids=children)
        self.blocked = {row[0]: EndedAttempt(*row) for row in rows}
        left = children - self.blocked.keys()
        held = {task_id for (task_id,) in self.db.rows(BLOCKED, ids=left)} if left else set()
        self.dead = left - held
        return held

    def judge(self, edge: Edge, parent: ParentState) -> None:
        mode, is_task = edge.if_failed, edge.parent > 0
        if parent.is_locked:
            return
        # Of one that was skipped before its turn it waits for that turn.
        early = mode == SEQUENCE and parent.has_finished and parent.is_early
        if early or (parent.is_live and not (mode == When.FIRST_FAILURE and parent.some_died)):
            self.marks[Dependency.State.AWAITED].append(edge.id)
            self.waiting.add(edge.child)
        elif parent.is_gone and mode not in (*ANYHOW, SEQUENCE):
            self.dropped.append(edge.id)
            what = "A task" if is_task else "The batch"
            self.cancelled[edge.child] = f"{what} for which it waited was deleted."
        elif (
            mode in (*ANYHOW, When.DONE)
            or parent.has_finished == (mode not in OF_DEATHS)
            or parent.is_gone
        ):
            self.marks[Dependency.State.MET].append(edge.id)
            if mode == SEQUENCE and edge.child in self.dead:
                self.early.add(edge.child)
        elif mode != When.FINISHED:
            # That of a batch may be failed already.
            if edge.state < Dependency.State.FAILED:
                self.marks[Dependency.State.FAILED].append(edge.id)
            # By its id: who may read this may not know the other's key.
            why = f"Task #{edge.parent}, for which it waited, is {parent.outcome}."
            if mode == IfFailed.CANCEL or mode in OF_DEATHS:
                self.cancelled[edge.child] = why if is_task else NEVER_FAILED

    def write(self) -> None:
        for state, ids in sorted(self.marks.items()):
            self.db.unanswered.execute(MARK, {"state": int(state)}, ids=ids)
        if Dependency.State.MET in self.marks and self.dead:
            # Who puts one back before the commit does not see it marked: it is looked at again.
            note(self.db, added=self.dead, ended=self.early)
        if self.dropped:
            self.db.dialect.delete(self.db.cursor, "perfectqueue_dependency", sorted(self.dropped))
        self.cancel()
        self.release()

    def cancel(self) -> None:
        gone = [child for child in sorted(self.cancelled) if child in self.blocked]
        for child in gone:
            why = Failure(error=GROUP, message=self.cancelled[child])
            held = self.blocked.pop(child)
            add_dead_letters(self.db, [held], Outcome.CANCELLED, why)
        announce_ids(self.db, [(signals.task_cancelled, gone)])

    def release(self) -> None:
        """Put the children that wait for nothing more in their lines, or on the clock."""
        maybe = self.blocked.keys() - self.waiting
        if not maybe:
            return
        rows = self.db.rows(READY, ids=maybe)
        # What has begun is due, though someone has hastened it.
        begun = {task_id for task_id, held in self.blocked.items() if held.attempt}
        due = sorted(task_id for task_id, is_due in rows if is_due or task_id in begun)
        later = sorted({task_id for task_id, _is_due in rows}.difference(due))
        if later:
            self.db.execute(SCHEDULE, ids=later)
        accounts = Accounts()
        admit(self.db, due, accounts)
        accounts.write(self.db)
        if rows:
            notify_workers(using=self.db.using)
