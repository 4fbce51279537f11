"""The examples of the page on tenants, run as they stand there."""

import json
import re
import subprocess
import sys
import tempfile
import types
from contextvars import copy_context
from pathlib import Path
from unittest import SkipTest, mock, skipUnless

from django.db import connection, transaction
from django.test import SimpleTestCase, override_settings, tag

from django_perfectqueue.checks.settings import check_settings
from django_perfectqueue.models import Task
from django_perfectqueue.queue import Queue
from tests.databases import environment_for, server_like
from tests.worker.crews import ConcurrentTestCase

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs" / "howto" / "tenants.md"
BLOCK = re.compile(r"^```python\n# (\S+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
POLICY = re.compile(r"^```sql\n(.*?)^```", re.MULTILINE | re.DOTALL)
TYPES = ("process", "thread", "async")
ONLY_POSTGRESQL = skipUnless(connection.vendor == "postgresql", "PostgreSQL has it.")

if not PAGE.exists():
    raise SkipTest("The documentation is not beside the tests.")


def shown(file):
    """Return the module of this name that the page shows."""
    [source] = [source for name, source in BLOCK.findall(PAGE.read_text()) if name == file]
    return source


def module(file):
    made = types.ModuleType(file.removesuffix(".py").replace("/", "."))
    exec(compile(shown(file), f"{PAGE}: {file}", "exec"), vars(made))
    return made


def settings_of(path):
    """Return the settings that the page shows for a path in CONTEXT."""
    values = {}
    for name, source in BLOCK.findall(PAGE.read_text()):
        if name == "settings.py" and path in source:
            exec(source, values)
    return values["PERFECTQUEUE"]


@tag("thorough")
@ONLY_POSTGRESQL
class DjangoTenantsTests(SimpleTestCase):
    databases = ("default",)

    def trial(self, server, type_, count, **environment):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "shop").mkdir()
            (Path(folder) / "shop" / "tenants.py").write_text(shown("shop/tenants.py"))
            environment = {
                **environment_for(server),
                "DJANGO_SETTINGS_MODULE": "tests.tenancy.settings",
                "TENANCY_FOLDER": folder,
                **environment,
            }
            done = subprocess.run(
                [sys.executable, "-m", "tests.tenancy.trial", type_, str(count)],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
            )
        self.assertEqual(done.returncode, 0, done.stderr[-5000:])
        return json.loads(done.stdout.splitlines()[-1]), done.stderr

    def test_each_task_sees_the_schema_of_its_own_customer(self):
        self.assertEqual(settings_of("shop.tenants"), {"CONTEXT": ["shop.tenants.schema"]})
        with server_like(connection) as server:
            for type_, limits in (*((type_, "") for type_ in TYPES), ("process", "yes")):
                with self.subTest(f"{type_} {limits}"):
                    found, errors = self.trial(server, type_, 90, TENANCY_LIMIT_SET_CALLS=limits)
                    self.assertEqual(found, {"finished": 90 + 6 + 3 + 6 + 3}, errors[-3000:])


class CheckTests(SimpleTestCase):
    def test_tables_in_the_schemas_of_customers_are_reported(self):
        apps = ["django_perfectqueue", "shop"]
        config = ["django_perfectqueue.apps.PerfectQueueConfig"]
        for shared, own, expected in (
            (apps, ["shop"], []),
            (apps, apps, ["perfectqueue.W023"]),
            (config, apps, ["perfectqueue.W023"]),
            (["shop"], apps, []),
        ):
            with (
                self.subTest(shared=shared, own=own),
                override_settings(SHARED_APPS=shared, TENANT_APPS=own),
            ):
                self.assertEqual([found.id for found in check_settings()], expected)


class CustomersTestCase(ConcurrentTestCase):
    def run_for(self, variable, routes):
        """Run tasks of two customers and of none in each type of processors; return the results."""
        for type_ in TYPES:
            Queue().clear()
            for number, name in enumerate(["acme", "blue", None] * 4):

                def submit(name=name, number=number):
                    variable.set(name)
                    Queue().submit(f"task-{number}", "look", {"customer": name})

                copy_context().run(submit)
            self.work(self.processor(type_, routes, CONCURRENCY=4))
            for task in Task.objects.all():
                self.assertEqual(task.status, "finished", type_)
                yield task.data["customer"], task.result

    def with_module(self, file):
        made = module(file)
        shop = types.ModuleType("shop")
        setattr(shop, made.__name__.rpartition(".")[2], made)
        self.enterContext(mock.patch.dict(sys.modules, {"shop": shop, made.__name__: made}))
        settings = settings_of(made.__name__)
        self.enterContext(override_settings(PERFECTQUEUE=settings))
        return made

    if not hasattr(ConcurrentTestCase, "enterContext"):  # Python 3.10

        def enterContext(self, manager):  # noqa: N802
            entered = manager.__enter__()
            self.addCleanup(manager.__exit__, None, None, None)
            return entered


@ONLY_POSTGRESQL
class RowLevelSecurityTests(CustomersTestCase):
    def setUp(self):
        super().setUp()
        [policy] = POLICY.findall(PAGE.read_text())
        with connection.cursor() as cursor:
            cursor.execute("CREATE TABLE shop_invoice (customer text)")
            self.addCleanup(self.execute, "DROP TABLE shop_invoice; DROP ROLE shop_reader")
            cursor.execute("INSERT INTO shop_invoice VALUES ('acme'), ('blue')")
            cursor.execute(policy)
            cursor.execute("CREATE ROLE shop_reader; GRANT SELECT ON shop_invoice TO shop_reader")

    def execute(self, statement):
        with connection.cursor() as cursor:
            cursor.execute(statement)

    def test_each_task_sees_the_rows_of_its_own_customer(self):
        def look(task):
            with transaction.atomic(), connection.cursor() as cursor:
                # The tests' own user sees all rows.
                cursor.execute("SET LOCAL ROLE shop_reader")
                cursor.execute("SELECT customer FROM shop_invoice")
                return [customer for (customer,) in cursor.fetchall()]

        made = self.with_module("shop/rows.py")
        for name, result in self.run_for(made.tenant, {"look": look}):
            self.assertEqual(result, [name] if name else [])


class DatabaseTests(CustomersTestCase):
    def test_each_task_uses_the_database_of_its_own_customer(self):
        made = self.with_module("shop/routers.py")
        invoice = types.SimpleNamespace(_meta=types.SimpleNamespace(app_label="shop"))

        def look(task):
            router = made.CustomerRouter()
            return [router.db_for_read(invoice), router.db_for_write(invoice)]

        for name, result in self.run_for(made.database, {"look": look}):
            self.assertEqual(result, [name, name])
        self.assertIsNone(made.CustomerRouter().db_for_read(Task))
