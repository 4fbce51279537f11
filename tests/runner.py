from __future__ import annotations

import faulthandler
import gc
import json
import logging
import multiprocessing
import os
import signal
import sys
import unittest
from pathlib import Path
from types import FrameType
from typing import Any

import django
from django.db import DEFAULT_DB_ALIAS, connection, connections
from django.db.models.signals import post_migrate
from django.test import SimpleTestCase, TestCase, TransactionTestCase
from django.test.runner import DiscoverRunner
from django.test.utils import iter_test_cases
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings

from django_perfectqueue.store.lanes.wake import fronts
from django_perfectqueue.store.limits.meters import forget_limits

from .databases.emptying import empty_instead_of_flush
from .databases.environment import kind_of

REPORT = "PERFECTQUEUE_TEST_REPORT"
NO_DATABASE = "no-database"
COMMITS = "commits"
LONGEST = 600.0
SLOW = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example)


class Runner(DiscoverRunner):
    """
    Django's test runner: over this package by default, and printing the
    counts to the program that started it, in the file that PERFECTQUEUE_TEST_REPORT names.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        empty_instead_of_flush()
        # Hypothesis fails nothing because the machine is slow. Not in tests/__init__, which every
        # process imports that a test starts.
        hypothesis_settings.register_profile("slow", deadline=None, suppress_health_check=SLOW)
        hypothesis_settings.load_profile("slow")
        if self.parallel > 1:
            # Workers started otherwise get SQLite in memory, out of other processes' reach.
            multiprocessing.set_start_method("fork", force=True)

    def setup_test_environment(self, **kwargs: Any) -> None:
        super().setup_test_environment(**kwargs)
        # Without a handler Python prints warnings, and many a test is about what goes wrong.
        logging.getLogger("django_perfectqueue").addHandler(logging.NullHandler())
        for signum in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(signum, interrupt)

    def build_suite(self, test_labels: Any = None, **kwargs: Any) -> Any:
        return super().build_suite(test_labels or ["tests"], **kwargs)

    def load_tests_for_label(self, label: str, discover_kwargs: Any) -> Any:
        """
        Tag those that Django lets reach no database: they run once for all databases.

        Those that commit are tagged as well: they wait, for workers and for others' locks, while
        the others compute.
        """
        tests = super().load_tests_for_label(label, discover_kwargs)
        for test in iter_test_cases(tests):
            if isinstance(test, SimpleTestCase) and not test.databases:
                test.tags = {NO_DATABASE, *getattr(test, "tags", ())}
            elif isinstance(test, TransactionTestCase) and not isinstance(test, TestCase):
                test.tags = {COMMITS, *getattr(test, "tags", ())}
        return tests

    def setup_databases(self, **kwargs: Any) -> Any:
        post_migrate.connect(empty_sqlite_log)
        made = super().setup_databases(**kwargs)
        self.log("\n".join(versions()))
        return made

    def teardown_databases(self, old_config: Any, **kwargs: Any) -> None:
        # Closes the connections of ended threads: PostgreSQL drops no database in use.
        gc.collect()
        super().teardown_databases(old_config, **kwargs)

    def get_resultclass(self) -> type[unittest.TextTestResult]:
        usual = super().get_resultclass() or unittest.TextTestResult
        return type("Result", (CountingResult, usual), {})

    def suite_result(self, suite: Any, result: Any, **kwargs: Any) -> int:
        failed = int(super().suite_result(suite, result, **kwargs))
        failed += len(result.unexpectedSuccesses)
        if REPORT in os.environ:
            write_report(result, failed)
        return failed


class CountingResult(unittest.TextTestResult):
    passed = 0

    def startTest(self, test: Any) -> None:  # noqa: N802
        """
        Begin a test, which knows of no limits and of nothing slow, whatever ran before it; one
        that hangs ends the run, with the stack of every thread.
        """
        super().startTest(test)
        fronts.clear()
        for using in connections:
            forget_limits(using)
        faulthandler.dump_traceback_later(LONGEST, exit=True, file=sys.__stderr__)

    def stopTest(self, test: Any) -> None:  # noqa: N802
        faulthandler.cancel_dump_traceback_later()
        super().stopTest(test)

    def addSuccess(self, test: Any) -> None:  # noqa: N802
        super().addSuccess(test)
        self.passed += 1

    def addExpectedFailure(self, test: Any, err: Any) -> None:  # noqa: N802
        super().addExpectedFailure(test, err)
        self.passed += 1


def write_report(result: Any, failed: int) -> None:
    counts = {
        "passed": result.passed,
        "failed": failed,
        "skipped": len(result.skipped),
        "server": versions()[-1],
    }
    Path(os.environ[REPORT]).write_text(json.dumps(counts))


def versions() -> list[str]:
    return [
        f"Python {'.'.join(map(str, sys.version_info[:3]))}",
        f"Django {django.__version__}",
        driver_version(),
        server_version(),
    ]


def driver_version() -> str:
    driver = connection.Database
    if connection.vendor == "sqlite":
        return "sqlite3 of the standard library"
    if connection.vendor == "mysql":
        return f"{driver.__name__} {'.'.join(map(str, driver.version_info[:3]))}"
    return f"{driver.__name__} {driver.__version__.split()[0]}"


def server_version() -> str:
    names = {"sqlite": "SQLite", "postgresql": "PostgreSQL", "mysql": "MySQL", "mariadb": "MariaDB"}
    number = ".".join(map(str, connection.get_database_version()))
    return f"{names[kind_of(connection)]} {number}"


def empty_sqlite_log(using: str = DEFAULT_DB_ALIAS, **kwargs: Any) -> None:
    """Have the file hold everything, for --parallel copies it without its log."""
    if connections[using].vendor == "sqlite":
        connections[using].cursor().execute("PRAGMA wal_checkpoint(TRUNCATE)")


def interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
