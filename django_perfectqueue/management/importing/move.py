"""From a source into the queue, batch by batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import dataclass, field, replace

from django.db import transaction
from django.utils.translation import gettext as _

from django_perfectqueue.conf import nearest
from django_perfectqueue.exceptions import InvalidTaskError, PerfectQueueError
from django_perfectqueue.queue import Queue, submission_of
from django_perfectqueue.schedules import Schedules

from .declared import is_declared, terms_of_type
from .source import Found, FoundSchedule, Left, Read, Row, Source, Table, reading

BATCH = 500
NAMED = 5
LISTED = 1000
REASONS = 50


@dataclass(slots=True)
class Reason:
    """Why so many rows stay where they are, with the names of some, or of all."""

    count: int = 0
    fixable: bool = False
    names: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Tally:
    """What has become of the rows that were looked at."""

    looked: int = 0
    stored: int = 0
    schedules: int = 0
    there: int = 0
    deleted: int = 0
    queues: set[str] = field(default_factory=set)
    left: dict[str, Reason] = field(default_factory=dict)

    def leave(self, row: Left) -> None:
        why = row.why
        if why not in self.left and len(self.left) >= REASONS:
            why = _("other reasons")
        reason = self.left.setdefault(why, Reason())
        reason.count += 1
        reason.fixable = reason.fixable or row.fixable
        if len(reason.names) < (LISTED if row.listed else NAMED):
            reason.names.append(f"{row.name} ({row.detail})" if row.detail else row.name)

    @property
    def moved(self) -> int:
        return self.stored + self.schedules

    @property
    def fixable(self) -> int:
        return sum(reason.count for reason in self.left.values() if reason.fixable)


@dataclass(kw_only=True)
class Move:
    """
    Stores the tasks of a source, each once: a key that is there already is passed over.

    Every batch is one transaction. With ``delete`` the rows whose tasks are stored, now or
    before, are deleted: in the same transaction if they are in the same database, else when
    it has been committed.
    """

    source: Source
    queue: Queue
    own_queues: bool
    knows: Callable[[str], bool]
    types: Iterable[str] = ()
    renamed: Mapping[str, str]
    limit: int | None = None
    delete: bool = False
    dry_run: bool = False
    progress: Callable[[int], None] = lambda count: None
    tally: Tally = field(default_factory=Tally)

    @property
    def using(self) -> str:
        return self.queue.using

    def run(self) -> None:
        for table in self.source.tables:
            self.empty(table)
        for table in self.source.tables:
            with reading(table.terms.using):
                others = list(table.passed_over())
            self.tally.left |= {why: Reason(count) for why, count in others if count}

    def empty(self, table: Table) -> None:
        after = None
        while self.remaining != 0:
            rows = self.batch(table, after)
            self.progress(self.tally.looked)
            if len(rows) < BATCH:
                return
            after = rows[-1].pk

    def batch(self, table: Table, after: object) -> list[Row]:
        """Move the next rows, and return them; what is rolled back does not count."""
        before = deepcopy(self.tally)
        try:
            with self.whole(table):
                with reading(table.terms.using):
                    rows = table.page(after, BATCH, lock=self.delete)
                self.take(table, rows)
        except BaseException:
            if self.delete and table.terms.using == self.using:
                self.tally = before
            raise
        return rows

    def whole(self, table: Table) -> AbstractContextManager[None]:
        return transaction.atomic(using=table.terms.using) if self.delete else nullcontext()

    @property
    def remaining(self) -> int | None:
        return None if self.limit is None else max(0, self.limit - self.tally.moved)

    def take(self, table: Table, rows: Sequence[Row]) -> None:
        by_queue: dict[str, list[Found]] = {}
        done: list[Found | FoundSchedule] = []
        for row in rows:
            self.tally.looked += 1
            read = self.judged(table.read(row))
            if isinstance(read, Left):
                self.tally.leave(read)
            elif isinstance(read, Found):
                by_queue.setdefault(self.queue_of(read).name, []).append(read)
            elif self.put(read):
                done.append(read)
        done += [row for name, found in by_queue.items() for row in self.store(name, found)]
        if self.delete and done:
            with reading(table.terms.using):
                self.tally.deleted += table.delete([row.id for row in done])

    def put(self, row: FoundSchedule) -> bool:
        """Store a schedule; return whether it is stored now, or was before."""
        schedules = Schedules(using=self.using)
        known = schedules.list().filter(name=row.name).first()
        if known is not None and known.type != row.type:
            why = _("with a name that a schedule of another type has")
            self.tally.leave(Left(row.name, why, known.type))
            return False
        if known is not None:
            self.tally.there += 1
            return True
        if self.remaining == 0:
            return False
        queue = self.queue_of(row).name
        try:
            with transaction.atomic(using=self.using):
                schedules.put(
                    row.name, row.type, row.data, by="pq_import", queue=queue, **row.terms
                )
                if self.dry_run:
                    transaction.set_rollback(True, using=self.using)
        except PerfectQueueError as error:
            self.tally.leave(Left(row.name, _("not possible here"), str(error)))
            return False
        self.tally.schedules += 1
        self.tally.queues.add(queue)
        return True

    def queue_of(self, found: Found | FoundSchedule) -> Queue:
        if self.own_queues and found.queue is not None:
            return Queue(found.queue, using=self.using)
        return self.queue

    def judged(self, row: Read) -> Read:
        """Return a row under the type that it has here, or why it can't be stored."""
        if isinstance(row, Left):
            return row
        type_ = row.type if isinstance(row, FoundSchedule) else row.task["type"]
        if isinstance(type_, str):
            type_ = self.renamed.get(type_, type_)
        if isinstance(row, FoundSchedule):
            if is_declared(type_, row.data):
                why = _("that @scheduled declares here: with both, each tick would come twice")
                return Left(row.name, why, fixable=False, listed=True)
            terms = {**terms_of_type(type_), **row.terms}
            queue = terms.pop("queue", None)
            row = replace(row, type=type_, terms=terms, queue=row.queue or queue)
        else:
            row.task["type"] = type_
            try:
                submission_of(self.queue_of(row), **row.task)
            except InvalidTaskError as error:
                return Left(row.name, _("not possible here"), str(error))
        if not self.knows(type_):
            why = _("of the type '%s', for which there is no handler: say --map or --any-type.")
            return Left(row.name, why % type_ + nearest(type_, self.types))
        return row

    def store(self, name: str, found: Sequence[Found]) -> list[Found]:
        """Store tasks; return those that are stored now, or were before."""
        queue = Queue(name, using=self.using)
        there = types_of(queue, found)
        fresh = [row for row in found if row.task["key"] not in there][: self.remaining]
        before = self.same([row for row in found if row.task["key"] in there], there)
        if not fresh:
            return before
        self.tally.queues.add(name)
        stored = len(fresh)
        if not self.dry_run:
            stored = queue.submit_many((row.task for row in fresh), on_conflict="ignore")
        self.tally.stored += stored
        if stored < len(fresh):
            # Others have stored some meanwhile; which ones is not known, only their types.
            self.tally.there += len(fresh) - stored
            there = types_of(queue, fresh)
            fresh = [row for row in fresh if there.get(row.task["key"]) == row.task["type"]]
        return [*fresh, *before]

    def same(self, found: Sequence[Found], there: Mapping[str, str]) -> list[Found]:
        """Return those that were stored before; another task may have the key of one."""
        same = []
        for row in found:
            type_ = there[row.task["key"]]
            if type_ == row.task["type"]:
                same.append(row)
            else:
                why = _("with a key that a task of another type has")
                self.tally.leave(Left(row.name, why, type_))
        self.tally.there += len(same)
        return same


def types_of(queue: Queue, found: Sequence[Found]) -> dict[str, str]:
    """Return the types of those tasks that a queue has, by their keys."""
    keys = [row.task["key"] for row in found]
    return dict(queue.list().filter(key__in=keys).values_list("key", "type"))
