"""What other queues have in common: tables, whose rows are tasks or stay where they are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

from django.apps import apps
from django.apps.registry import Apps
from django.db import Error, connections, models
from django.utils.translation import gettext as _

from django_perfectqueue.conf import nearest
from django_perfectqueue.exceptions import ConfigError, PerfectQueueError

Columns: TypeAlias = "dict[str, models.Field[Any, Any]]"
"""The columns of a table that are read, by their names."""

Row: TypeAlias = Any
"""A row of another queue's table, or a QuerySet of them: only its Table knows the columns."""


@dataclass(frozen=True, slots=True)
class Found:
    """
    A row that is a task: ``task`` has the arguments of Queue.submit().

    ``id`` is the row's own, and ``queue`` the name of its queue there, if that means the same
    here.
    """

    id: Row
    task: Row
    queue: str | None = None

    @property
    def name(self) -> str:
        return str(self.task["key"])


@dataclass(frozen=True, slots=True)
class FoundSchedule:
    """
    A row that is a schedule: ``type``, ``data`` and ``terms`` are those of Schedules.put().

    ``id`` and ``queue`` are as those of Found.
    """

    id: Row
    name: str
    type: str
    data: object
    terms: Row
    queue: str | None = None


Read: TypeAlias = "Found | FoundSchedule | Left"
"""What a row means."""


@dataclass(frozen=True, slots=True)
class Left:
    """
    A row that is not moved, and why: the same words for all of a kind.

    ``detail`` is what differs between them. ``fixable`` means that someone can do something
    about it, and ``listed`` that each of its kind is named.
    """

    name: str
    why: str
    detail: str = ""
    fixable: bool = True
    listed: bool = False


@dataclass(frozen=True, slots=True)
class Terms:
    """What was asked for: where to read, and what of it."""

    using: str
    table: str | None = None
    queue: str | None = None
    trust_pickle: bool = False


class SourceError(PerfectQueueError):
    """The database of the source can't be read, or nothing deleted there."""


class Table:
    """
    One table of another queue.

    A subclass has its ``name``, its ``columns`` and ``more_columns``, which not every version
    has, and reads a row.
    """

    name: str
    columns: ClassVar[Columns]
    more_columns: ClassVar[Columns] = {}

    def __init__(self, terms: Terms) -> None:
        self.terms = terms

    def read(self, row: Row) -> Read:
        """Return what a row means."""
        raise NotImplementedError

    def wanted(self, rows: Row) -> Row:
        """Return those rows, as a QuerySet, that may be tasks."""
        return rows

    def passed_over(self) -> Iterator[tuple[str, int]]:
        """Yield why some of the other rows are not moved, and how many these are."""
        return iter(())

    def notes(self) -> Iterator[str]:
        """Yield what else there is to be said in the end."""
        return iter(())

    def open(self) -> None:
        """
        Look at the table.

        Raise ConfigError when it is not there, or not as it must be.
        """
        there = columns_of(self.name, self.terms.using)
        lacking = [name for name in self.columns if name not in there]
        if lacking:
            raise ConfigError(
                _("The table '%(table)s' has no column '%(column)s': it is another one.")
                % {"table": self.name, "column": lacking[0]}
            )
        more = {name: field for name, field in self.more_columns.items() if name in there}
        self.model = model_of(self.name, {**self.columns, **more})

    @property
    def rows(self) -> Row:
        return self.model._default_manager.using(self.terms.using)

    def count(self) -> int:
        found: int = self.wanted(self.rows).count()
        return found

    def page(self, after: object, size: int, *, lock: bool) -> list[Row]:
        """Return the next rows; locked ones, if they are to be deleted, where that can be."""
        rows = self.wanted(self.rows).order_by("pk")
        if lock:
            rows = locked(rows, self.terms.using)
        return list((rows if after is None else rows.filter(pk__gt=after))[:size])

    def delete(self, ids: Sequence[object]) -> int:
        count: int = self.rows.filter(pk__in=ids).delete()[0]
        return count


class Source:
    """Another queue: its tables, and what it can't be asked for."""

    name: ClassVar[str]
    kinds: ClassVar[tuple[type[Table], ...]]
    takes: ClassVar[frozenset[str]] = frozenset()
    """Which of the options it knows that not every source does."""

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        for option in ("table", "queue", "trust_pickle"):
            if getattr(terms, option) and option not in self.takes:
                raise ConfigError(self.has_none(option))
        self.tables = [kind(terms) for kind in self.kinds]
        with reading(terms.using):
            for table in self.tables:
                table.open()

    def has_none(self, option: str) -> str:
        texts = {
            "table": _("%s has tables of fixed names: it takes no --table."),
            "queue": _("%s has one queue in a table: it takes no --from-queue."),
            "trust_pickle": _("%s has no pickles: it takes no --trust-pickle."),
        }
        return texts[option] % self.name


@contextmanager
def reading(using: str) -> Iterator[None]:
    """Raise SourceError, which names the database, for an error in it, or a value that is none."""
    try:
        yield
    except (Error, ValueError) as error:
        raise SourceError(
            _("The database '%(using)s', from which to import, refused: %(error)s")
            % {"using": using, "error": " ".join(str(error).split())}
        ) from error


def columns_of(table: str, using: str) -> set[str]:
    """
    Return the names of a table's columns.

    Raise ConfigError when there is no such table.
    """
    connection = connections[using]
    with connection.cursor() as cursor:
        names = connection.introspection.table_names(cursor, include_views=True)
        if table not in names:
            raise ConfigError(
                _("The database '%(using)s' has no table '%(table)s'.")
                % {"using": using, "table": table}
                + nearest(table, set(names) - ours())
                + " "
                + _("--from-database names the one that has it.")
            )
        return {
            column.name for column in connection.introspection.get_table_description(cursor, table)
        }


def ours() -> set[str]:
    """Return the tables of this package, which are nobody's source."""
    return {model._meta.db_table for model in apps.get_app_config("perfectqueue").get_models()}


def model_of(table: str, columns: dict[str, models.Field[object, object]]) -> type[models.Model]:
    """Return a model for a table of others, which no registry of models knows."""
    meta = type(
        "Meta",
        (),
        {"apps": Apps(), "app_label": "importing", "db_table": table, "managed": False},
    )
    return type("Row", (models.Model,), {"Meta": meta, "__module__": __name__, **deepcopy(columns)})


def locked(rows: Row, using: str) -> Row:
    """Lock rows; rows locked by others are being worked on."""
    features = connections[using].features
    if not features.has_select_for_update:
        return rows
    return rows.select_for_update(
        skip_locked=features.has_select_for_update_skip_locked,
        of=("self",) if features.has_select_for_update_of else (),
    )


def call(args: Iterable[object], kwargs: dict[str, object]) -> dict[str, object]:
    """
    Return the data of a task that calls a function, as those of Django's tasks are.

    Raise TypeError when they are no list and no dict.
    """
    return {"args": [*args], "kwargs": {**kwargs}}
