"""Where the parents of tasks stand; those that live are marked as followed."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from django.db.backends.utils import CursorWrapper as Cursor

from django_perfectqueue.models import Outcome

from ..database.dialects import Dialect
from ..database.dialects.base import numbers

OUTCOMES = 'SELECT "id", "outcome", "key" FROM "perfectqueue_task" WHERE "id" IN ({ids})'
TICKETS = 'SELECT "task_id" FROM "perfectqueue_ticket" WHERE "task_id" IN ({ids})'
FOLLOW = 'UPDATE "perfectqueue_ticket" SET "followed" = TRUE WHERE "task_id" IN ({ids})'


class Standing(NamedTuple):
    """
    Where a parent stands; ``outcome`` is empty while it is live.

    ``is_locked`` means that someone else changes it at this moment.
    """

    outcome: str = ""
    key: str = ""
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
    cursor: Cursor
    dialect: Dialect

    def follow(self, ids: Collection[int]) -> Mapping[int, Standing]:
        """
        Mark the parents that live as followed; return where each stands.

        Each is locked: its ticket, or where it has none its task. So who ends it either finds
        the mark, or has committed before. Nothing is waited for: a transaction of someone
        else's may hold a ticket for long.
        """
        left = set(ids)
        found = dict.fromkeys(self.locked(TICKETS, "task_id", left), LIVE)
        if found:
            self.execute(FOLLOW, found)
        left -= found.keys()
        found |= dict.fromkeys((id_ for (id_,) in self.rows(TICKETS, left)), LOCKED)
        left -= found.keys()
        locked = set(self.locked(OUTCOMES, "id", left))
        found |= dict.fromkeys(left, GONE)
        for id_, outcome, key in self.rows(OUTCOMES, left):
            # One that has no outcome was put back since its ticket was looked for.
            found[id_] = Standing(outcome, key) if outcome and id_ in locked else LOCKED
        return found

    def locked(self, statement: str, key: str, ids: Collection[int]) -> list[int]:
        """Lock rows that nobody else has locked, in the order of their ids; return these."""
        order = f' ORDER BY "{key}"{self.dialect.skip_clause()}'
        return [row[0] for row in self.rows(statement + order, ids)]

    def rows(self, statement: str, ids: Collection[int]) -> list[Any]:
        return list(self.execute(statement, ids).fetchall()) if ids else []

    def execute(self, statement: str, ids: Collection[int]) -> Any:
        return self.dialect.execute(self.cursor, statement.replace("{ids}", numbers(sorted(ids))))
