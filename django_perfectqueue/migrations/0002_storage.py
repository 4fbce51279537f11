"""
How PostgreSQL keeps the tables that a queue writes most.

Half of each page is left free, and a little more of those whose rows grow when a task
ends: so the update of an acquire stays on its page, and that of a finish touches no
index. The live tables are small and turn over all the time: they are vacuumed by the
number of dead rows, without pauses, and are not cut short, for which a vacuum would lock
out everyone.
"""

from typing import Any

from django.db import migrations

STORAGE = {
    "perfectqueue_ticket": {
        "fillfactor": 50,
        "autovacuum_vacuum_scale_factor": 0.02,
        "autovacuum_vacuum_threshold": 1000,
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


def apply(apps: Any, schema_editor: Any) -> None:
    if schema_editor.connection.vendor == "postgresql":
        for table, settings in STORAGE.items():
            given = ", ".join(f"{name} = {value}" for name, value in settings.items())
            schema_editor.execute(f'ALTER TABLE IF EXISTS "{table}" SET ({given})')


def undo(apps: Any, schema_editor: Any) -> None:
    if schema_editor.connection.vendor == "postgresql":
        for table, settings in STORAGE.items():
            schema_editor.execute(f'ALTER TABLE IF EXISTS "{table}" RESET ({", ".join(settings)})')


class Migration(migrations.Migration):
    dependencies = [("perfectqueue", "0001_initial")]

    operations = [migrations.RunPython(apply, undo, elidable=False)]
