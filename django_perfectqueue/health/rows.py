"""Rows with values that can't be read, where no constraint of the database keeps them out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from django.db import Error, connections
from django.db.models import Model, Q

from django_perfectqueue.models import Worker
from django_perfectqueue.models.fields import conditions

CONSTRAINTS = {
    "postgresql": "SELECT conname FROM pg_constraint WHERE contype = 'c'",
    "mysql": (
        "SELECT constraint_name FROM information_schema.check_constraints"
        " WHERE constraint_schema = DATABASE()"
    ),
    "sqlite": "SELECT sql FROM sqlite_master WHERE type = 'table'",
}


def unheld(using: str) -> Iterator[str]:
    """Say which constraints the database lacks, and name a row that each would refuse."""
    with connections[using].cursor() as cursor:
        cursor.execute(CONSTRAINTS[connections[using].vendor])
        known = " ".join(name for (name,) in cursor.fetchall() if name)
    for model in conditions:
        if f"{model._meta.db_table}_values" not in known:
            yield f"The table {model._meta.db_table} lacks its constraint."
            yield from refused(model, using)


def refused(model: type[Model], using: str) -> Iterator[str]:
    """Name the first row whose value can't be read, of each column."""
    for name, condition in conditions[model].items():
        rows = model._base_manager.using(using).filter(~Q(condition)).order_by()
        try:
            found = rows.values_list("pk", flat=True).first()
        except Error:  # what PostgreSQL or SQLite says of a text that is no JSON
            found = "?"
        if found is not None:
            column = model._meta.get_field(name).column  # type: ignore[union-attr]
            yield f"{model._meta.db_table} id={found}: {column} can't be read."


def unreadable(workers: Iterable[Worker]) -> Iterator[str]:
    """Name the rows of workers whose JSON is not what a worker writes."""
    for worker in workers:
        for column in worker.unreadable():
            yield f"{Worker._meta.db_table} id={worker.pk}: {column} can't be read."
