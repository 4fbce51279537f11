"""Which tasks a task waits for and which wait for it; what a batch has; each look is bounded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.db.models import F, Q, QuerySet
from django.utils.translation import gettext_lazy as _

from django_perfectqueue import models
from django_perfectqueue.lib.printable import printable
from django_perfectqueue.models.batch import SEQUENCE
from django_perfectqueue.store.database.transaction import reading
from django_perfectqueue.store.dependencies import When, batches_around
from django_perfectqueue.store.dependencies.batches import exact as exact
from django_perfectqueue.store.dependencies.batches import summed as summed

MOST = 50
COUNTED = 10_000
LETTERS = 1_000
WHENS = {
    **{mode.value: mode.name.lower() for mode in models.IfFailed},
    **{when.value: when.name.lower() for when in When},
    SEQUENCE: "sequence",
}
JOINED = WHENS[When.JOINED]
LINK_STATES = {state.value: state.name.lower() for state in models.Dependency.State}
COLUMNS = ("id", "child_id", "parent_id", "if_failed", "state")
# The first links of a task to what it waits for, or from what waits for it.
LINKS = """
SELECT {number} AS "number", "id", "child_id", "parent_id", "if_failed", "state" FROM (
    SELECT "id", "child_id", "parent_id", "if_failed", "state" FROM "perfectqueue_dependency"
    WHERE "{column}" = {id} {order} LIMIT {most}
) AS "link"
"""
# What has failed is read first, then what is awaited, then what is new or met.
FAILED_FIRST = 'ORDER BY "state" = 2 DESC, "state" = 1 DESC, "id"'
# Of those before a task in its sequence the first that is dead, of so many.
AHEAD = """
WITH RECURSIVE "ahead" ("id", "place") AS (
    SELECT "id", 0 FROM "perfectqueue_task" WHERE "id" = %(task)s
    UNION ALL
    SELECT "parent_id", "place" + 1 FROM "ahead"
    JOIN "perfectqueue_dependency" AS "turn" ON "child_id" = "ahead"."id"
    WHERE "if_failed" = %(sequence)s AND "turn"."state" < 3 AND "place" < %(most)s
)
SELECT "task_id" FROM "ahead" JOIN "perfectqueue_deadletter" ON "task_id" = "ahead"."id"
ORDER BY "place" DESC LIMIT 1
"""
BATCH_STATES = {
    "running": _("open"),
    "finished": _("finished"),
    "failed": _("ended, some dead"),
    "cancelled": _("cancelled"),
}


@dataclass(frozen=True, slots=True)
class Relative:
    """A task, or a batch: its id is then negative, and its status one of BATCH_STATES."""

    id: int
    queue: str
    key: str
    user: str
    status: str
    type: str = ""

    @property
    def is_batch(self) -> bool:
        return self.id < 0

    def facts(self) -> dict[str, object]:
        """Return it for programs."""
        known = {"id": abs(self.id), "queue": self.queue, "user": self.user or None}
        if self.is_batch:
            return {"batch": self.key, **known, "status": self.status}
        return {"key": self.key, **known, "type": self.type, "status": self.status}

    @property
    def word(self) -> str:
        """Its status, in the language of the one who asks."""
        return str(BATCH_STATES[self.status] if self.is_batch else models.Status(self.status).label)


@dataclass(frozen=True, slots=True)
class FamilyLink:
    """
    One task waits for another, or for a batch; ``state`` is *awaited*, *failed* or *met*.

    ``mode`` is its ``if_failed``, or the ``when`` of a callback; or JOINED where the child has run
    the parent, or joins it.
    """

    parent: int
    child: int
    mode: str
    state: str


Linked = tuple[Relative, FamilyLink]


@dataclass(slots=True)
class Family:
    """
    The relatives of a task by id, the task among them, and how they are linked.

    ``more`` says that there are others, which were not read.
    """

    of: int
    relatives: dict[int, Relative] = field(default_factory=dict)
    links: list[FamilyLink] = field(default_factory=list)
    more: bool = False

    @property
    def parents(self) -> list[Linked]:
        """What it waits for or has waited for, what has failed first."""
        order = ("failed", "awaited", "met")
        links = sorted(self.links, key=lambda link: order.index(link.state))
        return [(self.relatives[link.parent], link) for link in links if link.child == self.of]

    @property
    def children(self) -> list[Linked]:
        return [(self.relatives[link.child], link) for link in self.links if link.parent == self.of]

    @property
    def waiting(self) -> list[Relative]:
        """
        The children that wait for it, or were cancelled as it has not finished; not those that
        join it.
        """
        return [one for one, link in self.children if link.state != "met" and link.mode != JOINED]


@dataclass(frozen=True, slots=True)
class Known:
    """The tasks and the batches that may be named."""

    tasks: QuerySet[Any]
    batches: QuerySet[Any]

    @classmethod
    def everything(cls, using: str) -> Known:
        tasks = models.Task.objects.using(using).only("queue", "key", "user", "type", "outcome")
        return cls(tasks, summed(models.Batch.objects.using(using)))


def family(task_id: int, *, using: str, most: int = MOST, known: Known | None = None) -> Family:
    """Return what a task waits for and what waits for it, ``most`` of each, by one statement."""
    found = Family(task_id)
    ways = links_of([("child_id", task_id), ("parent_id", task_id)], most + 1, using)
    found.more = any(len(rows) > most for rows in ways)
    links = {row.pk: row for rows in ways for row in rows[:most]}
    ids = {id_ for row in links.values() for id_ in (row.child_id, row.parent_id)}
    found.relatives = relatives(ids, using=using, known=known)
    found.links = [
        link(row)
        for _id, row in sorted(links.items())
        if {row.child_id, row.parent_id} <= found.relatives.keys()
    ]
    return found


def links_of(ends: Sequence[tuple[str, int]], most: int, using: str) -> list[list[Any]]:
    """Return by one statement the first links that have an id in a column, of each of these."""
    queries = [
        LINKS.format(
            number=number,
            column=column,
            id=id_,
            order=FAILED_FIRST if column == "child_id" else "",
            most=most,
        )
        for number, (column, id_) in enumerate(ends)
    ]
    found: list[list[Any]] = [[] for _end in ends]
    with reading(using) as db:
        for number, *values in db.union(queries):
            found[number].append(models.Dependency(**dict(zip(COLUMNS, values, strict=True))))
    return found


def link(row: models.Dependency) -> FamilyLink:
    known = max(row.state, models.Dependency.State.AWAITED)
    state = LINK_STATES.get(known, str(known))
    return FamilyLink(row.parent_id, row.child_id, WHENS.get(row.if_failed, "?"), state)


def relatives(ids: Iterable[int], *, using: str, known: Known | None = None) -> dict[int, Relative]:
    """Return tasks, and batches by minus their ids; what is gone or not known is left out."""
    ids = {id_ for id_ in ids if abs(id_) < 2**63}
    known = known or Known.everything(using)
    tasks = known.tasks.filter(pk__in=[id_ for id_ in ids if id_ > 0])
    batches = known.batches.filter(pk__in=[-id_ for id_ in ids if id_ < 0])
    found = {
        task.pk: Relative(task.pk, task.queue, task.key, task.user, task.status, task.type)
        for task in tasks.order_by().select_related(None)
    }
    for batch in exact(batches.order_by()):
        found[-batch.pk] = Relative(-batch.pk, batch.queue, batch.name, batch.user, state_of(batch))
    return found


def state_of(batch: models.Batch) -> str:
    """Return the state of a batch, one of BATCH_STATES."""
    if batch.stopped:
        return "cancelled"
    if batch.ended_at is None or batch.total > batch.finished + batch.dead:
        return "running"
    return "failed" if batch.dead else "finished"


def in_state(state: str) -> Q:
    """Return the condition of one of BATCH_STATES, by the counts that are folded."""
    is_open = Q(ended_at=None) | Q(total__gt=F("finished") + F("dead"))
    conditions = {
        "running": Q(stopped=False) & is_open,
        "finished": Q(stopped=False, dead=0) & ~is_open,
        "failed": Q(stopped=False, dead__gt=0) & ~is_open,
        "cancelled": Q(stopped=True),
    }
    return conditions[state]


def held_up(*, using: str) -> tuple[int, dict[str, str]]:
    """
    Return how many tasks wait for one of the LETTERS newest that failed, or for a batch that
    ended with one of them, at most COUNTED; and such a pair: the key of the *parent* that
    failed or the name of the *batch*, and the key of the *child*.
    """
    letters = models.DeadLetter.objects.using(using).order_by("-ended_at")
    dead = list(letters.values_list("task_id", flat=True)[:LETTERS])
    if not dead:
        return 0, {}
    batches = ended_with(dead, using=using)
    links = models.Dependency.objects.using(using).order_by()
    blocked = links.filter(child__ticket__state=models.State.BLOCKED).filter(
        Q(parent_id__in=dead, state=models.Dependency.State.FAILED)
        | Q(parent_id__in=[-id_ for id_ in batches], state__lt=models.Dependency.State.MET)
    )
    if (first := blocked.values_list("parent_id", "child__key", "child_id").first()) is None:
        return 0, {}
    count = len(blocked.values_list("child_id", flat=True).distinct()[:COUNTED])
    parent_id, child, child_id = first
    parent_id = stops_sequence(child_id, using=using) or parent_id
    tasks = models.Task.objects.using(using).filter(pk=parent_id).values_list("key", flat=True)
    # The parent may have been deleted since.
    kind, name = ("batch", batches[-parent_id]) if parent_id < 0 else ("parent", tasks.first())
    return count, {kind: printable(name or ""), "child": printable(child)}


def stops_sequence(task_id: int, *, using: str) -> int | None:
    """Return the first dead task before one in its sequence, up to LETTERS before it."""
    with reading(using) as db:
        rows = db.rows(AHEAD, {"task": task_id, "sequence": SEQUENCE, "most": LETTERS})
    return rows[0][0] if rows else None


def ended_with(dead: Collection[int], *, using: str) -> dict[int, str]:
    """Return the names of the batches, by id, that ended with one of these tasks in them."""
    around = batches_around(dead, using=using)
    failed = models.Batch.objects.using(using).filter(ended_at__isnull=False, dead__gt=0)
    return dict(failed.filter(pk__in=around).values_list("pk", "name"))


def callbacks(batch: int, *, using: str, known: Known | None = None) -> list[Linked]:
    """Return the first MOST tasks that wait for a batch, or have waited for it."""
    [rows] = links_of([("parent_id", -batch)], MOST, using)
    found = relatives([row.child_id for row in rows], using=using, known=known)
    return [(found[row.child_id], link(row)) for row in rows if row.child_id in found]


def members(batches: Iterable[int], *, using: str) -> models.TaskQuerySet:
    """Return the tasks of batches, as a QuerySet with their status."""
    rows = models.TaskQuerySet(models.Task, using=using).with_status()
    return rows.filter(membership__batch_id__in=batches)


def counts(tasks: models.TaskQuerySet) -> dict[str, int]:
    """Return how many of the first COUNTED of these tasks have each status, in their order."""
    rows: Any = tasks.order_by()
    found = Counter(rows.values_list("status", flat=True)[:COUNTED])
    return {status.value: found[status] for status in models.Status if found[status]}
