"""Whether a database has the tables that this release needs."""

from __future__ import annotations

import pkgutil
from importlib import import_module

from django.conf import settings
from django.db import connections
from django.db.migrations.recorder import MigrationRecorder

from django_perfectqueue.models import Task

Migration = MigrationRecorder.Migration


def lacks_tables(using: str) -> bool:
    connection = connections[using]
    tables = connection.introspection.table_names()
    if Task._meta.db_table not in tables:
        return True
    rows = Migration.objects.using(using).filter(app=Task._meta.app_label)
    recorded = rows.values_list("name", flat=True)
    if Migration._meta.db_table in tables and expected() <= {*recorded}:
        return False
    # Imported where it is needed: it reads the migrations of all apps.
    from django.db.migrations.executor import MigrationExecutor

    executor = MigrationExecutor(connection)
    newest = executor.loader.graph.leaf_nodes(Task._meta.app_label)
    return bool(executor.migration_plan(newest))


def expected() -> set[str]:
    """Return the names of this package's migrations, of wherever the project keeps them."""
    default = f"{Task._meta.app_config.name}.migrations"
    path = settings.MIGRATION_MODULES.get(Task._meta.app_label, default)
    folder = import_module(path).__path__ if path else ()
    modules = [name for _finder, name, is_folder in pkgutil.iter_modules(folder) if not is_folder]
    return {name for name in modules if name[0] not in "_~"}
