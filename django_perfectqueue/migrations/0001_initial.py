import django.core.validators
import django.db.models.deletion
import django.db.models.expressions
import django_perfectqueue.fields
import django_perfectqueue.indexes
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="Attempt",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("number", models.IntegerField(verbose_name="number")),
                (
                    "ending",
                    models.CharField(
                        choices=[
                            ("retried", "retried"),
                            ("failed", "failed"),
                            ("cancelled", "cancelled"),
                            ("lost", "lost"),
                        ],
                        max_length=9,
                        verbose_name="ending",
                    ),
                ),
                (
                    "worker",
                    models.CharField(blank=True, default="", max_length=255, verbose_name="worker"),
                ),
                ("started_at", models.DateTimeField(null=True, verbose_name="started at")),
                ("ended_at", models.DateTimeField(verbose_name="ended at")),
                (
                    "error",
                    models.CharField(blank=True, default="", max_length=255, verbose_name="error"),
                ),
                ("message", models.TextField(blank=True, default="", verbose_name="message")),
                ("traceback", models.TextField(blank=True, default="", verbose_name="traceback")),
            ],
            options={
                "verbose_name": "attempt",
                "verbose_name_plural": "attempts",
                "ordering": ["task_id", "id"],
                "default_permissions": ("view",),
            },
        ),
        migrations.CreateModel(
            name="Task",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                (
                    "queue",
                    django_perfectqueue.fields.ExactCharField(max_length=100, verbose_name="queue"),
                ),
                (
                    "key",
                    django_perfectqueue.fields.ExactCharField(max_length=255, verbose_name="key"),
                ),
                (
                    "type",
                    django_perfectqueue.fields.ExactCharField(max_length=255, verbose_name="type"),
                ),
                (
                    "user",
                    django_perfectqueue.fields.ExactCharField(
                        blank=True, default="", max_length=255, verbose_name="user"
                    ),
                ),
                ("payload", models.TextField(db_column="data", verbose_name="data")),
                ("priority", models.IntegerField(default=0, verbose_name="priority")),
                ("created_at", models.DateTimeField(verbose_name="created at")),
                ("run_at", models.DateTimeField(verbose_name="run at")),
                (
                    "expires_at",
                    models.DateTimeField(blank=True, null=True, verbose_name="expires at"),
                ),
                (
                    "outcome",
                    models.CharField(
                        blank=True,
                        choices=[
                            ("finished", "finished"),
                            ("failed", "failed"),
                            ("cancelled", "cancelled"),
                            ("expired", "expired"),
                        ],
                        default="",
                        max_length=9,
                        verbose_name="outcome",
                    ),
                ),
                ("attempt", models.IntegerField(default=0, verbose_name="attempt")),
                (
                    "worker",
                    models.CharField(blank=True, default="", max_length=255, verbose_name="worker"),
                ),
                (
                    "started_at",
                    models.DateTimeField(blank=True, null=True, verbose_name="started at"),
                ),
                ("ended_at", models.DateTimeField(blank=True, null=True, verbose_name="ended at")),
                (
                    "result_text",
                    models.TextField(
                        blank=True, db_column="result", null=True, verbose_name="result"
                    ),
                ),
            ],
            options={
                "verbose_name": "task",
                "verbose_name_plural": "tasks",
                "permissions": [
                    ("force_finish_task", "Can force finish task"),
                    ("cancel_task", "Can request cancel of task"),
                    ("retry_task", "Can retry task"),
                ],
                "default_permissions": ("view",),
                "base_manager_name": "objects",
            },
        ),
        migrations.CreateModel(
            name="FairShare",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "user",
                    django_perfectqueue.fields.ExactCharField(
                        blank=True,
                        default="",
                        help_text="For whom the tasks run. Empty: the tasks without a user.",
                        max_length=255,
                        verbose_name="user",
                    ),
                ),
                (
                    "queue",
                    django_perfectqueue.fields.ExactCharField(
                        blank=True,
                        default="",
                        help_text="Empty: every queue.",
                        max_length=100,
                        verbose_name="queue",
                    ),
                ),
                (
                    "weight",
                    models.FloatField(
                        default=1.0,
                        help_text="Twice the weight gets twice the processor time while users compete.",
                        validators=[
                            django.core.validators.MinValueValidator(0.001),
                            django.core.validators.MaxValueValidator(1000000.0),
                        ],
                        verbose_name="weight",
                    ),
                ),
                (
                    "max_running",
                    models.PositiveIntegerField(
                        blank=True,
                        help_text="How many of its tasks may run at once. Empty: any number. 0: none.",
                        null=True,
                        verbose_name="max running",
                    ),
                ),
                (
                    "paused",
                    models.BooleanField(
                        default=False,
                        help_text="Its tasks wait until this is taken back.",
                        verbose_name="paused",
                    ),
                ),
            ],
            options={
                "verbose_name": "fair share",
                "verbose_name_plural": "fair shares",
            },
        ),
        migrations.CreateModel(
            name="Lane",
            fields=[
                ("id", models.BigIntegerField(primary_key=True, serialize=False)),
                (
                    "queue",
                    django_perfectqueue.fields.ExactCharField(max_length=100, verbose_name="queue"),
                ),
                (
                    "user",
                    django_perfectqueue.fields.ExactCharField(
                        blank=True, default="", max_length=255, verbose_name="user"
                    ),
                ),
                ("virtual_time", models.FloatField(default=0.0, verbose_name="virtual time")),
                ("cost", models.FloatField(default=0.002, verbose_name="expected cost")),
                ("weight", models.FloatField(default=1.0, verbose_name="weight")),
                (
                    "max_running",
                    models.IntegerField(blank=True, null=True, verbose_name="max running"),
                ),
                ("paused", models.BooleanField(default=False, verbose_name="paused")),
                ("running", models.IntegerField(default=0, verbose_name="running")),
                ("awake", models.BooleanField(default=True, verbose_name="awake")),
                (
                    "turn",
                    models.GeneratedField(
                        db_persist=True,
                        expression=django.db.models.expressions.CombinedExpression(
                            models.F("virtual_time"),
                            "+",
                            django.db.models.expressions.CombinedExpression(
                                models.F("cost"), "/", models.F("weight")
                            ),
                        ),
                        output_field=models.FloatField(),
                    ),
                ),
                (
                    "open",
                    models.GeneratedField(
                        db_persist=True,
                        expression=models.Q(
                            ("awake", True),
                            ("paused", False),
                            models.Q(
                                ("max_running__isnull", True),
                                ("running__lt", models.F("max_running")),
                                _connector="OR",
                            ),
                        ),
                        output_field=models.BooleanField(),
                    ),
                ),
            ],
            options={
                "verbose_name": "lane",
                "verbose_name_plural": "lanes",
                "default_permissions": ("view",),
            },
        ),
        migrations.CreateModel(
            name="DeadLetter",
            fields=[
                (
                    "task",
                    models.OneToOneField(
                        db_constraint=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        primary_key=True,
                        related_name="dead_letter",
                        serialize=False,
                        to="perfectqueue.task",
                        verbose_name="task",
                    ),
                ),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("finished", "finished"),
                            ("failed", "failed"),
                            ("cancelled", "cancelled"),
                            ("expired", "expired"),
                        ],
                        max_length=9,
                        verbose_name="status",
                    ),
                ),
                (
                    "group",
                    django_perfectqueue.fields.ExactCharField(
                        blank=True, default="", max_length=255, verbose_name="group"
                    ),
                ),
                ("message", models.TextField(blank=True, default="", verbose_name="message")),
                ("errors", models.SmallIntegerField(default=0, verbose_name="errors")),
                ("crashes", models.SmallIntegerField(default=0, verbose_name="crashes")),
                ("ended_at", models.DateTimeField(verbose_name="ended at")),
            ],
            options={
                "verbose_name": "dead letter",
                "verbose_name_plural": "dead letters",
                "default_permissions": ("view",),
            },
        ),
        migrations.CreateModel(
            name="Ticket",
            fields=[
                (
                    "task",
                    models.OneToOneField(
                        db_constraint=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        primary_key=True,
                        related_name="ticket",
                        serialize=False,
                        to="perfectqueue.task",
                        verbose_name="task",
                    ),
                ),
                ("lane", models.BigIntegerField(verbose_name="lane")),
                (
                    "state",
                    models.SmallIntegerField(
                        choices=[
                            (0, "a processor"),
                            (1, "its time"),
                            (2, "its handler"),
                            (3, "other tasks"),
                        ],
                        verbose_name="state",
                    ),
                ),
                ("rank", models.IntegerField(default=0, verbose_name="rank")),
                ("run_at", models.DateTimeField(verbose_name="run at")),
                ("alarm_at", models.DateTimeField(null=True, verbose_name="alarm at")),
                ("attempt", models.IntegerField(default=0, verbose_name="attempt")),
                ("errors", models.SmallIntegerField(default=0, verbose_name="errors")),
                ("crashes", models.SmallIntegerField(default=0, verbose_name="crashes")),
                ("holder", models.BigIntegerField(null=True, verbose_name="holder")),
                (
                    "cancel_requested",
                    models.BooleanField(default=False, verbose_name="cancel requested"),
                ),
            ],
            options={
                "verbose_name": "ticket",
                "verbose_name_plural": "tickets",
                "default_permissions": ("view",),
            },
        ),
        migrations.AddIndex(
            model_name="task",
            index=django_perfectqueue.indexes.PartialIndex(
                condition=models.Q(("user", ""), _negated=True),
                fields=["user", "id"],
                name="perfectqueue_task_user",
                on=["postgresql"],
                whole=["user", "id"],
            ),
        ),
        migrations.AddConstraint(
            model_name="task",
            constraint=models.UniqueConstraint(
                fields=("queue", "key"), name="perfectqueue_task_key"
            ),
        ),
        migrations.AddField(
            model_name="attempt",
            name="task",
            field=models.ForeignKey(
                db_constraint=False,
                on_delete=django.db.models.deletion.DO_NOTHING,
                related_name="attempts",
                to="perfectqueue.task",
                verbose_name="task",
            ),
        ),
        migrations.AddConstraint(
            model_name="fairshare",
            constraint=models.UniqueConstraint(
                fields=("user", "queue"), name="perfectqueue_share_user"
            ),
        ),
        migrations.AddConstraint(
            model_name="fairshare",
            constraint=models.CheckConstraint(
                condition=models.Q(("weight__gte", 0.001), ("weight__lte", 1000000.0)),
                name="perfectqueue_share_weight",
            ),
        ),
        migrations.AddIndex(
            model_name="lane",
            index=models.Index(fields=["queue", "-open", "turn"], name="perfectqueue_lane_turn"),
        ),
        migrations.AddIndex(
            model_name="deadletter",
            index=models.Index(fields=["status", "task"], name="perfectqueue_dead_status"),
        ),
        migrations.AddIndex(
            model_name="deadletter",
            index=models.Index(fields=["group", "task"], name="perfectqueue_dead_group"),
        ),
        migrations.AddIndex(
            model_name="ticket",
            index=django_perfectqueue.indexes.PartialIndex(
                condition=models.Q(("state", 0)),
                fields=["lane", "rank", "run_at", "task"],
                name="perfectqueue_ticket_line",
                on=["postgresql", "sqlite"],
                whole=["state", "lane", "rank", "run_at", "task"],
            ),
        ),
        migrations.AddIndex(
            model_name="ticket",
            index=models.Index(
                condition=models.Q(("alarm_at__isnull", False)),
                fields=["alarm_at"],
                name="perfectqueue_ticket_alarm",
            ),
        ),
    ]
