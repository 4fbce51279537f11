"""A cursor with the dialect of its database."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple, cast

from django.db.backends.utils import CursorWrapper as Cursor

from .dialects import Dialect
from .dialects.base import Row, numbers


class Session(NamedTuple):
    """What a statement needs; what differs by vendor is asked of the dialect."""

    cursor: Cursor
    dialect: Dialect

    def execute(
        self,
        sql: str,
        parameters: Mapping[str, object] | None = None,
        *,
        now: datetime | None = None,
        after: Mapping[str, float | None] | None = None,
        **lists: Iterable[int] | Iterable[str],
    ) -> Cursor:
        """
        Run one statement, as Dialect.execute() does; return the cursor.

        ``lists`` are the insides of the IN lists that the SQL names in braces.
        """
        for name, values in lists.items():
            inside, texts = listed(name, values)
            sql = sql.replace(f"{{{name}}}", inside)
            parameters = {**(parameters or {}), **texts} if texts else parameters
        return self.dialect.execute(self.cursor, sql, parameters, now=now, after=after)

    def rows(
        self, sql: str, parameters: Mapping[str, object] | None = None, **others: Any
    ) -> list[Row]:
        """Do the same; return the rows."""
        return list(self.execute(sql, parameters, **others).fetchall())


def listed(name: str, values: Iterable[int] | Iterable[str]) -> tuple[str, dict[str, str]]:
    """Return the inside of an IN list: numbers as they are, texts as parameters with these."""
    items = list(values)
    if items and isinstance(items[0], str):
        texts = {f"{name}_{number}": str(item) for number, item in enumerate(items)}
        return ", ".join([f"%({each})s" for each in texts]), texts
    return numbers(cast("list[int]", items)), {}
