"""Constraints on each table: values that can be read and counted with."""

from datetime import datetime, timezone
from django.db import migrations, models


EARLIEST = datetime(1, 1, 2, tzinfo=timezone.utc)
LATEST = datetime(9999, 12, 30, tzinfo=timezone.utc)


class Migration(migrations.Migration):
    dependencies = [
        ("perfectqueue", "0002_storage"),
    ]

    operations = [
        migrations.RemoveConstraint(
            model_name="fairshare",
            name="perfectqueue_share_weight",
        ),
        migrations.RemoveConstraint(
            model_name="limit",
            name="perfectqueue_limit_rate",
        ),
        migrations.RemoveConstraint(
            model_name="queueshare",
            name="perfectqueue_queueshare_weight",
        ),
        migrations.AddConstraint(
            model_name="attempt",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("ending__in", ["retried", "failed", "cancelled", "lost"]),
                    ("started_at__range", (EARLIEST, LATEST)),
                    ("ended_at__range", (EARLIEST, LATEST)),
                ),
                name="perfectqueue_attempt_values",
            ),
        ),
        migrations.AddConstraint(
            model_name="batch",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("created_at__range", (EARLIEST, LATEST)),
                    ("ended_at__range", (EARLIEST, LATEST)),
                ),
                name="perfectqueue_batch_values",
            ),
        ),
        migrations.AddConstraint(
            model_name="change",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("at__range", (EARLIEST, LATEST)),
                    ("kind__in", ["share", "queue", "limit", "task", "sched"]),
                ),
                name="perfectqueue_change_values",
            ),
        ),
        migrations.AddConstraint(
            model_name="deadletter",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("status__in", ["finished", "failed", "cancelled", "expired"]),
                    ("ended_at__range", (EARLIEST, LATEST)),
                ),
                name="perfectqueue_deadletter_values",
            ),
        ),
        migrations.AddConstraint(
            model_name="dependency",
            constraint=models.CheckConstraint(
                condition=models.Q(("if_failed__in", [0, 1, 2]), ("state__in", [0, 1, 2, 3])),
                name="perfectqueue_dependency_values",
            ),
        ),
        migrations.AddConstraint(
            model_name="dependencyevent",
            constraint=models.CheckConstraint(
                condition=models.Q(("kind__in", [0, 1])), name="perfectqueue_dependencyevent_values"
            ),
        ),
        migrations.AddConstraint(
            model_name="fairshare",
            constraint=models.CheckConstraint(
                condition=models.Q(("weight__range", (0.001, 1000000.0))),
                name="perfectqueue_fairshare_values",
            ),
        ),
        migrations.AddConstraint(
            model_name="hold",
            constraint=models.CheckConstraint(
                condition=models.Q(("opens_at__range", (EARLIEST, LATEST))),
                name="perfectqueue_hold_values",
            ),
        ),
        migrations.AddConstraint(
            model_name="journal",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("progress__range", (0.0, 1.0)), ("updated_at__range", (EARLIEST, LATEST))
                ),
                name="perfectqueue_journal_values",
            ),
        ),
        migrations.AddConstraint(
            model_name="lane",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("virtual_time__range", (-1000000000000000.0, 1000000000000000.0)),
                    ("cost__range", (-10000000000.0, 10000000000.0)),
                    ("weight__range", (0.001, 1000000.0)),
                    ("since__range", (EARLIEST, LATEST)),
                    ("finish_tag__range", (0.0, 1000000000000000.0)),
                    ("policy__in", [0, 1]),
                ),
                name="perfectqueue_lane_values",
            ),
        ),
        migrations.AddConstraint(
            model_name="limit",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("scope__in", ["name", "queue", "type", "user"]),
                    ("rate__range", (1, 2147483647)),
                    ("period__range", (0.001, 31622400.0)),
                    ("burst__range", (1, 2147483647)),
                ),
                name="perfectqueue_limit_values",
            ),
        ),
        migrations.AddConstraint(
            model_name="meter",
            constraint=models.CheckConstraint(
                condition=models.Q(("next_at__range", (EARLIEST, LATEST))),
                name="perfectqueue_meter_values",
            ),
        ),
        migrations.AddConstraint(
            model_name="queueshare",
            constraint=models.CheckConstraint(
                condition=models.Q(("weight__range", (0.001, 1000000.0))),
                name="perfectqueue_queueshare_values",
            ),
        ),
        migrations.AddConstraint(
            model_name="schedule",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("origin__in", ["row", "code", "gone"]),
                    ("time_limit__range", (0.0, 3155760000.0)),
                    ("expires_after__range", (0.0, 3155760000.0)),
                    ("every__range", (0.001, 3155760000.0)),
                    ("starts_at__range", (EARLIEST, LATEST)),
                    ("ends_at__range", (EARLIEST, LATEST)),
                    ("delay__range", (0.0, 3155760000.0)),
                    ("jitter__range", (0.0, 3155760000.0)),
                    ("overlap__in", ["skip", "allow", "queue_one", "queue", "cancel"]),
                    ("deadline__range", (0.0, 3155760000.0)),
                    ("next_at__range", (EARLIEST, LATEST)),
                    ("due_at__range", (EARLIEST, LATEST)),
                    ("last_at__range", (EARLIEST, LATEST)),
                ),
                name="perfectqueue_schedule_values",
            ),
        ),
        migrations.AddConstraint(
            model_name="step",
            constraint=models.CheckConstraint(
                condition=models.Q(("kept_at__range", (EARLIEST, LATEST))),
                name="perfectqueue_step_values",
            ),
        ),
        migrations.AddConstraint(
            model_name="task",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("created_at__range", (EARLIEST, LATEST)),
                    ("run_at__range", (EARLIEST, LATEST)),
                    ("expected_at__range", (EARLIEST, LATEST)),
                    ("expires_at__range", (EARLIEST, LATEST)),
                    ("time_limit__range", (0.0, 3155760000.0)),
                    ("outcome__in", ["", "finished", "failed", "cancelled", "expired"]),
                    ("started_at__range", (EARLIEST, LATEST)),
                    ("ended_at__range", (EARLIEST, LATEST)),
                ),
                name="perfectqueue_task_values",
            ),
        ),
        migrations.AddConstraint(
            model_name="ticket",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("state__in", [0, 1, 2, 3]),
                    ("last_ending__in", [0, 1, 2, 3, 4, 5]),
                    ("run_at__range", (EARLIEST, LATEST)),
                    ("alarm_at__range", (EARLIEST, LATEST)),
                ),
                name="perfectqueue_ticket_values",
            ),
        ),
        migrations.AddConstraint(
            model_name="usage",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("span__in", [10, 60, 3600, 86400, 0]),
                    ("start__range", (EARLIEST, LATEST)),
                    ("lasted__range", (-1e30, 1e30)),
                    ("squares__range", (-1e30, 1e30)),
                    ("waited__range", (-1e30, 1e30)),
                    ("wait_squares__range", (-1e30, 1e30)),
                    ("seconds__range", (-1e30, 1e30)),
                    ("entitled__range", (-1e30, 1e30)),
                    ("longest__range", (-1e30, 1e30)),
                ),
                name="perfectqueue_usage_values",
            ),
        ),
        migrations.AddConstraint(
            model_name="worker",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("started_at__range", (EARLIEST, LATEST)),
                    ("seen_at__range", (EARLIEST, LATEST)),
                    ("drifted_at__range", (EARLIEST, LATEST)),
                ),
                name="perfectqueue_worker_values",
            ),
        ),
    ]
