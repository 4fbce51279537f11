"""From a table of another queue, whose columns it knows, into this one, batch by batch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeAlias

from django.apps import apps
from django.apps.registry import Apps
from django.db import Error, connections, models, transaction
from django.db.models import Q

from django_perfectqueue import compat
from django_perfectqueue.application import Dispatch
from django_perfectqueue.exceptions import ConfigError, InvalidTaskError, PerfectQueueError
from django_perfectqueue.lib.checks import nearest
from django_perfectqueue.queue import Queue, submission_of
from django_perfectqueue.schedules import Schedules, Terms
from django_perfectqueue.schedules.declared import declarations, terms_of
from django_perfectqueue.worker.discovery import types_of

# The columns of a table that are read: for each kind their names.
Columns: TypeAlias = "dict[type[models.Field[Any, Any]], str]"

# A row of another queue's table, or a QuerySet of them: only its Table knows the columns.
Row: TypeAlias = Any


@dataclass(frozen=True, slots=True)
class Importable:
    """
    A row that is a task of the key ``name``, or, if it ``recurs``, a schedule of that name.

    ``options`` are those of Queue.submit() or Schedules.put(), and ``queue`` the name of its queue
    there, if that means the same here.
    """

    name: str
    type: str
    data: object
    options: dict[str, Any]
    queue: str | None = None
    recurs: bool = False


class StaysError(Exception):
    """
    A row is not moved, for a reason in the same words for all of a kind.

    ``detail`` is what differs between them. ``left_behind`` says that a person has to act;
    other rows are not meant to be moved.
    """

    def __init__(self, why: str, detail: str = "", *, left_behind: bool = True) -> None:
        super().__init__(why, detail)
        self.why = why
        self.detail = detail
        self.left_behind = left_behind


class SourceError(PerfectQueueError):
    """The database of the source can't be read."""


@contextmanager
def reading(using: str) -> Iterator[None]:
    """Raise SourceError, which names the database, for an error in it, or a value that is none."""
    try:
        yield
    except (Error, ValueError) as error:
        why = " ".join(str(error).split())
        raise SourceError(
            f"The database '{using}', from which to import, refused: {why}"
        ) from error


class Table:
    """
    The table of one source.

    A subclass has its ``columns`` beside ``id``, whose kind is ``key``; with ``?`` those that not
    every version has, which are None in the others. ``passed_over`` are the rows
    that are no waiting tasks, by why.
    """

    source: ClassVar[str]
    usual_name: ClassVar[str]
    key: ClassVar[type[models.Field[Any, Any]]] = models.IntegerField
    columns: ClassVar[Columns]
    passed_over: ClassVar[Mapping[str, Q]]

    def __init__(self, using: str, *, name: str | None = None) -> None:
        self.using = using
        self.name = name or self.usual_name
        with reading(using):
            self.open()

    def open(self) -> None:
        """
        Look at the table.

        Raise ConfigError when it is not there, or not as it must be.
        """
        self.model = self.model_of(self.name, self.columns)

    def label(self, row: Row) -> str:
        """Return what a row is called where it stays."""
        return str(getattr(row, "name", row.pk))

    def found(self, row: Row) -> Importable:
        """Return what a row means; raise StaysError, or any error where it can't be read."""
        raise NotImplementedError

    def read(self, row: Row) -> Importable:
        """Return what a row means; raise StaysError when it stays."""
        try:
            return self.found(row)
        except StaysError:
            raise
        except Exception as error:
            raise StaysError("with data that can't be read", str(error)) from error

    def notes(self) -> list[str]:
        """Return what else there is to be said in the end."""
        return []

    @property
    def rows(self) -> Row:
        return self.model._default_manager.using(self.using)

    def page(self, after: object, size: int) -> list[Row]:
        """Return the next rows."""
        rows = self.rows.order_by("pk")
        for condition in self.passed_over.values():
            rows = rows.exclude(condition)
        return list((rows if after is None else rows.filter(pk__gt=after))[:size])

    def model_of(self, table: str, columns: Columns) -> type[models.Model]:
        """
        Return a model for a table of others, which no registry of models knows.

        Raise ConfigError where the table, or one of the columns, is not there.
        """
        connection = connections[self.using]
        with connection.cursor() as cursor:
            names = connection.introspection.table_names(cursor, include_views=True)
            if table not in names:
                ours = apps.get_app_config("perfectqueue").get_models()
                others = set(names) - {model._meta.db_table for model in ours}
                raise ConfigError(
                    f"The database '{self.using}' has no table '{table}'.{nearest(table, others)}"
                    " --from-database names the one that has it."
                )
            description = connection.introspection.get_table_description(cursor, table)
        there = {column.name for column in description}
        options = {"apps": Apps(), "app_label": "importing", "db_table": table, "managed": False}
        members: dict[str, Any] = {"Meta": type("Meta", (), options), "__module__": __name__}
        for kind, words in columns.items():
            for word in words.split():
                name = word.rstrip("?")
                if name not in there and name == word:
                    raise ConfigError(f"The table '{table}' has no column '{name}': it is another.")
                # Only for reading, so each may be empty and of any length.
                members[name] = kind(null=True) if name in there else None
        return type("Row", (models.Model,), {"id": self.key(primary_key=True), **members})


