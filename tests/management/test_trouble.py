import errno
import io
import os
import signal
import tempfile
import unittest
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from unittest import mock

from django.core.management import CommandError, call_command
from django.db import OperationalError, connection, connections, transaction
from django.db.migrations.executor import MigrationExecutor
from django.test import SimpleTestCase, override_settings

from django_perfectqueue.exceptions import NotMigratedError
from django_perfectqueue.fairness.limits import limit, set_limit
from django_perfectqueue.fairness.shares import set_share, share
from django_perfectqueue.health import tables
from django_perfectqueue.management import base
from django_perfectqueue.management.commands import pq_worker as readiness
from django_perfectqueue.queue import Queue

from .running import refused

READS = "django_perfectqueue.management.listing.chosen"
EVERY = (
    ("pq_submit", "k", "t", "1"),
    ("pq_submit", "--file", os.devnull, "--atomic"),
    (
        "pq_task",
        "list",
    ),
    ("pq_task", "show", "k"),
    ("pq_task", "finish", "k"),
    ("pq_task", "cancel", "k"),
    ("pq_task", "retry", "k"),
    ("pq_task", "retry", "--all", "--yes"),
    ("pq_queue", "purge", "--yes"),
    ("pq_queue", "show", "default"),
)
TOUCHING = [command for command in EVERY if os.devnull not in command]


@contextmanager
def another_database(**changes):
    """Have a second alias, for a database like the tests' own but for these settings."""
    connections.databases["another"] = deepcopy(connection.settings_dict) | changes
    try:
        yield
    finally:
        connections["another"].close()
        del connections["another"], connections.databases["another"]


@contextmanager
def empty_database():
    """Have a second database without tables."""
    with tempfile.TemporaryDirectory() as folder:
        if connection.vendor == "sqlite":
            with another_database(NAME=str(Path(folder, "empty.sqlite3"))):
                yield
            return
        name = connection.ops.quote_name(f"empty_{os.getpid()}")
        with connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {name}")
        try:
            with another_database(NAME=f"empty_{os.getpid()}"):
                yield
        finally:
            with connection.cursor() as cursor:
                cursor.execute(f"DROP DATABASE {name}")


class DatabaseTests(unittest.TestCase):
    def test_an_unmigrated_database_says_what_to_run(self):
        with empty_database():
            for command in TOUCHING:
                with self.subTest(command):
                    message = refused(self, *command, "--database", "another")
                    self.assertEqual(
                        message.removesuffix(" Nothing was stored."),
                        "The database 'another' is not migrated."
                        " Run: manage.py migrate --database another",
                    )

    def test_a_program_learns_what_to_run(self):
        """Wherever it meets that: in a view, in a transaction, in a coroutine."""
        queue = Queue(using="another")

        def in_transaction():
            with transaction.atomic(using="another"):
                queue.submit("k", "t")

        calls = {
            "submit": lambda: queue.submit("k", "t"),
            "in a transaction": in_transaction,
            "submit_many": lambda: queue.submit_many([{"key": "k", "type": "t"}]),
            "replace": lambda: queue.submit("k", "t", on_conflict="replace"),
            "poll": queue.poll,
            "len": lambda: len(queue),
            "purge": lambda: queue.purge(0),
            "clear": queue.clear,
            "pause": queue.pause,
            "shares": queue.shares,
            "exists": queue["k"].exists,
            "metadata": queue["k"].metadata,
            "cancel_request": queue["k"].cancel_request,
            "wait": lambda: queue["k"].wait(0),
            "share": lambda: set_share("ann", weight=2, using="another"),
            "limit": lambda: set_limit("smtp", max_running=2, using="another"),
            "read a limit": lambda: limit("smtp", using="another"),
            "read a share": lambda: share("ann", using="another"),
        }
        words = r"The database 'another' is not migrated \(.*perfectqueue_.*\)\. Run: manage\.py "
        with empty_database():
            for name, call in calls.items():
                with (
                    self.subTest(name),
                    self.assertRaisesRegex(NotMigratedError, words + "migrate --database another"),
                ):
                    call()

    def test_a_half_migrated_database_says_so_too(self):
        error = OperationalError("no such column: perfectqueue_task.colour")
        with (
            mock.patch.object(tables, "expected", return_value={"9999_colour"}),
            mock.patch.object(MigrationExecutor, "migration_plan", return_value=["0002"]),
            mock.patch(READS, side_effect=error),
        ):
            message = refused(self, "pq_task", "list")

        self.assertEqual(message, "The database 'default' is not migrated. Run: manage.py migrate")

    def test_a_database_that_is_down_is_an_error_in_one_line(self):
        nowhere = "/nowhere/at/all"
        down = (
            {"NAME": f"{nowhere}.sqlite3"} if connection.vendor == "sqlite" else {"HOST": nowhere}
        )
        with another_database(**down):
            for command in TOUCHING:
                with self.subTest(command):
                    message = refused(self, *command, "--database", "another")
                    self.assertIn("Can't reach the database 'another': ", message)
                    self.assertNotIn("\n", message)

    def test_another_error_of_the_database_is_reported_in_its_words(self):
        error = OperationalError("disk\nfull")
        with mock.patch(READS, side_effect=error):
            message = refused(self, "pq_task", "list")

        self.assertEqual(message, "The database 'default' refused: disk full")

    @unittest.skipUnless(connection.vendor == "sqlite", "SQLite locks a database as a whole.")
    def test_a_locked_database_is_reported_what_to_do_about_it(self):
        with mock.patch(READS, side_effect=OperationalError("database is locked")):
            message = refused(self, "pq_task", "list")

        self.assertIn("refused: database is locked. Give DATABASES['default'] 'OPTIONS'", message)
        self.assertIn("'timeout': 20", message)


