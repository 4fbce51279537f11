import sqlite3
from contextlib import closing, contextmanager
from tempfile import TemporaryDirectory
from unittest import mock, skipUnless

from django.core import checks
from django.db import connection, connections
from django.test import TestCase, override_settings

from django_perfectqueue.checks.servers import check_server, check_server_settings

from .test_checks import ids


class ServerTests(TestCase):
    def test_this_server_will_do(self):
        self.assertEqual(check_server(databases=["default"]), [])

    def test_a_server_that_can_not_pass_over_locked_rows(self):
        features = mock.Mock(has_select_for_update_skip_locked=False, supports_transactions=True)
        with mock.patch.object(connection, "features", features):
            found = check_server(databases=["default"])

        self.assertEqual(ids(found), [] if connection.vendor == "sqlite" else ["E007"])

    def test_a_server_without_transactions(self):
        features = mock.Mock(has_select_for_update_skip_locked=True, supports_transactions=False)
        with mock.patch.object(connection, "features", features):
            self.assertEqual(ids(check_server(databases=["default"])), ["E010"])

    def test_no_server_is_asked_unless_it_is_named(self):
        """
        ``check`` and ``runserver`` work without a database.
        """
        with self.assertNumQueries(0):
            self.assertEqual(check_server(), [])
            self.assertEqual(check_server(databases=["other"]), [])
            checks.run_checks()

    def test_no_command_of_ours_waits_for_it(self):
        """
        Django hands every alias to a check that was asked for by a tag: with the
        database down, pq_submit would end in a traceback before it could say so.
        """
        features = mock.PropertyMock(side_effect=AssertionError)
        with mock.patch.object(type(connections["default"]), "features", features, create=True):
            with self.assertRaises(AssertionError):
                checks.run_checks(tags=[checks.Tags.database], databases=["default"])
            checks.run_checks(tags=["perfectqueue"], databases=["default"])


class ServerSettingsTests(TestCase):
    def found(self):
        return check_server_settings(databases=["default"])

    def test_the_tests_own_server_lacks_nothing_but_memory(self):
        self.assertLessEqual(set(ids(self.found())), {"W008"})

    def test_no_server_is_asked_unless_it_is_named(self):
        with self.assertNumQueries(0):
            self.assertEqual(check_server_settings(), [])
            self.assertEqual(check_server_settings(databases=["other"]), [])

    @skipUnless(connection.vendor == "postgresql", "PostgreSQL's settings")
    def test_postgresql_that_may_forget_or_takes_no_writes(self):
        for setting, value, expected in (
            ("synchronous_commit", "on", []),
            ("synchronous_commit", "local", []),
            ("synchronous_commit", "off", ["W008"]),
            ("transaction_isolation", "repeatable read", ["W004"]),
            ("transaction_read_only", "on", ["E013"]),
            ("idle_session_timeout", "60000", ["W017"]),
            ("idle_session_timeout", "600000", []),
        ):
            values = GOOD_POSTGRESQL | {setting: value}
            own = connection.connection.info.backend_pid
            with self.subTest(f"{setting} {value}"), answers(list(values.items()), (own,)):
                self.assertEqual(ids(self.found()), expected)

    @skipUnless(connection.vendor == "postgresql", "PostgreSQL's poolers")
    def test_postgresql_behind_a_pooler(self):
        connection.ensure_connection()
        with answers(list(GOOD_POSTGRESQL.items()), (connection.connection.info.backend_pid + 1,)):
            self.assertEqual(ids(self.found()), ["W019"])

    @skipUnless(connection.vendor == "mysql", "MySQL's settings")
    def test_mysql_that_may_forget_or_takes_no_writes(self):
        for row, expected in (
            ((0, 1, 28_800), []),
            ((0, 2, 28_800), ["W008"]),
            ((1, 1, 28_800), ["E013"]),
            (("NO_LOCK", 1, 28_800), ["E013"]),
            ((0, 1, 60), ["W017"]),
        ):
            with self.subTest(row), answers([], row):
                self.assertEqual(ids(self.found()), expected)

    @skipUnless(connection.vendor == "mysql", "MariaDB's clusters")
    def test_a_node_of_a_cluster_that_does_not_wait_for_the_others(self):
        for waits, expected in (("0", ["W021"]), ("1", [])):
            rows = [("wsrep_on", "ON"), ("wsrep_sync_wait", waits)]
            with self.subTest(waits), answers(rows, (0, 1, 28_800)):
                self.assertEqual(ids(self.found()), expected)

    @skipUnless(connection.vendor == "sqlite", "SQLite's pragmas")
    def test_sqlite_whose_readers_keep_out_writers(self):
        with file_opened("PRAGMA journal_mode = DELETE"):
            [found] = self.found()

        self.assertEqual(ids([found]), ["W009"])
        self.assertIn("'delete'", found.msg)
        self.assertIn("PRAGMA journal_mode=WAL", found.hint)
        with file_opened("PRAGMA journal_mode = DELETE"), override_settings(DEBUG=True):
            self.assertEqual(self.found(), [])

    @skipUnless(connection.vendor == "sqlite", "SQLite's pragmas")
    def test_sqlite_that_may_forget(self):
        with file_opened("PRAGMA journal_mode = WAL", "PRAGMA synchronous = OFF"):
            self.assertEqual(ids(self.found()), ["W008"])


GOOD_POSTGRESQL = {
    "transaction_read_only": "off",
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
    "transaction_isolation": "read committed",
}


def answers(rows, row):
    """Have the server answer so, whatever it is asked: for all rows, and for one."""
    cursor = mock.MagicMock()
    cursor.__enter__.return_value = cursor
    cursor.fetchall.return_value = rows
    cursor.fetchone.return_value = row
    return mock.patch.object(connection, "cursor", return_value=cursor)


@contextmanager
def file_opened(*commands):
    """Have the tasks in a file of SQLite that was opened with these commands."""
    with TemporaryDirectory() as folder, closing(sqlite3.connect(f"{folder}/db")) as opened:
        for command in commands:
            opened.execute(command)
        with mock.patch.object(connection, "cursor", return_value=closing(opened.cursor())):
            yield
