"""
Tasks whose key is free again before their row is gone: as soon as they start, end, or are old.

Such a task keeps its key. The next one of this name is stored under the name and the id of the
one before, so of two submitters who find the same one before, the index of keys lets one in: no
row of a task that runs is locked or written. The newest one of a name has its greatest key.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from operator import itemgetter
from typing import NamedTuple

from django_perfectqueue.exceptions import AlreadyExistsError
from django_perfectqueue.models import Outcome, Task, TaskQuerySet
from django_perfectqueue.payload.inputs import LATER_KEY

from ..database.dialects.base import Row
from ..database.transaction import (
    REPEATS,
    Session,
    reading,
    retry_transaction,
    single_operation,
    together,
    with_retries,
)
from ..values import Name, Now, Submission, Unique
from .submit import taken

Submit = Callable[[Sequence[Submission]], Mapping[Name, int]]

# Behind a name: an id in 16 digits, which begin with 0 and no 9 for the first 9 * 10**14 tasks. An
# index finds such keys by FIRST and LAST. Others that begin so, which a person may have given, are
# of other length, or have more than DIGITS.
AFTER = "{name}~{id:016}"
FIRST, LAST = "~0", "~09"
LIKE, SPECIAL = FIRST + 15 * "_", re.compile("[!%_]")
DIGITS = 'SUBSTR("key", %(digits{place})s)'
for _digit in "0123456789":
    DIGITS = f"REPLACE({DIGITS}, '{_digit}', '')"

# In a transaction that sees only what was there when it began, the greatest key may be an old one:
# so ``seen`` is looked at, too, which is a key of this name that was taken.
NEWEST = f"""
SELECT "task"."queue", "task"."key", %(name{{place}})s, "task"."id", "ticket"."attempt",
    "task"."created_at" >= {{since{{place}}}}, "task"."outcome" NOT IN ('', 'finished')
