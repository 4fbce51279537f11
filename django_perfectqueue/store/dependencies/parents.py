"""Where the parents of tasks stand; those that live are marked as followed."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from django_perfectqueue.models import Outcome

from ..database.session import Session

ENDED = """
SELECT "id", "outcome" FROM "perfectqueue_task"
WHERE "id" IN ({ids}) AND "outcome" <> '' ORDER BY "id"
"""
TICKETS = """
SELECT "task_id", "followed" FROM "perfectqueue_ticket" WHERE "task_id" IN ({ids})
ORDER BY "task_id"
"""
FOLLOW = """
UPDATE "perfectqueue_ticket"{hint} SET "followed" = COALESCE("followed", 0) + 1
WHERE "task_id" IN ({ids})
"""
THERE = 'SELECT "id" FROM "perfectqueue_task" WHERE "id" IN ({ids})'


class ParentState(NamedTuple):
    """
    Where a parent stands; ``outcome`` is empty while it is live.

    ``is_locked`` means that someone else changes it at this moment.
    """

    outcome: str = ""
    is_locked: bool = False
    is_gone: bool = False

    @property
    def is_live(self) -> bool:
        return not (self.outcome or self.is_gone)

    @property
    def has_finished(self) -> bool:
        return self.outcome == Outcome.FINISHED

    @property
    def is_dead(self) -> bool:
        return bool(self.outcome) and not self.has_finished


LIVE, LOCKED, GONE = ParentState(), ParentState(is_locked=True), ParentState(is_gone=True)


def follow(db: Session, ids: Collection[int]) -> dict[int, ParentState]:
    """
    Mark the parents that live as followed; return where each stands.

    Each is locked: its task if it has ended, else its ticket. So who ends it or puts it
    back either finds the mark and the dependencies, or has committed before. Nothing is
    waited for: a transaction of someone else's may hold a ticket for long.
    """
    skip = db.dialect.skip_clause
    # A batch is given by minus its id; its callbacks are looked at when it has ended.
    found = {id_: LIVE for id_ in ids if id_ < 0}
    if left := set(ids) - found.keys():
        ended = db.rows(ENDED + db.dialect.skip_changed_clause, ids=left)
        found |= {id_: ParentState(outcome) for id_, outcome in ended}
    if left := left - found.keys():
        live: dict[int, int | None] = dict(db.rows(TICKETS + skip, ids=left))
        if fresh := [id_ for id_, by in live.items() if not (by or 0) % 2]:
            db.execute(FOLLOW.replace("{hint}", db.dialect.by_primary_key), ids=fresh)
        found |= dict.fromkeys(live, LIVE)
    if left := left - found.keys():
        # Someone ends it or puts it back at this moment, or has since the first look.
        there = {id_ for (id_,) in db.rows(THERE, ids=left)}
        found |= {id_: LOCKED if id_ in there else GONE for id_ in left}
    return found
