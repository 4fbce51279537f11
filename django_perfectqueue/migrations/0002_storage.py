"""
How PostgreSQL keeps the tables that a queue writes most.

Half of each page is left free, and a little more of those whose rows grow when a task
ends: so the update of an acquire stays on its page, and that of a finish touches no
index. The live tables are small and turn over all the time: they are vacuumed by the
number of dead rows, without pauses, and are not cut short, for which a vacuum would lock
out everyone. Large data and results are compressed by lz4 where the server has it, in less
time than by pglz.
"""

from typing import Any

from django.db import migrations, router
from django.db.migrations.operations.base import Operation

STORAGE = {
    "perfectqueue_ticket": {
        "fillfactor": 50,
        "autovacuum_vacuum_scale_factor": 0.02,
        "autovacuum_vacuum_threshold": 1000,
        "autovacuum_vacuum_cost_delay": 0,
        "vacuum_truncate": "false",
    },
    "perfectqueue_account": {
        "fillfactor": 50,
        "autovacuum_vacuum_scale_factor": 0.05,
        "autovacuum_vacuum_threshold": 200,
        "autovacuum_vacuum_cost_delay": 0,
        "vacuum_truncate": "false",
    },
    "perfectqueue_lane": {
        "fillfactor": 50,
        "autovacuum_vacuum_scale_factor": 0.05,
        "autovacuum_vacuum_threshold": 200,
        "autovacuum_vacuum_cost_delay": 0,
        "vacuum_truncate": "false",
    },
    "perfectqueue_task": {
        "fillfactor": 45,
        "autovacuum_vacuum_scale_factor": 0.05,
    },
}

# As text, since a server that has it not does not know the words either.
COMPRESS = """
DO $$ BEGIN
    IF EXISTS (
        SELECT 1 FROM pg_settings
        WHERE name = 'default_toast_compression' AND 'lz4' = ANY(enumvals)
    ) THEN
        EXECUTE 'ALTER TABLE IF EXISTS "perfectqueue_task"
            ALTER "data" SET COMPRESSION {method}, ALTER "result" SET COMPRESSION {method}';
    END IF;
END $$
"""


class SetStorage(Operation):
    """Sets it on PostgreSQL; ``sqlmigrate`` shows the statements."""

    reduces_to_sql = True
    reversible = True

    def state_forwards(self, app_label: str, state: Any) -> None:
        pass

    def database_forwards(self, app_label: str, editor: Any, before: Any, after: Any) -> None:
        if self.is_for(app_label, editor):
            for table, settings in STORAGE.items():
                given = ", ".join(f"{name} = {value}" for name, value in settings.items())
                editor.execute(f'ALTER TABLE IF EXISTS "{table}" SET ({given})')
            editor.execute(COMPRESS.format(method="lz4"))

    def database_backwards(self, app_label: str, editor: Any, before: Any, after: Any) -> None:
        if self.is_for(app_label, editor):
            for table, settings in STORAGE.items():
                editor.execute(f'ALTER TABLE IF EXISTS "{table}" RESET ({", ".join(settings)})')
            editor.execute(COMPRESS.format(method="default"))

    def is_for(self, app_label: str, editor: Any) -> bool:
        connection = editor.connection
        is_ours = router.allow_migrate(connection.alias, app_label)
        return bool(connection.vendor == "postgresql" and is_ours)

    def describe(self) -> str:
        return "Set how PostgreSQL keeps the tables that a queue writes most"


class Migration(migrations.Migration):
    dependencies = [("perfectqueue", "0001_initial")]

    operations = [SetStorage()]
