"""A table of another queue: which columns it has, and what its rows mean here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

from django.apps import apps
from django.apps.registry import Apps
from django.db import Error, connections, models
from django.db.models import Q

from django_perfectqueue.exceptions import ConfigError, PerfectQueueError
from django_perfectqueue.lib.checks import nearest

Columns: TypeAlias = "dict[type[models.Field[Any, Any]], str]"
"""The columns of a table that are read: for each kind their names."""

Row: TypeAlias = Any
"""A row of another queue's table, or a QuerySet of them: only its Table knows the columns."""


@dataclass(frozen=True, slots=True)
class Importable:
    """
    A row that is a task of the key ``name``, or, if it ``recurs``, a schedule of that name.

    ``options`` are those of Queue.submit() or Schedules.put(). ``id`` is the row's own, and
    ``queue`` the name of its queue there, if that means the same here.
    """

    id: Row
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
    """The database of the source can't be read, or nothing deleted there."""


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

    A subclass has its ``columns`` beside ``id``, whose kind is ``key``, and ``more_columns``,
    which not every version has and which are None in the others. ``passed_over`` are the rows
    that are no waiting tasks, by why.
    """

    source: ClassVar[str]
    usual_name: ClassVar[str]
    key: ClassVar[type[models.Field[Any, Any]]] = models.IntegerField
    columns: ClassVar[Columns]
    more_columns: ClassVar[Columns] = {}
    passed_over: ClassVar[Mapping[str, Q]]
    queue_column: ClassVar[str] = ""

    def __init__(self, using: str, *, name: str | None = None, queue: str | None = None) -> None:
        self.using = using
        self.name = name or self.usual_name
        self.queue = queue
        with reading(using):
            self.open()

    def open(self) -> None:
        """
        Look at the table.

        Raise ConfigError when it is not there, or not as it must be.
        """
        there = columns_of(self.name, self.using)
        fields = fields_of(self.columns)
        for name in fields:
            if name not in there:
                raise ConfigError(f"The table '{self.name}' has no column '{name}': it is another.")
        if self.queue and self.queue_column not in there:
            raise ConfigError(f"The table '{self.name}' names no queue: it takes no --from-queue.")
        for name, field in fields_of(self.more_columns).items():
            fields[name] = field if name in there else None
        self.model = model_of(self.name, self.key, fields)

    def label(self, row: Row) -> str:
        """Return what a row is called where it stays."""
        return str(row.pk)

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
        rows = self.model._default_manager.using(self.using)
        return rows.filter(**{self.queue_column: self.queue}) if self.queue else rows

    def wanted(self) -> Row:
        """Return those rows, as a QuerySet, that may be tasks."""
        rows = self.rows
        for condition in self.passed_over.values():
            rows = rows.exclude(condition)
        return rows

    def page(self, after: object, size: int, *, lock: bool) -> list[Row]:
        """Return the next rows; locked ones, if they are to be deleted, where that can be."""
        rows = self.wanted().order_by("pk")
        features = connections[self.using].features
        if lock and features.has_select_for_update:
            # Rows locked by others are being worked on.
            skip_locked = features.has_select_for_update_skip_locked
            rows = rows.select_for_update(skip_locked=skip_locked)
        return list((rows if after is None else rows.filter(pk__gt=after))[:size])

    def delete(self, ids: Sequence[object]) -> int:
        count: int = self.rows.filter(pk__in=ids).delete()[0]
        return count


def columns_of(table: str, using: str) -> set[str]:
    """
    Return the names of a table's columns.

    Raise ConfigError when there is no such table.
    """
    connection = connections[using]
    with connection.cursor() as cursor:
        names = connection.introspection.table_names(cursor, include_views=True)
        if table not in names:
            ours = apps.get_app_config("perfectqueue").get_models()
            others = set(names) - {model._meta.db_table for model in ours}
            raise ConfigError(
                f"The database '{using}' has no table '{table}'.{nearest(table, others)}"
                " --from-database names the one that has it."
            )
        description = connection.introspection.get_table_description(cursor, table)
        return {column.name for column in description}


def fields_of(columns: Columns) -> dict[str, models.Field[Any, Any] | None]:
    """Return the fields of a model; only for reading, so each may be empty and of any length."""
    return {name: kind(null=True) for kind, names in columns.items() for name in names.split()}


def model_of(
    table: str, key: type[models.Field[Any, Any]], fields: Mapping[str, object]
) -> type[models.Model]:
    """Return a model for a table of others, which no registry of models knows."""
    options = {"apps": Apps(), "app_label": "importing", "db_table": table, "managed": False}
    members = {"Meta": type("Meta", (), options), "__module__": __name__, **fields}
    return type("Row", (models.Model,), {"id": key(primary_key=True), **members})


def call(args: object, kwargs: object) -> dict[str, object]:
    """
    Return the data of a task that calls a function, as those of Django's tasks are.

    Raise TypeError when they are no list and no dict.
    """
    if not (isinstance(args, list) and isinstance(kwargs, dict)):
        raise TypeError("args is no list, or kwargs no dict")
    return {"args": args, "kwargs": kwargs}
