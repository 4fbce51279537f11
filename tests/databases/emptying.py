"""
What Django's flush does after each test that commits, for less.

Only tables that were used are emptied. Content types and permissions stay, so nothing is
migrated again: flush would delete and remake them each time.
"""

from __future__ import annotations

from dataclasses import dataclass

from django.db import OperationalError, connections, transaction
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
    try:
        empty_once(connection)
    except OperationalError:
        # MariaDB 11.8 refuses rows that have changed while it waited for their commit.
        empty_once(connection)


def empty_once(connection: BaseDatabaseWrapper) -> None:
    quoted = connection.ops.quote_name
    there = connection.introspection.django_table_names(only_existing=True, include_views=False)
    tables = {table: quoted(table) for table in sorted(set(there) - KEPT)}
    way = WAYS[connection.vendor]
    with connection.constraint_checks_disabled(), connection.cursor() as cursor:
        if way.before:
            cursor.execute(way.before)
        with transaction.atomic(connection.alias):
            if way.lock:
                cursor.execute(way.lock.format(", ".join(tables.values())))
            cursor.execute(" UNION ALL ".join(way.used.format(*each) for each in tables.items()))
            used = [quoted(table) for (table,) in cursor.fetchall()]
            for each in [", ".join(used)] if way.together and used else used:
                cursor.execute(way.empty.format(each))


@dataclass(frozen=True)
class Way:
    """
    How a database finds the tables that were used, and empties them.

    A server may still commit for a process that was killed. ``before`` the transaction begins,
    or by a ``lock``, it is made to wait for that. SQLite waits by itself: it begins IMMEDIATE.
    """

    before: str = ""
    lock: str = ""
    used: str = "SELECT '{0}' WHERE EXISTS (SELECT 1 FROM {1})"
    empty: str = "DELETE FROM {}"
    together: bool = False


WAYS = {
    "sqlite": Way(),
    "mysql": Way(before="SET TRANSACTION ISOLATION LEVEL SERIALIZABLE"),
    # Deleted rows keep their room until a vacuum, and would count in what a later test measures.
    "postgresql": Way(
        lock="LOCK TABLE {} IN ACCESS EXCLUSIVE MODE",
        used="SELECT '{0}' WHERE pg_relation_size('{1}') > 0",
        empty="TRUNCATE {} CASCADE",
        together=True,
    ),
}
