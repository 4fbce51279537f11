"""Constraints on each table: values that can be read and counted with."""

from django.db import migrations, models

from django_perfectqueue.models.fields import IsJson, IsTime


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
        migrations.AddField(
            model_name="worker",
            name="problem",
            field=models.TextField(db_default="", verbose_name="problem"),
        ),
        migrations.AddConstraint(
            model_name="attempt",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("ending__in", ["retried", "failed", "cancelled", "lost"]),
                    IsTime("started_at"),
                    IsTime("ended_at"),
                ),
                name="perfectqueue_attempt_values",
            ),
        ),
        migrations.AddConstraint(
            model_name="batch",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("stopped__in", [False, True]), IsTime("created_at"), IsTime("ended_at")
                ),
                name="perfectqueue_batch_values",
            ),
        ),
        migrations.AddConstraint(
            model_name="change",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    IsTime("at"),
                    ("kind__in", ["share", "queue", "limit", "task", "sched"]),
                    IsJson("before", kinds="'object', 'null'"),
                    IsJson("after", kinds="'object', 'null'"),
                ),
                name="perfectqueue_change_values",
            ),
        ),
        migrations.AddConstraint(
            model_name="deadletter",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("status__in", ["finished", "failed", "cancelled", "expired"]),
                    IsTime("ended_at"),
                ),
                name="perfectqueue_deadletter_values",
            ),
        ),
        migrations.AddConstraint(
            model_name="dependency",
            constraint=models.CheckConstraint(
                condition=models.Q(("if_failed__range", (0, 5)), ("state__in", [0, 1, 2, 3])),
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
                condition=models.Q(
                    ("weight__range", (0.001, 1000000.0)), ("paused__in", [False, True])
                ),
                name="perfectqueue_fairshare_values",
            ),
        ),
        migrations.AddConstraint(
            model_name="hold",
            constraint=models.CheckConstraint(
                condition=models.Q(IsTime("opens_at")), name="perfectqueue_hold_values"
            ),
        ),
        migrations.AddConstraint(
            model_name="journal",
            constraint=models.CheckConstraint(
                condition=models.Q(("progress__range", (0.0, 1.0)), IsTime("updated_at")),
                name="perfectqueue_journal_values",
            ),
        ),
        migrations.AddConstraint(
            model_name="lane",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    IsJson("keys", kinds="'array'"),
                    ("virtual_time__range", (-1000000000000000.0, 1000000000000000.0)),
                    ("cost__range", (-10000000000.0, 10000000000.0)),
                    ("weight__range", (0.001, 1000000.0)),
                    ("paused__in", [False, True]),
                    ("has_waiting__in", [False, True]),
                    IsTime("since"),
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
                    ("paused__in", [False, True]),
                ),
                name="perfectqueue_limit_values",
            ),
        ),
        migrations.AddConstraint(
            model_name="meter",
            constraint=models.CheckConstraint(
                condition=models.Q(IsTime("next_at")), name="perfectqueue_meter_values"
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
                    IsTime("starts_at"),
                    IsTime("ends_at"),
                    ("delay__range", (0.0, 3155760000.0)),
                    ("jitter__range", (0.0, 3155760000.0)),
                    ("overlap__in", ["skip", "allow", "queue_one", "queue", "cancel"]),
                    ("deadline__range", (0.0, 3155760000.0)),
                    ("paused__in", [False, True]),
                    IsTime("next_at"),
                    IsTime("due_at"),
                    IsTime("last_at"),
                    IsJson("pending", kinds="'array'"),
                    ("counted__in", [False, True]),
                ),
                name="perfectqueue_schedule_values",
            ),
        ),
        migrations.AddConstraint(
            model_name="step",
            constraint=models.CheckConstraint(
                condition=models.Q(IsTime("kept_at")), name="perfectqueue_step_values"
            ),
        ),
        migrations.AddConstraint(
            model_name="task",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    IsTime("created_at"),
                    IsTime("run_at"),
                    IsTime("expected_at"),
                    IsTime("expires_at"),
                    ("time_limit__range", (0.0, 3155760000.0)),
                    ("outcome__in", ["", "finished", "failed", "cancelled", "expired"]),
                    IsTime("started_at"),
                    IsTime("ended_at"),
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
                    IsTime("run_at"),
                    IsTime("alarm_at"),
                    ("cancel_requested__in", [False, True]),
                    ("watched__in", [False, True]),
                ),
                name="perfectqueue_ticket_values",
            ),
        ),
        migrations.AddConstraint(
            model_name="usage",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("span__in", [10, 60, 3600, 86400, 0]),
                    IsTime("start"),
                    ("others__in", [False, True]),
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
                    IsJson("queues_text", kinds="'array'"),
                    IsJson("routes_text", kinds="'object', 'null'"),
                    IsJson("schedules_text", kinds="'array'"),
                    IsJson("seats_text", kinds="'array'"),
                    ("leaving__in", [False, True]),
                    IsTime("started_at"),
                    IsTime("seen_at"),
                    IsTime("drifted_at"),
                ),
                name="perfectqueue_worker_values",
            ),
        ),
    ]
