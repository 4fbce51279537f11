"""
Django's own tests of its tasks, run against this package's backend.

They are taken from the source distribution when the tests run, and re-targeted by
exchanging the names of two backends. Two of them change a result that Django's Dummy
backend keeps in memory; here they have the task finished instead.
"""

import importlib
import inspect
import io
import os
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import django
from django.db import connections
from django.test import SimpleTestCase, TestCase, TransactionTestCase, override_settings

from django_perfectqueue import compat
from django_perfectqueue.queue import Queue

from . import source

PLACE = "tests.conformance.backends"
EXCHANGED = {
    "test_dummy_backend": ("dummy", "DummyBackend", "Inspected"),
    "test_tasks": ("dummy", "DummyBackend", "Inspected"),
    "test_immediate_backend": ("immediate", "ImmediateBackend", "Inline"),
}
LIMITS_OF_IMMEDIATE = {
    "test_cannot_get_result",
    "test_cannot_pass_run_after",
    "test_cannot_refresh_result",
}


def refreshed(self):
    tasks = importlib.import_module("tasks.tasks")
    result = tasks.calculate_meaning_of_life.enqueue()
    Queue().poll().finish(42)
    self.assertEqual(result.status, "READY")
    result.refresh()
    self.assertEqual((result.status, result.return_value), ("SUCCESSFUL", 42))


async def refreshed_async(self):
    tasks = importlib.import_module("tasks.tasks")
    result = await tasks.calculate_meaning_of_life.aenqueue()
    await (await Queue().apoll()).afinish(42)
    self.assertEqual(result.status, "READY")
    await result.arefresh()
    self.assertEqual((result.status, result.return_value), ("SUCCESSFUL", 42))


ADAPTED = {
    "DummyBackendTestCase": {
        "test_refresh_result": refreshed,
        "test_refresh_result_async": refreshed_async,
    }
}


def in_its_own_connection(test):
    """Close what a coroutine has opened by calls that block, in the thread of its loop."""

    async def tested(self):
        try:
            await test(self)
        finally:
            connections.close_all()

    return tested


@unittest.skipUnless(compat.HAS_NATIVE_TASKS, "Django has tests of its tasks since 6.0.")
class DjangosOwnTests(SimpleTestCase):
    databases = "__all__"

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        try:
            source.copy(folder.name)
        except source.UnavailableError as error:
            if os.environ.get(source.REQUIRED):
                raise
            self.skipTest(f"Django's source distribution can't be had: {error}")
        for name, (module, old, new) in EXCHANGED.items():
            file = Path(folder.name, "tasks", f"{name}.py")
            text = file.read_text()
            text = text.replace(f"django.tasks.backends.{module}.{old}", f"{PLACE}.{new}")
            text = text.replace(
                f"from django.tasks.backends.{module} import {old}",
                f"from {PLACE} import {new} as {old}",
            )
            file.write_text(text)
        sys.path.insert(0, folder.name)
        self.addCleanup(sys.path.remove, folder.name)
        self.addCleanup(self.forget)

    def forget(self):
        for name in [name for name in sys.modules if name.partition(".")[0] == "tasks"]:
            del sys.modules[name]

    def classes_of(self, module):
        with override_settings(TASKS={"default": {"BACKEND": f"{PLACE}.Inspected", "QUEUES": []}}):
            there = importlib.import_module(f"tasks.{module}")
        return [
            kind
            for kind in vars(there).values()
            if inspect.isclass(kind) and kind.__module__ == there.__name__
        ]

    def suite_of(self, kind, without=()):
        """
        Return a class's tests with a database: those that are coroutines call the backend in
        two threads, so they can't all be in one transaction.
        """
        suite = unittest.TestSuite()
        adapted = ADAPTED.get(kind.__name__, {})
        for name in sorted(name for name in dir(kind) if name.startswith("test_")):
            test = adapted.get(name, getattr(kind, name))
            if name in without:
                continue
            names = {name: test}
            base = TransactionTestCase if issubclass(kind, TransactionTestCase) else TestCase
            if inspect.iscoroutinefunction(test):
                names, base = {name: in_its_own_connection(test)}, TransactionTestCase
            names |= {"available_apps": None, "__module__": __name__}
            suite.addTest(type(kind.__name__, (kind, base), names)(name))
        return suite

    def assert_passes(self, *modules, count, without=()):
        suite = unittest.TestSuite()
        for module in modules:
            for kind in self.classes_of(module):
                suite.addTests(self.suite_of(kind, without))
        said = io.StringIO()
        with mock.patch.dict(os.environ, {"DJANGO_ALLOW_ASYNC_UNSAFE": "1"}):
            result = unittest.TextTestRunner(stream=said).run(suite)
        self.assertTrue(result.wasSuccessful(), said.getvalue())
        self.assertEqual(result.skipped, [])
        if django.VERSION[:2] == (6, 1):
            self.assertEqual(result.testsRun, count)

    def test_all_of_the_contract(self):
        self.assert_passes("test_tasks", "test_dummy_backend", count=56)

    def test_all_that_a_worker_can_do_of_what_runs_at_once(self):
        self.assert_passes("test_immediate_backend", count=17, without=LIMITS_OF_IMMEDIATE)
