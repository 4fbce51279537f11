"""Whether a database has the tables that this release needs, and rows that can be read."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterable, Iterator
from importlib import import_module

from django.conf import settings
from django.db import Error, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Model, Q

from django_perfectqueue.models import Task, Worker
from django_perfectqueue.models.fields import conditions

RECORDS = "django_migrations"
RECORDED = f"SELECT name FROM {RECORDS} WHERE app = %s"  # noqa: S608


def lacks_tables(using: str) -> bool:
    connection = connections[using]
    tables = connection.introspection.table_names()
    if Task._meta.db_table not in tables:
        return True
    if RECORDS in tables and recorded(connection).issuperset(expected()):
        return False
    # Imported where it is needed: it reads the migrations of all apps.
    from django.db.migrations.executor import MigrationExecutor

    executor = MigrationExecutor(connection)
    newest = executor.loader.graph.leaf_nodes(Task._meta.app_label)
    return bool(executor.migration_plan(newest))


def recorded(connection: BaseDatabaseWrapper) -> set[str]:
    """Return the names of this package's migrations that the database has had."""
    with connection.cursor() as cursor:
        cursor.execute(RECORDED, [Task._meta.app_label])
        return {name for (name,) in cursor.fetchall()}


def expected() -> set[str]:
    """Return the names of this package's migrations, of wherever the project keeps them."""
    default = f"{Task._meta.app_config.name}.migrations"
    path = settings.MIGRATION_MODULES.get(Task._meta.app_label, default)
    folder = import_module(path).__path__ if path else ()
    modules = [name for _finder, name, is_folder in pkgutil.iter_modules(folder) if not is_folder]
    return {name for name in modules if name[0] not in "_~"}


def unmigrated(using: str) -> str:
    """Say that it lacks them, and what to do."""
    command = "manage.py migrate" + ("" if using == "default" else f" --database {using}")
    return f"The database '{using}' is not migrated. Run: {command}"


# Rows with values that can't be read, where no constraint of the database keeps them out.


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
