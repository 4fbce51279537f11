"""What the migrations set on tables can be applied by hand, and read back."""

import io
from unittest import skipUnless

from django.core.management import call_command
from django.db import connection
from django.test import TransactionTestCase


class StorageTests(TransactionTestCase):
    def test_sqlmigrate_shows_how_tables_are_kept(self):
        out = io.StringIO()
        call_command("sqlmigrate", "perfectqueue", "0002", stdout=out)
        on_postgresql = connection.vendor == "postgresql"
        self.assertNotIn("CANNOT BE WRITTEN", out.getvalue())
        self.assertEqual(
            '"perfectqueue_ticket" SET (fillfactor = 50' in out.getvalue(), on_postgresql
        )
        if on_postgresql:
            with connection.cursor() as cursor:
                cursor.execute(
                    "SELECT reloptions FROM pg_class WHERE relname = 'perfectqueue_task'"
                )
                self.assertIn("fillfactor=45", cursor.fetchone()[0])

    def test_it_can_be_undone(self):
        out = io.StringIO()
        call_command("sqlmigrate", "perfectqueue", "0002", backwards=True, stdout=out)
        self.assertEqual("RESET" in out.getvalue(), connection.vendor == "postgresql")

    def test_every_table_can_be_inspected(self):
        out = io.StringIO()
        call_command("inspectdb", stdout=out)
        self.assertNotIn("Unable to inspect", out.getvalue())
        self.assertIn("class PerfectqueueTicket(", out.getvalue())

    @skipUnless(connection.vendor == "postgresql", "Others have no lz4.")
    def test_large_data_and_results_are_compressed_by_lz4_where_the_server_has_it(self):
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT 'lz4' = ANY(enumvals) FROM pg_settings"
                " WHERE name = 'default_toast_compression'"
            )
            has_it = cursor.fetchone() == (True,)
            cursor.execute(
                "SELECT attname, attcompression::text FROM pg_attribute"
                " WHERE attrelid = 'perfectqueue_task'::regclass AND attname IN ('data', 'result')"
            )
            found = dict(cursor.fetchall())
        self.assertEqual(set(found.values()), {"l" if has_it else ""})
