"""Two adjacent releases work on one schema: what migrations may do, and that workers bear it."""

import contextlib
import os
from pathlib import Path

from django.apps import apps
from django.db import connection, migrations, models
from django.db.migrations.loader import MigrationLoader
from django.test import SimpleTestCase, tag

from ..worker.workers import ROOT, WorkerTestCase

FIRST_RELEASE = {"0001_initial", "0002_storage"}
"""The migrations of the first release; those that come later are held to the rule."""

CONTRACTING = frozenset()
"""Those that take away what no supported release uses any more; see CONTRIBUTING.md."""

PREVIOUS = Path(os.environ.get("PERFECTQUEUE_TEST_PREVIOUS", ROOT))
"""A folder with the previous release; where none is named, this code stands for it."""

HARMLESS = (
    migrations.CreateModel,
    migrations.AddIndex,
    migrations.RenameIndex,
    migrations.RemoveIndex,
    migrations.AlterModelOptions,
    migrations.AlterModelManagers,
    migrations.SeparateDatabaseAndState,
    migrations.RunPython,
    migrations.RunSQL,
)


def problem(operation):
    """Return why the release before could not work after this operation, or nothing."""
    if isinstance(operation, migrations.AddField):
        field = operation.field
        if field.null or field.has_db_default() or field.generated:
            return ""
        return f"{operation.name}: an older INSERT leaves it out. Give it db_default or null."
    if isinstance(operation, migrations.AddConstraint | migrations.RemoveConstraint):
        constraint = getattr(operation, "constraint", operation)
        if constraint.name == f"perfectqueue_{operation.model_name}_values":
            return ""  # It holds for a new column, too, which an older INSERT leaves out.
    if isinstance(operation, HARMLESS):
        return ""
    return f"{operation.describe()}: an older release does not know of it."


class RuleTests(SimpleTestCase):
    def test_what_an_older_release_can_bear(self):
        later = models.IntegerField(null=True)
        for operation in (
            migrations.AddField("task", "later", later),
            migrations.AddField("task", "later", models.IntegerField(db_default=7)),
            migrations.CreateModel("Later", [("id", models.BigAutoField(primary_key=True))]),
            migrations.AddIndex("task", models.Index(fields=["run_at"], name="later")),
        ):
            with self.subTest(operation=operation):
                self.assertEqual(problem(operation), "")

    def test_what_it_can_not(self):
        for operation in (
            migrations.AddField("task", "later", models.IntegerField()),
            migrations.AddField("task", "later", models.IntegerField(default=7)),
            migrations.RemoveField("task", "worker"),
            migrations.RenameField("task", "worker", "process"),
            migrations.AlterField("task", "worker", models.CharField(max_length=9)),
            migrations.DeleteModel("Task"),
            migrations.AddConstraint(
                "task", models.CheckConstraint(condition=models.Q(attempt__gt=0), name="later")
            ),
        ):
            with self.subTest(operation=operation):
                self.assertNotEqual(problem(operation), "")

    def test_every_migration_since_the_first_release_keeps_to_it(self):
        ours = {
            name: migration
            for (app, name), migration in MigrationLoader(None).disk_migrations.items()
            if app == "perfectqueue"
        }
        self.assertLessEqual(FIRST_RELEASE, set(ours))
        for name in sorted(set(ours) - FIRST_RELEASE - CONTRACTING):
            for operation in ours[name].operations:
                with self.subTest(name):
                    self.assertEqual(problem(operation), "")


class OlderReleaseTests(WorkerTestCase):
    @tag("thorough")
    def test_a_worker_works_on_the_schema_of_a_later_release(self):
        """
        All tables have columns that it does not know; it submits, runs, retries, fails, books.
        """
        with self.later_schema():
            self.submit("k0", "note", user="ann")
            self.submit("k1", "fail", user="bob")
            self.submit("k2", "die-once")
            path = os.pathsep.join([str(PREVIOUS), str(ROOT)])
            worker = self.burst(environment={"PYTHONPATH": path})
        self.assertEqual(self.status("k0"), "finished")
        self.assertEqual(self.status("k1"), "failed")
        self.assertEqual(self.status("k2"), "finished")
        self.assertNotIn("The database is away", worker.errors)
        self.assertNotIn("can't be written", worker.errors)

    @contextlib.contextmanager
    def later_schema(self):
        """Have columns in every table that this code does not know."""
        quote = connection.ops.quote_name
        models = apps.get_app_config("perfectqueue").get_models()
        tables = {model._meta.db_table for model in models}
        with connection.cursor() as cursor:
            for table in tables:
                for column in ("later integer NULL", "later_still integer NOT NULL DEFAULT 7"):
                    cursor.execute(f"ALTER TABLE {quote(table)} ADD COLUMN {column}")
        try:
            yield
        finally:
            with connection.cursor() as cursor:
                for table in tables:
                    for column in ("later", "later_still"):
                        cursor.execute(f"ALTER TABLE {quote(table)} DROP COLUMN {column}")
