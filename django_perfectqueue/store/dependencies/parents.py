"""Where the parents of tasks stand; those that live are marked as followed."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from django_perfectqueue.models import Outcome

from ..database.dialects.base import Row
from ..database.session import Session

ENDED = """
SELECT "id", "outcome" FROM "perfectqueue_task"
WHERE "id" IN ({ids}) AND "outcome" <> '' ORDER BY "id"
"""
TICKETS = """
SELECT "task_id" FROM "perfectqueue_ticket" WHERE "task_id" IN ({ids}) ORDER BY "task_id"
"""
FOLLOW = """
UPDATE "perfectqueue_ticket"{hint} SET "followed" = COALESCE("followed", 0) + 1
WHERE "task_id" IN ({ids}) AND (COALESCE("followed", 0) & 1) = 0
"""
THERE = 'SELECT "id" FROM "perfectqueue_task" WHERE "id" IN ({ids})'


class Standing(NamedTuple):
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


LIVE, LOCKED, GONE = Standing(), Standing(is_locked=True), Standing(is_gone=True)


@dataclass(frozen=True, slots=True)
class Parents:
    db: Session

    def follow(self, ids: Collection[int]) -> Mapping[int, Standing]:
        """
        Mark the parents that live as followed; return where each stands.

        Each is locked: its task if it has ended, else its ticket. So who ends it or puts it
        back either finds the mark and the dependencies, or has committed before. Nothing is
        waited for: a transaction of someone else's may hold a ticket for long.
        """
        skip = self.db.dialect.skip_clause()
        # A batch is given by minus its id; its counts say when it has ended.
        found = {id_: LIVE for id_ in ids if id_ < 0}
        for id_, outcome in self.rows(ENDED + self.db.dialect.skip_changed_clause(), ids):
            found[id_] = Standing(outcome)
        if left := set(ids) - found.keys():
            live = [id_ for (id_,) in self.rows(TICKETS + skip, left)]
            if live:
                follow = FOLLOW.replace("{hint}", self.db.dialect.by_primary_key)
                self.db.execute(follow, ids=live)
            found |= dict.fromkeys(live, LIVE)
        if left := left - found.keys():
            # Someone ends it or puts it back at this moment, or has since the first look.
            there = {id_ for (id_,) in self.rows(THERE, left)}
            found |= {id_: LOCKED if id_ in there else GONE for id_ in left}
        return found

    def rows(self, statement: str, ids: Collection[int]) -> list[Row]:
        return self.db.rows(statement, ids=ids) if ids else []
