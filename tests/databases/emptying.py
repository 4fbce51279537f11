"""
What Django's flush does after each test that commits, for a tenth of its time.

Only tables that have rows are emptied. Content types and permissions stay, so nothing is
migrated again: flush would delete and remake them each time.
"""

from __future__ import annotations

from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.test import TransactionTestCase

KEPT = {"django_content_type", "auth_permission"}

flush = TransactionTestCase._fixture_teardown


def empty_instead_of_flush() -> None:
    TransactionTestCase._fixture_teardown = empty_after  # type: ignore[method-assign]


def empty_after(test: TransactionTestCase) -> None:
    if test.available_apps is not None or test.serialized_rollback:
        return flush(test)
    for name in test._databases_names(include_mirrors=False):
        empty(connections[name])
    return None


def empty(connection: BaseDatabaseWrapper) -> None:
    quoted = connection.ops.quote_name
    there = connection.introspection.django_table_names(only_existing=True, include_views=False)
    tables = {table: quoted(table) for table in sorted(set(there) - KEPT)}
    before, after = WAITING.get(connection.vendor, ("", ""))
    with connection.constraint_checks_disabled(), connection.cursor() as cursor:
        if before:
            cursor.execute(before)
        with transaction.atomic(connection.alias):
            if after:
                cursor.execute(after.format(", ".join(tables.values())))
            cursor.execute(" UNION ALL ".join(HAS_ROWS.format(*each) for each in tables.items()))
            for (table,) in cursor.fetchall():
                cursor.execute(f"DELETE FROM {quoted(table)}")


HAS_ROWS = "SELECT '{0}' WHERE EXISTS (SELECT 1 FROM {1})"

# A server may still commit for a process that was killed. Its rows are waited for, by what is
# sent before and after the transaction's begin. SQLite's waits by itself: it is IMMEDIATE.
WAITING = {
    "postgresql": ("", "LOCK TABLE {} IN ACCESS EXCLUSIVE MODE"),
    "mysql": ("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE", ""),
}