FROM "perfectqueue_task" AS "task"
LEFT JOIN "perfectqueue_ticket" AS "ticket" ON "ticket"."task_id" = "task"."id"
WHERE "task"."queue" = %(queue{{place}})s AND "task"."key" IN (%(seen{{place}})s, (
    SELECT "key" FROM "perfectqueue_task" WHERE "queue" = %(queue{{place}})s
    AND "key" >= %(first{{place}})s AND "key" < %(last{{place}})s
    AND "key" LIKE %(like{{place}})s ESCAPE '!' AND {DIGITS} = ''
    ORDER BY "key" DESC LIMIT 1
))
"""


class Holder(NamedTuple):
    """
    The newest task of a name: how often it was acquired, or None where it has ended; ``is_young``
    is None where its age does not matter. One that is ``dead`` can be retried.
    """

    key: str
    name: str
    id: int
    attempt: int | None
    is_young: bool | None
    is_dead: bool

    def holds(self, unique: Unique) -> bool:
        """Return whether it keeps its name from the next task."""
        if self.is_young is not None and not self.is_young:
            return False
        if unique.until == "start":
            return self.attempt == 0
        return self.attempt is not None or unique.until != "end"

    @property
    def next_key(self) -> str:
        """The key of the next task: greater than this one, which may be of another database."""
        last = int(self.key.removeprefix(f"{self.name}~")) if self.key != self.name else 0
        return AFTER.format(name=self.name, id=max(self.id, last + 1))


def submit_unique(
    submit: Submit, submissions: Sequence[Submission], *, all_or_none: bool, using: str, now: Now
) -> tuple[dict[Name, int], dict[Name, str]]:
    """
    Store tasks by ``submit``, those that are unique under keys that are free.

    Return what that does, and by queue and name the keys of the unique ones: of those that
    were stored, and of those that hold a name. Raise AlreadyExistsError for a name that is held
    and a key that is taken, where ``submit`` stores all or none.
    """
    fresh: dict[Name, int] = {}
    keys: dict[Name, str] = {}
    seen: dict[Name, str] = {}
    for _repeat in range(REPEATS):
        holders = newest(submissions, seen, using=using, now=now)
        dead = [holder.id for holder in holders.values() if holder.is_dead]
        placed, held = place(submissions, holders, keys)
        if held and all_or_none:
            raise taken(submissions[0].queue, *held)
        try:
            if (stored := submit_after(dead, submit, placed, using=using)) is None:
                continue
            fresh |= stored
        except AlreadyExistsError:
            # Another may have stored one of these meanwhile; any other key is taken.
            if all(seen.get(name) == key for name, key in keys.items()):
                raise
            seen |= keys
            continue
        seen |= keys
        submissions = [
            task
            for task in submissions
            if task.unique
            and task.key not in held
            and (task.queue, seen[task.queue, task.key]) not in fresh
        ]
        if not submissions:
            return fresh, keys
    raise taken(submissions[0].queue, *{task.key for task in submissions})


def place(
    submissions: Sequence[Submission], holders: Mapping[Name, Holder], keys: dict[Name, str]
) -> tuple[list[Submission], set[str]]:
    """Return tasks under keys that are free, and which names are held; note both in ``keys``."""
    placed: list[Submission] = []
    held = set[str]()
    for task in submissions:
        name = task.queue, task.key
        holder = holders.get(name) if task.unique else None
        if holder and isinstance(task.unique, Unique) and holder.holds(task.unique):
            keys[name] = holder.key
            held.add(task.key)
            continue
        # What waits for one of these waits for the task that has the name now.
        if task.after and not keys.keys().isdisjoint(parent.name for parent in task.after):
            after = [one._replace(key=keys.get(one.name, one.key)) for one in task.after]
            task = task._replace(after=tuple(after))
        placed.append(task._replace(key=holder.next_key) if holder else task)
        if task.unique:
            keys[name] = placed[-1].key
    return placed, held


def submit_after(
    dead: Collection[int], submit: Submit, placed: Sequence[Submission], *, using: str
) -> Mapping[Name, int] | None:
    """
    Store tasks whose names these dead ones had; return None where one was put back meanwhile.

    A retry locks those, too: it waits for the commit, and then finds the later ones.
    """
    if not dead or not placed:
        return submit(placed) if placed else {}
    rows = TaskQuerySet(Task, using=using).filter(pk__in=dead)
    rows = rows.exclude(outcome__in=("", Outcome.FINISHED)).order_by("pk").select_for_update()

    def act() -> Mapping[Name, int] | None:
        with together(using=using):
            return submit(placed) if len(rows.values_list("pk")) == len(dead) else None

    with single_operation():
        return with_retries(act, using=using)


@retry_transaction
def newest(
    submissions: Sequence[Submission], seen: Mapping[Name, str], *, using: str, now: Now
) -> dict[Name, Holder]:
    """Return the newest tasks of the names of those that are unique."""
    uniques = {
        (task.queue, task.key): task.unique
        for task in submissions
        if isinstance(task.unique, Unique)
    }
    with reading(using, now=now) as db:
        rows = look(db, uniques, seen)
        if clause := db.dialect.current_clause(db.cursor):
            # Of each name one task that is there, and no more: else inserts would be waited for.
            known = {**{(row[0], row[2]): row[1] for row in rows}, **seen}
            there = {name: uniques[name] for name in known.keys() & uniques}
            rows += look(db, there, known, clause)
    return {(queue, holder[1]): Holder(*holder) for queue, *holder in rows}


def newest_key(queue: str, name: str, *, using: str) -> str:
    """Return the key of the newest task of a name; where there is none, the name."""
    with reading(using) as db:
        rows = look(db, {(queue, name): Unique()}, {})
    return str(rows[-1][1]) if rows else name


def later_keys(db: Session, keys: Mapping[int, Name]) -> dict[int, str]:
    """
    Return those of these tasks, given by id with queue and key, whose name has a later one, with
    the key of that.
    """
    names = {id_: (queue, LATER_KEY.sub("", key)) for id_, (queue, key) in keys.items()}
    rows = look(db, dict.fromkeys(names.values(), Unique()), {}) if names else []
    newest = {(row[0], row[2]): row for row in rows}
    # One that was stored after the caller had begun to read may not be among them.
    found = ((id_, newest[name]) for id_, name in names.items() if name in newest)
    return {id_: str(row[1]) for id_, row in found if row[3] != id_}


def look(
    db: Session, uniques: Mapping[Name, Unique], seen: Mapping[Name, str], clause: str = ""
) -> list[Row]:
    """Return what NEWEST finds of some names; of each the newest comes last."""
    values: dict[str, object] = {}
    after: dict[str, float | None] = {}
    queries = []
    for place, (name, unique) in enumerate(uniques.items()):
        queue, key = name
        escaped = SPECIAL.sub(r"!\g<0>", key)
        given: dict[str, object] = {"first": f"{key}{FIRST}", "last": f"{key}{LAST}"}
        given |= {"like": f"{escaped}{LIKE}"}
        given |= {"queue": queue, "name": key, "seen": seen.get(name, key)}
        given["digits"] = len(key) + len(FIRST) + 1
        values |= {f"{what}{place}": value for what, value in given.items()}
        after[f"since{place}"] = None if unique.seconds is None else -unique.seconds
        query = NEWEST.replace("{place}", str(place))
        queries.append(f"({query}{clause})" if clause else query)
    return sorted(db.union(queries, values, after=after), key=itemgetter(1))
