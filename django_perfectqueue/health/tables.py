"""Whether a database has the tables that this release needs."""

from __future__ import annotations

import pkgutil
from importlib import import_module

from django.conf import settings
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from django_perfectqueue.models import Task

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
