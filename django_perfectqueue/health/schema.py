"""Whether a database has the tables that this release needs."""

from __future__ import annotations

from django.db import connections
from django.db.migrations.executor import MigrationExecutor
from django.utils.translation import gettext as _

from django_perfectqueue.models import Task


def lacks_tables(using: str) -> bool:
    connection = connections[using]
    if Task._meta.db_table not in connection.introspection.table_names():
        return True
    executor = MigrationExecutor(connection)
    newest = executor.loader.graph.leaf_nodes(Task._meta.app_label)
    return bool(executor.migration_plan(newest))


def unmigrated(using: str) -> str:
    """Say that it lacks them, and what to do."""
    command = "manage.py migrate" + ("" if using == "default" else f" --database {using}")
    return _("The database '%(using)s' is not migrated. Run: %(command)s") % {
        "using": using,
        "command": command,
    }
