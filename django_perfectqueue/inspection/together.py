"""Read the rows of several tables by one statement."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from typing import Any

from django.core.exceptions import EmptyResultSet
from django.db import connections, models
from django.db.backends.base.base import BaseDatabaseWrapper

Rows = models.QuerySet[Any, Any]

ARRAYS = {
    "postgresql": "CAST(json_build_array({}) AS text)",
    "mysql": "JSON_ARRAY({})",
    "sqlite": "json_array({})",
}


def read_together(querysets: Sequence[Rows], *, using: str) -> list[list[Any]]:
    """
    Return the objects of each QuerySet, which all are read by one statement.

    Each row comes as an array of JSON, so that tables of any columns fit into one result.
    Annotations are kept, ``select_related()`` is not. A QuerySet with an order needs a limit:
    MariaDB ignores the order of a part without one.
    """
    connection = connections[using]
    parts, parameters, compilers = list[str](), list[Any](), dict[int, Any]()
    for number, rows in enumerate(querysets):
        compiler = rows.query.get_compiler(using)
        try:
            sql, values = compiler.as_sql(with_col_aliases=True)
        except EmptyResultSet:
            continue
        array = ARRAYS[connection.vendor].format(", ".join(cells(connection, compiler)))
        parts.append(f"SELECT {number}, {array} FROM ({sql}) AS part_{number}")  # noqa: S608
        parameters += values
        compilers[number] = compiler
    found: list[list[object]] = [[] for _rows in querysets]
    if parts:
        with connection.cursor() as cursor:
            cursor.execute(" UNION ALL ".join(parts), parameters)
            for number, row in cursor.fetchall():
                values = json.loads(row)
                found[number].append(made(querysets[number], compilers[number], values, using))
    return found


def cells(connection: BaseDatabaseWrapper, compiler: Any) -> Iterator[str]:
    """Yield the SQL of each column; MariaDB wants all texts of an array in one collation."""
    for column, _sql, alias in compiler.select:
        name = connection.ops.quote_name(alias)
        is_text = isinstance(column.output_field, models.CharField | models.TextField)
        if is_text and connection.vendor == "mysql":
            name = f"CONVERT({name} USING utf8mb4) COLLATE utf8mb4_bin"
        yield name


def made(rows: Rows, compiler: Any, values: list[Any], using: str) -> models.Model:
    """Return the object of a row."""
    columns = [column for column, _sql, _alias in compiler.select]
    values = [
        value if value is None else converted(column.output_field, value)
        for column, value in zip(columns, values, strict=True)
    ]
    fields = compiler.klass_info["select_fields"]
    names = [columns[index].target.attname for index in fields]
    one: models.Model = rows.model.from_db(using, names, [values[index] for index in fields])
    for name, index in compiler.annotation_col_map.items():
        setattr(one, name, values[index])
    return one


def converted(field: models.Field[Any, Any], value: Any) -> object:
    """Return a value of JSON as its column has it."""
    if isinstance(field, models.DateTimeField):
        at = datetime.fromisoformat(value)
        return at if at.tzinfo else at.replace(tzinfo=timezone.utc)
    if isinstance(field, models.JSONField):
        return json.loads(value) if isinstance(value, str) else value
    return field.to_python(value)