def call(args: object, kwargs: object) -> dict[str, object]:
    """
    Return the data of a task that calls a function, as those of Django's tasks are.

    Raise TypeError when they are no list and no dict.
    """
    if not (isinstance(args, list) and isinstance(kwargs, dict)):
        raise TypeError("args is no list, or kwargs no dict")
    return {"args": args, "kwargs": kwargs}


BATCH = 500
NAMED = 100


@dataclass(slots=True)
class SkipReason:
    """Why so many rows stay where they are, with the names of the first."""

    count: int = 0
    left_behind: bool = False
    names: list[str] = field(default_factory=list)

    def described(self, why: str) -> list[str]:
        more = self.count - len(self.names)
        names = [*self.names, f"and {more:,} more"] if self.names and more else self.names
        return [f"  {self.count:,} {why}", *(f"      {name}" for name in names)]


@dataclass(slots=True)
class ImportTally:
    """What has become of the rows that were looked at."""

    looked: int = 0
    stored: int = 0
    schedules: int = 0
    there: int = 0
    queues: set[str] = field(default_factory=set)
    stay: dict[str, SkipReason] = field(default_factory=dict)

    def leave(self, name: str, stays: StaysError) -> None:
        reason = self.stay.setdefault(stays.why, SkipReason())
        reason.count += 1
        reason.left_behind = reason.left_behind or stays.left_behind
        if len(reason.names) < NAMED:
            reason.names.append(f"{name} ({stays.detail})" if stays.detail else name)

    @property
    def left_behind(self) -> int:
        return sum(reason.count for reason in self.stay.values() if reason.left_behind)


