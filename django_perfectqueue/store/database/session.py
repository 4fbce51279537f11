"""A cursor with the dialect of its database."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from django.db.backends.utils import CursorWrapper as Cursor

from .dialects import Dialect


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
    ) -> Any:
        """Run one statement, as Dialect.execute() does; return the cursor."""
        return self.dialect.execute(self.cursor, sql, parameters, now=now, after=after)