class TroubleTests(SimpleTestCase):
    databases = {"default"}

    def test_an_unknown_alias_gets_the_aliases_that_there_are(self):
        for command in EVERY:
            with self.subTest(command):
                message = refused(self, *command, "--database", "nope")
                self.assertIn("no database with the alias 'nope'. There is 'default'", message)

    @override_settings(PERFECTQUEUE={"ALIVE_TME": 3})
    def test_a_wrong_setting_is_named(self):
        self.assertIn("Did you mean 'ALIVE_TIME'?", refused(self, "pq_task", "list"))

    @override_settings(PERFECTQUEUE={"DATABASE": "nope"})
    def test_a_wrong_alias_in_the_settings_is_named(self):
        self.assertIn("DATABASES has no 'nope'", refused(self, "pq_task", "list"))

    def test_an_empty_or_endless_queue_name(self):
        message = refused(self, "pq_task", "list", "--queue", "q" * 101)

        self.assertIn("The queue must be a text of 1 to 100 characters", message)

    def test_an_interrupt_exits_like_one(self):
        with mock.patch(READS, side_effect=KeyboardInterrupt):
            refused(self, "pq_task", "list", code=128 + signal.SIGINT)

    def test_a_reader_that_goes_away_leaves_no_traceback(self):
        """
        As in pq_task list | head.
        """
        with (
            mock.patch(READS, side_effect=BrokenPipeError),
            mock.patch.object(base, "close_stdout") as silent,
            self.assertRaises(SystemExit) as caught,
        ):
            call_command("pq_task", "list")

        self.assertEqual(caught.exception.code, 128 + signal.SIGPIPE)
        silent.assert_called_once_with()

    def test_nor_does_one_of_the_checks_of_health(self):
        with (
            mock.patch("django.core.management.base.OutputWrapper.write") as write,
            mock.patch.object(base, "close_stdout"),
            self.assertRaises(SystemExit) as caught,
        ):
            write.side_effect = BrokenPipeError
            call_command("pq_status", "health", json=True)

        self.assertEqual(caught.exception.code, 128 + signal.SIGPIPE)

    def test_an_error_that_is_not_of_the_output_stays(self):
        with (
            mock.patch(READS, side_effect=OSError(errno.EMFILE, "Too many open files")),
            self.assertRaisesMessage(OSError, "Too many open files"),
        ):
            call_command("pq_task", "list")

    def test_every_command_has_its_help(self):
        for name in sorted({name for name, *_arguments in EVERY}):
            with self.subTest(name):
                out = io.StringIO()
                with mock.patch("sys.stdout", out), self.assertRaises(SystemExit):
                    call_command(name, "--help")
                self.assertIn("--database ALIAS", out.getvalue())
                self.assertIn("--json", out.getvalue())


class WaitingTests(unittest.TestCase):
    """What pq_worker does at its start, with --wait-for-database."""

    def is_there(self, checks, *, seconds=60, pending=()):
        self.said = []
        with (
            mock.patch.object(readiness, "check_database", side_effect=checks) as check,
            mock.patch.object(readiness, "WAIT", 0.0),
            mock.patch("signal.sigpending", return_value=set(pending)),
        ):
            found = readiness.is_there("default", seconds, self.said.append)
        return found, check.call_count

    def test_it_waits_for_a_database_and_says_so_once(self):
        away = CommandError("Can't reach it.")
        self.assertEqual(self.is_there([away, away, None]), (True, 3))
        self.assertEqual(self.said, ["Waiting up to 60 s. Can't reach it."])

    def test_a_stop_that_comes_meanwhile_ends_it(self):
        away = CommandError("Can't reach it.")
        self.assertEqual(self.is_there([away], pending={signal.SIGTERM}), (False, 1))

    def test_it_has_an_end(self):
        with self.assertRaises(CommandError):
            self.is_there([CommandError("No.")], seconds=1e-9)

    def test_it_does_not_wait_unasked(self):
        with self.assertRaises(CommandError):
            self.is_there([CommandError("No."), None], seconds=0, pending={signal.SIGTERM})
        self.assertEqual(self.said, [])