@dataclass(kw_only=True)
class Move:
    """
    Stores the rows of a table, each once: a key or a name that is there already is passed over.

    The rows stay in their table. Without a ``dispatch`` all types are taken.
    """

    table: Table
    queue: Queue
    own_queues: bool
    dispatch: type[Dispatch] | None
    renamed: Mapping[str, str]
    dry_run: bool = False
    progress: Callable[[int], None] = lambda count: None
    tally: ImportTally = field(default_factory=ImportTally)

    def run(self) -> None:
        """Move the rows of the table, a batch at a time; count those that are no waiting tasks."""
        after, using = None, self.table.using
        while True:
            with reading(using):
                rows = self.table.page(after, BATCH)
            self.take(rows)
            if not rows:
                break
            self.progress(self.tally.looked)
            after = rows[-1].pk
        with reading(using):
            for why, condition in self.table.passed_over.items():
                if count := self.table.rows.filter(condition).count():
                    self.tally.stay[why] = SkipReason(count)

    def take(self, rows: Sequence[Row]) -> None:
        by_queue: dict[str, list[Importable]] = defaultdict(list)
        for row in rows:
            self.tally.looked += 1
            try:
                found, queue = self.checked(self.table.read(row))
                if not found.recurs:
                    by_queue[queue].append(found)
                else:
                    self.put(found, queue)
            except StaysError as stays:
                self.tally.leave(self.table.label(row), stays)
        for queue, some in by_queue.items():
            self.submit(some, queue)

    def checked(self, found: Importable) -> tuple[Importable, str]:
        """
        Return a row under the type that it has here, and its queue.

        Raise StaysError when it can't be stored.
        """
        type_ = self.renamed.get(found.type, found.type)
        options, queue = dict(found.options), found.queue
        if found.recurs:
            if is_declared(type_, found.data):
                why = "that @scheduled declares here: with both, each tick would come twice"
                raise StaysError(why, left_behind=False)
            options = {**terms_of_type(type_), **options}
            queue = queue or options.pop("queue", None)
        queue = queue if queue and self.own_queues else self.queue.name
        try:
            target = Queue(queue, using=self.queue.using)
            if not found.recurs:
                submission_of(target, found.name, type_, found.data, **options)
        except InvalidTaskError as error:
            raise StaysError("not possible here", str(error)) from error
        if self.dispatch and not self.dispatch.knows(type_):
            why = f"of the type '{type_}', for which there is no handler: say --map or --any-type."
            raise StaysError(why + nearest(type_, types_of(self.dispatch)))
        return replace(found, type=type_, options=options), queue

    def put(self, found: Importable, queue: str) -> None:
        """Store a schedule, unless it was stored before; raise StaysError if it can't be."""
        schedules = Schedules(using=self.queue.using)
        known = schedules.list().filter(name=found.name).first()
        if known is not None:
            if known.type != found.type:
                raise StaysError("with a name that a schedule of another type has", known.type)
            self.tally.there += 1
            return
        terms = {**found.options, "queue": queue}
        try:
            with transaction.atomic(using=self.queue.using):
                schedules.put(found.name, found.type, found.data, by="pq_import", **terms)
                if self.dry_run:
                    transaction.set_rollback(True, using=self.queue.using)
        except PerfectQueueError as error:
            raise StaysError("not possible here", str(error)) from error
        self.tally.schedules += 1
        self.tally.queues.add(queue)

    def submit(self, some: Sequence[Importable], name: str) -> None:
        """Store tasks; count those that are stored now, and those that were before."""
        queue = Queue(name, using=self.queue.using)
        stored = 0
        if not self.dry_run:
            tasks = [
                {"key": found.name, "type": found.type, "data": found.data, **found.options}
                for found in some
            ]
            stored = queue.submit_many(tasks, on_conflict="ignore")
        rows = queue.list().filter(key__in=[found.name for found in some])
        there: dict[str, str] = dict(rows.values_list("key", "type"))
        fresh = len({found.name for found in some} - there.keys()) if self.dry_run else stored
        if fresh:
            self.tally.queues.add(name)
        self.tally.stored += fresh
        known = sum(there.get(found.name) == found.type for found in some)
        self.tally.there += known - stored
        for found in some:
            if (type_ := there.get(found.name, found.type)) != found.type:
                why = "with a key that a task of another type has"
                self.tally.leave(found.name, StaysError(why, type_))


def terms_of_type(type_: str) -> Terms:
    """Return what ``@task`` says of the submit of a type; nothing for other handlers."""
    if not compat.HAS_TASKS:
        return {}
    from django_perfectqueue.backend.definition import definitions

    return terms_of(definitions.get(type_))


def is_declared(type_: str, data: object) -> bool:
    """Return whether ``@scheduled`` submits this type with these data."""
    same_type = (one.payload for one in declarations.values() if one.type == type_)
    return any(in_full(payload) == in_full(data) for payload in same_type)


def in_full(data: object) -> object:
    """Return the data of a call with both of its parts, other data as they are."""
    if isinstance(data, dict) and data.keys() <= {"args", "kwargs"}:
        return {"args": [], "kwargs": {}, **data}
    return data
