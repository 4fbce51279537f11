"""Whether a database is migrated, asked without the migrations of other apps."""

from django.db.migrations.recorder import MigrationRecorder
from django.test import TestCase, override_settings

from django_perfectqueue.health.tables import lacks_tables


class SchemaTests(TestCase):
    def test_a_migrated_database_costs_two_statements(self):
        with self.assertNumQueries(2):
            self.assertFalse(lacks_tables("default"))

    def test_a_migration_that_was_not_applied_is_missed(self):
        MigrationRecorder.Migration.objects.filter(app="perfectqueue").delete()
        self.assertTrue(lacks_tables("default"))

    @override_settings(MIGRATION_MODULES={"perfectqueue": None})
    def test_a_project_may_have_no_migrations(self):
        MigrationRecorder.Migration.objects.filter(app="perfectqueue").delete()
        self.assertFalse(lacks_tables("default"))
