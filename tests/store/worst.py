"""Rows with the worst values that a column may get by SQL, one column at a time."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from django.apps import apps
from django.db import Error, connection, models, transaction

from django_perfectqueue.models import Task, Ticket

FAR = (2**63 - 1, -(2**63), 2**31 - 1, -(2**31), -1)
FLOATS = (float("inf"), float("-inf"), float("nan"), 1e308, -1e308, -1.0)
READABLE = ("0001-01-02 00:00:00", "9999-12-29 23:59:59")
TIMES = (
    "infinity",
    "-infinity",
    "4713-01-01 00:00:00 BC",
    "294276-12-31 23:59:59",
    "0001-01-01 00:00:00",
    *READABLE,
    "0000-00-00 00:00:00",
    "-4713-01-01 00:00:00",
    "9999-12-31 23:59:59.999999",
    "yesterday or so",
    "",
)
WORDS = (
    "",
    "{",
    "[1",
    "5",
    "[1]",
    '{"a": null}',
    "null",
    "?",
    "a\x00b",
    "\x1b[2J\x07\n\u202e",
    "\ud7ff\U0001f600",
    "x" * 20_000,
)
FORBIDDEN = (models.DateTimeField, models.FloatField)

numbers = itertools.count(1)


@dataclass(frozen=True)
class BadRow:
    """A row with one value that should not be there; ``refused`` is why it is not."""

    model: type[models.Model]
    column: str
    value: object
    pk: object = None
    refused: str = ""

    def __str__(self) -> str:
        return f"{self.model._meta.db_table}.{self.column}={str(self.value)[:30]!r}"


def all_models() -> list[type[models.Model]]:
    return [
        model for model in apps.get_app_config("perfectqueue").get_models() if not model._meta.proxy
    ]


def columns(model: type[models.Model]) -> list[Any]:
    return [
        field
        for field in model._meta.local_concrete_fields
        if not isinstance(field, models.GeneratedField)
    ]


def worst_of(field: Any) -> tuple[object, ...]:
    """Return values that nobody should store in a column."""
    target = field.target_field if field.is_relation else field
    empty = (None,) if field.null else ()
    if isinstance(target, models.DateTimeField):
        return (*empty, *TIMES)
    if isinstance(target, models.FloatField):
        return (*empty, *FLOATS)
    if isinstance(target, models.BooleanField):
        return (*empty, 7)
    if isinstance(target, models.IntegerField):
        return (*empty, *FAR)
    return (*empty, *WORDS)


def must_be_refused(row: BadRow) -> bool:
    """Return whether a constraint or the type of its column has to keep the value out."""
    field = row.model._meta.get_field(row.column)
    known = row.value in (None, *READABLE) or (row.value == -1.0 and not field.choices)
    if known or (row.value == "" and field.blank):
        return False
    if connection.vendor == "sqlite":
        # It stores NaN as null, and a time as any text.
        is_nan = row.value != row.value and field.null
        is_text = isinstance(field, models.DateTimeField) and row.value in READABLE
        if is_nan or is_text:
            return False
    return isinstance(field, FORBIDDEN) or bool(field.choices)


def bad_rows(samples: dict[type[models.Model], list[object]]) -> Iterator[BadRow]:
    """Store a copy of each sample with each of the worst values, and yield what became of it."""
    for model in all_models():
        for pk in samples[model]:
            sample = row_of(model, pk)
            for field in columns(model):
                if isinstance(field, models.AutoField):
                    # The largest one would leave no number for the next row.
                    continue
                for value in worst_of(field):
                    yield stored(model, sample, field, value)


def row_of(model: type[models.Model], pk: object) -> dict[str, object]:
    return model._base_manager.filter(pk=pk).values().get()


def stored(
    model: type[models.Model], sample: dict[str, object], field: Any, value: object
) -> BadRow:
    try:
        with transaction.atomic():
            pk = insert(model, sample, {field.column: value})
    except (Error, OverflowError, ValueError, UnicodeError) as error:
        return BadRow(model, field.name, value, refused=f"{type(error).__name__}: {error}")
    return BadRow(model, field.name, value, pk=pk)


def insert(
    model: type[models.Model], sample: dict[str, object], changed: dict[str, object]
) -> object:
    """Insert a copy of a row by SQL, with names of its own; return its primary key."""
    if model is Task:
        pk = insert_one(model, sample, changed)
        if not sample["outcome"]:
            ticket = row_of(Ticket, sample["id"])
            insert_one(Ticket, {**ticket, "task_id": pk}, {"task_id": pk})
        return pk
    key = model._meta.pk
    if key.is_relation and key.column not in changed:
        whole = insert_one(Task, row_of(Task, sample[key.attname]), {})
        sample = {**sample, key.attname: whole}
    return insert_one(model, sample, changed)


def insert_one(
    model: type[models.Model], sample: dict[str, object], changed: dict[str, object]
) -> object:
    quote = connection.ops.quote_name
    values = {
        field.column: field.get_db_prep_save(sample[field.attname], connection)
        for field in columns(model)
    }
    number = next(numbers)
    for field in distinct(model):
        # Others of the same set keep their values.
        text = isinstance(field, models.CharField)
        values[field.column] = f"name:bad{number}" if text else 10**9 + number
    values |= changed
    key = model._meta.pk
    if isinstance(key, models.AutoField) and key.column not in changed:
        del values[key.column]
    table, names = quote(model._meta.db_table), ", ".join(map(quote, values))
    marks = ", ".join(["%s"] * len(values))
    with connection.cursor() as cursor:
        cursor.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", list(values.values()))
        if key.column in values:
            return values[key.column]
        cursor.execute(f"SELECT MAX({quote(key.column)}) FROM {table}")
        return cursor.fetchone()[0]


def distinct(model: type[models.Model]) -> list[Any]:
    """Return one column of each set that has to be unique, which is no reference to a task."""
    sets = [[field.name] for field in columns(model) if field.unique and not field.is_relation]
    sets += [list(one.fields) for one in model._meta.total_unique_constraints]
    fields = [model._meta.get_field(names[-1]) for names in sets]
    return [field for field in fields if not isinstance(field, models.AutoField)]
