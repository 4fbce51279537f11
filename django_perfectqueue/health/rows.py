"""Rows with values that can't be read, where no constraint of the database keeps them out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from django.apps import apps
from django.db import Error, connections
from django.db.models import CheckConstraint, Model, Q

from django_perfectqueue.models import Task, Worker

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
    for model in apps.get_app_config(Task._meta.app_label).get_models():
        for constraint in model._meta.constraints:
            if isinstance(constraint, CheckConstraint) and constraint.name not in known:
                rows = " ".join(refused(model, constraint, using))
                yield f"The constraint {constraint.name} is missing. {rows}".strip()


def refused(model: type[Model], constraint: CheckConstraint, using: str) -> Iterator[str]:
    """Name the first row that fails each condition of a constraint."""
    for condition in constraint.condition.children:  # type: ignore[union-attr]
        rows = model._base_manager.using(using).filter(~Q(condition)).order_by()
        try:
            found = rows.values_list("pk", flat=True).first()
        except Error:  # what PostgreSQL or SQLite says of a text that is no JSON
            yield named(model, "?", condition)
        else:
            if found is not None:
                yield named(model, found, condition)


def named(model: type[Model], pk: object, condition: Any) -> str:
    if isinstance(condition, Q):
        column = str(condition)
    else:
        is_pair = isinstance(condition, tuple)
        name = condition[0] if is_pair else condition.get_source_expressions()[0].name
        column = str(model._meta.get_field(name.partition("__")[0]).column)  # type: ignore[union-attr]
    return f"{model._meta.db_table} id={pk}: {column} can't be read."


def unreadable(workers: Iterable[Worker]) -> Iterator[str]:
    """Name the rows of workers whose JSON is not what a worker writes."""
    for worker in workers:
        for column in worker.unreadable():
            yield f"{Worker._meta.db_table} id={worker.pk}: {column} can't be read."
