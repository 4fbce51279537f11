"""The table of the ancestor, PerfectQueue for Ruby."""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import ClassVar

from django.db import models
from django.utils.translation import gettext as _

from .source import Columns, Found, Left, Row, Source, Table, Terms

GZIP = b"\x1f\x8b"
LARGEST = 64 * 2**20
USERS = 10
UNREADABLE = (
    EOFError,
    OSError,
    OverflowError,
    RecursionError,
    TypeError,
    ValueError,
    zlib.error,
)


class Tasks(Table):
    """
    ``timeout`` is when a task is due, or when it comes back if a worker has it; where
    ``created_at`` is empty it has finished.
    """

    def __init__(self, terms: Terms) -> None:
        super().__init__(terms)
        self.name = terms.table or "perfectqueue"
        self.caps: dict[str, int] = {}

    columns: ClassVar[Columns] = {
        "id": models.CharField(max_length=256, primary_key=True),
        "timeout": models.IntegerField(),
        "data": models.BinaryField(null=True),
        "created_at": models.IntegerField(null=True),
    }

    more_columns: ClassVar[Columns] = {
        "resource": models.CharField(max_length=256, null=True),
        "max_running": models.IntegerField(null=True),
    }

    def wanted(self, rows: Row) -> Row:
        return rows.filter(created_at__isnull=False)

    def passed_over(self) -> Iterator[tuple[str, int]]:
        yield _("finished"), self.rows.filter(created_at__isnull=True).count()

    def read(self, row: Row) -> Found | Left:
        try:
            data = unpacked(row.data)
            due = datetime.fromtimestamp(row.timeout, tz=timezone.utc)
        except UNREADABLE as error:
            return Left(row.id, _("with data that can't be read"), str(error))
        type_ = data.pop("type", None) or row.id.partition(".")[0]
        user = getattr(row, "resource", None) or ""
        if (cap := getattr(row, "max_running", None)) is not None and user:
            self.caps[user] = cap
        return Found(
            row.id, {"key": row.id, "type": type_, "data": data, "user": user, "run_at": due}
        )

    def notes(self) -> Iterator[str]:
        if caps := sorted(self.caps.items()):
            shown = ", ".join(f"{user}={cap}" for user, cap in caps[:USERS])
            more = _(" and %d more") % (len(caps) - USERS) if len(caps) > USERS else ""
            yield _(
                "Each task's max_running is not moved; here it is set for a user, by pq_share: %s"
            ) % (shown + more)


class PerfectQueue(Source):
    name = "perfectqueue"
    kinds = (Tasks,)
    takes = frozenset({"table"})


def unpacked(stored: str | bytes | None) -> dict[str, object]:
    """
    Return the data of a task, the type among them.

    Raise ValueError, or what gzip raises, when they can't be read.
    """
    text = stored.encode() if isinstance(stored, str) else bytes(stored or b"")
    if text.startswith(GZIP):
        with gzip.open(io.BytesIO(text)) as file:
            text = file.read(LARGEST + 1)
        if len(text) > LARGEST:
            raise ValueError(_("unpacked it has more than %d bytes") % LARGEST)
    data = json.loads(text) if text else {}
    if not isinstance(data, dict):
        raise ValueError(_("it is no JSON object"))
    return data
