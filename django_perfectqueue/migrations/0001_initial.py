import django.core.validators
import django.db.models.deletion
import django.db.models.expressions
import django.db.models.functions.comparison
import django.db.models.functions.math
import django.db.models.functions.text
import django.utils.timezone
import django_perfectqueue.models.fields
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="Account",
            fields=[
                ("id", models.BigIntegerField(primary_key=True, serialize=False)),
                (
                    "queue",
                    django_perfectqueue.models.fields.ExactCharField(
                        max_length=100, verbose_name="queue"
                    ),
                ),
                (
                    "user",
                    django_perfectqueue.models.fields.ExactCharField(
                        blank=True, default="", max_length=255, verbose_name="user"
                    ),
                ),
                ("virtual_time", models.FloatField(default=0.0, verbose_name="virtual time")),
                ("cost", models.FloatField(default=-0.002, verbose_name="expected cost")),
                ("weight", models.FloatField(default=1.0, verbose_name="weight")),
                (
                    "max_running",
                    models.IntegerField(blank=True, null=True, verbose_name="max running"),
                ),
                ("paused", models.BooleanField(default=False, verbose_name="paused")),
                ("running", models.IntegerField(default=0, verbose_name="running")),
                (
                    "advance",
                    models.FloatField(db_default=0.0, verbose_name="charged in advance"),
                ),
                (
                    "has_waiting",
                    models.BooleanField(default=True, verbose_name="has waiting tasks"),
                ),
                (
                    "has_open",
                    models.BooleanField(
                        db_default=False, verbose_name="has tasks behind open limits"
                    ),
                ),
                (
                    "since",
                    models.DateTimeField(default=django.utils.timezone.now, verbose_name="since"),
                ),
                ("finish_tag", models.FloatField(db_default=0.0, verbose_name="finish tag")),
                (
                    "policy",
                    models.SmallIntegerField(
                        choices=[(0, "fair"), (1, "slots")], default=0, verbose_name="policy"
                    ),
                ),
                (
                    "turn",
                    models.GeneratedField(
                        db_persist=True,
                        expression=models.Case(
                            models.When(
                                models.Q(
                                    ("paused", False),
                                    models.Q(
                                        ("has_waiting", True), ("has_open", True), _connector="OR"
                                    ),
                                    models.Q(
                                        ("max_running__isnull", True),
                                        ("running__lt", models.F("max_running")),
                                        _connector="OR",
                                    ),
                                    _negated=True,
                                ),
                                then=django.db.models.functions.comparison.Cast(
                                    django.db.models.expressions.CombinedExpression(
                                        models.F("virtual_time"), "*", models.Value(1000.0)
                                    ),
                                    models.BigIntegerField(),
                                ),
                            ),
                            models.When(
                                policy=1,
                                then=django.db.models.expressions.CombinedExpression(
                                    django.db.models.expressions.CombinedExpression(
                                        models.F("running"), "+", models.Value(1.0)
                                    ),
                                    "/",
                                    models.F("weight"),
                                ),
                            ),
                            default=django.db.models.expressions.CombinedExpression(
                                models.F("virtual_time"),
                                "+",
                                django.db.models.expressions.CombinedExpression(
                                    django.db.models.functions.math.Abs(models.F("cost")),
                                    "/",
                                    models.F("weight"),
                                ),
                            ),
                            output_field=models.FloatField(),
                        ),
                        output_field=models.FloatField(),
                    ),
                ),
                (
                    "ready",
                    models.GeneratedField(
                        db_persist=True,
                        expression=models.Q(
                            ("paused", False),
                            models.Q(("has_waiting", True), ("has_open", True), _connector="OR"),
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
                "default_permissions": (),
                "indexes": [
                    models.Index(
                        fields=["queue", "-ready", "turn", "since"],
                        name="perfectqueue_account_turn",
                    ),
                    django_perfectqueue.models.fields.PartialIndex(
                        condition=models.Q(("finish_tag__gt", 0)),
                        fields=["queue", "finish_tag"],
                        name="perfectqueue_account_clock",
                        on=["postgresql", "sqlite"],
                        whole=["queue", "finish_tag"],
                    ),
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            ("virtual_time__range", (-1000000000000000.0, 1000000000000000.0)),
                            ("cost__range", (-10000000000.0, 10000000000.0)),
                            ("weight__range", (0.001, 1000000.0)),
                            ("paused__range", (False, True)),
                            ("advance__range", (0.0, 1000000000000000.0)),
                            ("has_waiting__range", (False, True)),
                            ("has_open__range", (False, True)),
                            django_perfectqueue.models.fields.IsTime("since"),
                            ("finish_tag__range", (0.0, 1000000000000000.0)),
                            ("policy__range", (0, 1)),
                        ),
                        name="perfectqueue_account_values",
                    )
                ],
            },
        ),
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
                ("omitted", models.IntegerField(db_default=0, verbose_name="omitted")),
            ],
            options={
                "ordering": ["task_id", "id"],
                "default_permissions": (),
            },
        ),
        migrations.CreateModel(
            name="Task",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                (
                    "queue",
                    django_perfectqueue.models.fields.ExactCharField(
                        max_length=100, verbose_name="queue"
                    ),
                ),
                (
                    "key",
                    django_perfectqueue.models.fields.ExactCharField(
                        max_length=255, verbose_name="key"
                    ),
                ),
                (
                    "type",
                    django_perfectqueue.models.fields.ExactCharField(
                        max_length=255, verbose_name="type"
                    ),
                ),
                (
                    "user",
                    django_perfectqueue.models.fields.ExactCharField(
                        blank=True, default="", max_length=255, verbose_name="user"
                    ),
                ),
                ("payload", models.TextField(db_column="data", verbose_name="data")),
                ("priority", models.IntegerField(default=0, verbose_name="priority")),
                ("created_at", models.DateTimeField(verbose_name="created at")),
                ("run_at", models.DateTimeField(verbose_name="run at")),
                (
                    "expected_at",
                    models.DateTimeField(blank=True, null=True, verbose_name="expected at"),
                ),
                (
                    "expires_at",
                    models.DateTimeField(blank=True, null=True, verbose_name="expires at"),
                ),
                (
                    "limits",
                    django_perfectqueue.models.fields.ExactCharField(
                        blank=True, default="", max_length=500, verbose_name="limits"
                    ),
                ),
                ("time_limit", models.FloatField(blank=True, null=True, verbose_name="time limit")),
                ("context", models.TextField(blank=True, null=True, verbose_name="context")),
                (
                    "merged",
                    models.IntegerField(blank=True, null=True, verbose_name="merged submits"),
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
                "verbose_name_plural": "        Tasks",
                "permissions": [
                    ("force_finish_task", "Can force finish task"),
                    ("cancel_task", "Can request cancel of task"),
                    ("retry_task", "Can retry task"),
                    ("purge_task", "Can delete ended task"),
                    ("move_task", "Can move task to another queue"),
                    ("edit_task", "Can edit data of task"),
                    ("copy_task", "Can run copy of task"),
                    ("signal_task", "Can send signal to task"),
                ],
                "default_permissions": ("view",),
                "base_manager_name": "objects",
            },
        ),
        migrations.CreateModel(
            name="Change",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("at", models.DateTimeField(verbose_name="at")),
                ("by", models.CharField(blank=True, default="", max_length=255, verbose_name="by")),
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("share", "fair share"),
                            ("queue", "share of a queue"),
                            ("limit", "limit"),
                            ("task", "task"),
                            ("sched", "schedule"),
                            ("code", "release"),
                        ],
                        max_length=5,
                        verbose_name="kind",
                    ),
                ),
                (
                    "name",
                    django_perfectqueue.models.fields.ExactCharField(
                        blank=True, default="", max_length=261, verbose_name="name"
                    ),
                ),
                (
                    "queue",
                    django_perfectqueue.models.fields.ExactCharField(
                        blank=True, default="", max_length=100, verbose_name="queue"
                    ),
                ),
                ("before", models.JSONField(null=True, verbose_name="before")),
                ("after", models.JSONField(null=True, verbose_name="after")),
            ],
            options={
                "verbose_name": "change",
                "verbose_name_plural": "audit log",
                "default_permissions": ("view",),
            },
        ),
        migrations.CreateModel(
            name="Dependency",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "if_failed",
                    models.SmallIntegerField(
                        choices=[(0, "wait"), (1, "cancel"), (2, "run")],
                        db_default=0,
                        verbose_name="if it fails",
                    ),
                ),
                (
                    "state",
                    models.SmallIntegerField(
                        choices=[(0, "new"), (1, "awaited"), (2, "failed"), (3, "met")],
                        db_default=0,
                        verbose_name="state",
                    ),
                ),
            ],
            options={
                "default_permissions": (),
            },
        ),
        migrations.CreateModel(
            name="DependencyEvent",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("task_id", models.BigIntegerField(verbose_name="task")),
                (
                    "kind",
                    models.SmallIntegerField(
                        choices=[(0, "added"), (1, "ended")], verbose_name="kind"
                    ),
                ),
            ],
            options={
                "default_permissions": (),
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
                    django_perfectqueue.models.fields.ExactCharField(
                        blank=True,
                        default="",
                        help_text="For whom the tasks run. Empty: the tasks without a user. *: all who have no share of their own.",
                        max_length=255,
                        verbose_name="user",
                    ),
                ),
                (
                    "queue",
                    django_perfectqueue.models.fields.ExactCharField(
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
                        help_text="These tasks wait until the pause ends.",
                        verbose_name="paused",
                    ),
                ),
                (
                    "paused_until",
                    models.DateTimeField(
                        blank=True,
                        help_text="Empty: until someone unpauses it.",
                        null=True,
                        verbose_name="paused until",
                    ),
                ),
                (
                    "note",
                    models.CharField(
                        blank=True,
                        db_default="",
                        default="",
                        help_text="Why it is paused.",
                        max_length=255,
                        verbose_name="note",
                    ),
                ),
                (
                    "paused_by",
                    models.CharField(
                        blank=True,
                        db_default="",
                        default="",
                        editable=False,
                        max_length=255,
                        verbose_name="paused by",
                    ),
                ),
            ],
            options={
                "verbose_name": "fair share",
                "verbose_name_plural": "   Users",
            },
        ),
        migrations.CreateModel(
            name="Hold",
            fields=[
                ("id", models.BigIntegerField(primary_key=True, serialize=False)),
                (
                    "queue",
                    django_perfectqueue.models.fields.ExactCharField(
                        max_length=100, verbose_name="queue"
                    ),
                ),
                (
                    "key",
                    django_perfectqueue.models.fields.ExactCharField(
                        max_length=255, verbose_name="limit"
                    ),
                ),
                ("opens_at", models.DateTimeField(null=True, verbose_name="opens at")),
            ],
            options={
                "default_permissions": (),
            },
        ),
        migrations.CreateModel(
            name="Journal",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("number", models.IntegerField(verbose_name="number")),
                ("progress", models.FloatField(blank=True, null=True, verbose_name="progress")),
                (
                    "stage",
                    models.CharField(blank=True, default="", max_length=255, verbose_name="stage"),
                ),
                ("lines", models.TextField(blank=True, default="", verbose_name="log lines")),
                ("updated_at", models.DateTimeField(verbose_name="updated at")),
            ],
            options={
                "ordering": ["task_id", "number"],
                "default_permissions": (),
            },
        ),
        migrations.CreateModel(
            name="Lane",
            fields=[
                ("id", models.BigIntegerField(primary_key=True, serialize=False)),
                ("account", models.BigIntegerField(verbose_name="account")),
                ("keys", models.TextField(verbose_name="limits")),
                ("gate", models.BigIntegerField(verbose_name="gate")),
                ("held_by", models.BigIntegerField(db_default=0, verbose_name="held back by")),
                (
                    "has_waiting",
                    models.BooleanField(default=True, verbose_name="has waiting tasks"),
                ),
                ("turn", models.FloatField(db_default=0.0, verbose_name="turn")),
                (
                    "since",
                    models.DateTimeField(default=django.utils.timezone.now, verbose_name="since"),
                ),
                ("finish_tag", models.FloatField(db_default=0.0, verbose_name="finish tag")),
            ],
            options={
                "default_permissions": (),
            },
        ),
        migrations.CreateModel(
            name="Limit",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "scope",
                    models.CharField(
                        choices=[
                            ("name", "tasks that list this name"),
                            ("queue", "tasks of this queue"),
                            ("type", "tasks of this type"),
                            ("user", "tasks of this user"),
                        ],
                        default="name",
                        max_length=5,
                        verbose_name="scope",
                    ),
                ),
                (
                    "name",
                    django_perfectqueue.models.fields.ExactCharField(
                        max_length=249, verbose_name="name"
                    ),
                ),
                (
                    "max_running",
                    models.PositiveIntegerField(
                        blank=True,
                        help_text="How many of these tasks may run at once. Empty: any number. 0: none.",
                        null=True,
                        verbose_name="max running",
                    ),
                ),
                (
                    "rate",
                    models.PositiveIntegerField(
                        blank=True,
                        help_text="How many of them may start in each period. Empty: any number.",
                        null=True,
                        validators=[django.core.validators.MinValueValidator(1)],
                        verbose_name="rate",
                    ),
                ),
                (
                    "period",
                    models.FloatField(
                        default=1.0,
                        help_text="In seconds: 60 for a rate per minute.",
                        validators=[
                            django.core.validators.MinValueValidator(0.001),
                            django.core.validators.MaxValueValidator(31622400.0),
                        ],
                        verbose_name="period",
                    ),
                ),
                (
                    "burst",
                    models.PositiveIntegerField(
                        blank=True,
                        help_text="How many of them may start at once after a pause. Empty: as many as the rate.",
                        null=True,
                        validators=[django.core.validators.MinValueValidator(1)],
                        verbose_name="burst",
                    ),
                ),
                (
                    "paused",
                    models.BooleanField(
                        default=False,
                        help_text="These tasks wait until the pause ends.",
                        verbose_name="paused",
                    ),
                ),
                (
                    "paused_until",
                    models.DateTimeField(
                        blank=True,
                        help_text="Empty: until someone unpauses it.",
                        null=True,
                        verbose_name="paused until",
                    ),
                ),
                (
                    "note",
                    models.CharField(
                        blank=True,
                        db_default="",
                        default="",
                        help_text="Why it is paused.",
                        max_length=255,
                        verbose_name="note",
                    ),
                ),
                (
                    "paused_by",
                    models.CharField(
                        blank=True,
                        db_default="",
                        default="",
                        editable=False,
                        max_length=255,
                        verbose_name="paused by",
                    ),
                ),
                (
                    "declared_in",
                    models.CharField(
                        blank=True,
                        default="",
                        editable=False,
                        max_length=64,
                        verbose_name="digest of the declaration",
                    ),
                ),
                (
                    "declared_at",
                    models.DateTimeField(editable=False, null=True, verbose_name="declared at"),
                ),
                (
                    "ending",
                    models.GeneratedField(
                        db_persist=True,
                        expression=django.db.models.functions.text.Right("name", 1),
                        output_field=models.CharField(max_length=1),
                    ),
                ),
            ],
            options={
                "verbose_name": "limit",
                "verbose_name_plural": "  Limits",
            },
        ),
        migrations.CreateModel(
            name="Meter",
            fields=[
                (
                    "key",
                    django_perfectqueue.models.fields.ExactCharField(
                        max_length=255, primary_key=True, serialize=False, verbose_name="limit"
                    ),
                ),
                ("running", models.IntegerField(default=0, verbose_name="running")),
                ("next_at", models.DateTimeField(null=True, verbose_name="next at")),
            ],
            options={
                "default_permissions": (),
            },
        ),
        migrations.CreateModel(
            name="QueueShare",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "queue",
                    django_perfectqueue.models.fields.ExactCharField(
                        max_length=100, unique=True, verbose_name="queue"
                    ),
                ),
                (
                    "weight",
                    models.FloatField(
                        default=1.0,
                        help_text="Twice the weight gets twice the processor time while queues compete.",
                        validators=[
                            django.core.validators.MinValueValidator(0.001),
                            django.core.validators.MaxValueValidator(1000000.0),
                        ],
                        verbose_name="weight",
                    ),
                ),
            ],
            options={
                "verbose_name": "share of a queue",
                "verbose_name_plural": "    Queues",
            },
        ),
        migrations.CreateModel(
            name="Schedule",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "name",
                    django_perfectqueue.models.fields.ExactCharField(
                        max_length=200, unique=True, verbose_name="name"
                    ),
                ),
                (
                    "origin",
                    models.CharField(
                        choices=[
                            ("row", "made by a person or a program"),
                            ("code", "declared in code"),
                            ("gone", "no longer declared in code"),
                        ],
                        default="row",
                        editable=False,
                        max_length=4,
                        verbose_name="origin",
                    ),
                ),
                (
                    "declared_in",
                    models.CharField(
                        blank=True,
                        default="",
                        editable=False,
                        max_length=64,
                        verbose_name="digest of the declaration",
                    ),
                ),
                (
                    "queue",
                    django_perfectqueue.models.fields.ExactCharField(
                        max_length=100, verbose_name="queue"
                    ),
                ),
                (
                    "type",
                    django_perfectqueue.models.fields.ExactCharField(
                        max_length=255, verbose_name="type"
                    ),
                ),
                (
                    "payload",
                    models.TextField(db_column="data", default="null", verbose_name="data"),
                ),
                (
                    "user",
                    django_perfectqueue.models.fields.ExactCharField(
                        blank=True,
                        default="",
                        help_text="The user of the tasks. They count against this user's fair share.",
                        max_length=255,
                        verbose_name="user",
                    ),
                ),
                ("priority", models.IntegerField(default=0, verbose_name="priority")),
                (
                    "limits",
                    models.CharField(
                        blank=True,
                        default="",
                        help_text="With commas.",
                        max_length=500,
                        verbose_name="limits",
                    ),
                ),
                ("time_limit", models.FloatField(blank=True, null=True, verbose_name="time limit")),
                (
                    "expires_after",
                    models.FloatField(
                        blank=True,
                        help_text="In seconds: a task that has not started by then expires.",
                        null=True,
                        verbose_name="expires after",
                    ),
                ),
                ("context", models.TextField(editable=False, null=True, verbose_name="context")),
                (
                    "options",
                    models.JSONField(
                        default=dict, editable=False, verbose_name="options of its tasks"
                    ),
                ),
                (
                    "cron",
                    models.CharField(blank=True, default="", max_length=200, verbose_name="cron"),
                ),
                (
                    "every",
                    models.FloatField(
                        blank=True, help_text="In seconds.", null=True, verbose_name="every"
                    ),
                ),
                (
                    "timezone",
                    models.CharField(
                        blank=True,
                        default="",
                        help_text="Empty: TIME_ZONE.",
                        max_length=64,
                        verbose_name="time zone",
                    ),
                ),
                (
                    "starts_at",
                    models.DateTimeField(blank=True, null=True, verbose_name="starts at"),
                ),
                ("ends_at", models.DateTimeField(blank=True, null=True, verbose_name="ends at")),
                (
                    "remaining",
                    models.PositiveIntegerField(
                        blank=True,
                        help_text="How many more tasks it submits. Empty: any number.",
                        null=True,
                        verbose_name="remaining",
                    ),
                ),
                (
                    "delay",
                    models.FloatField(
                        default=0.0,
                        help_text="How many seconds after its tick a task is submitted.",
                        verbose_name="delay",
                    ),
                ),
                (
                    "jitter",
                    models.FloatField(
                        default=0.0,
                        help_text="A random delay of at most this many seconds is added; it is fixed for each tick.",
                        verbose_name="jitter",
                    ),
                ),
                (
                    "overlap",
                    models.CharField(
                        choices=[
                            ("skip", "skip the tick"),
                            ("allow", "run both"),
                            ("queue_one", "let one tick wait"),
                            ("queue", "let all ticks wait"),
                            ("cancel", "cancel the previous task"),
                        ],
                        default="skip",
                        help_text="What to do with a tick while the previous task has not ended.",
                        max_length=9,
                        verbose_name="overlap",
                    ),
                ),
                (
                    "catch_up",
                    models.PositiveIntegerField(
                        blank=True,
                        default=0,
                        help_text="How many missed ticks are submitted besides the latest. Empty: all.",
                        null=True,
                        verbose_name="catch up",
                    ),
                ),
                (
                    "deadline",
                    models.FloatField(
                        blank=True,
                        help_text="A tick that is later than this many seconds is dropped. Empty: none is dropped.",
                        null=True,
                        verbose_name="deadline",
                    ),
                ),
                (
                    "pause_after",
                    models.PositiveIntegerField(
                        blank=True,
                        help_text="The schedule is paused after this many failed tasks in a row. Empty: never.",
                        null=True,
                        verbose_name="pause after",
                    ),
                ),
                ("paused", models.BooleanField(default=False, verbose_name="paused")),
                (
                    "note",
                    models.CharField(
                        blank=True,
                        default="",
                        help_text="Why it is paused.",
                        max_length=255,
                        verbose_name="note",
                    ),
                ),
                (
                    "paused_by",
                    models.CharField(
                        blank=True, default="", max_length=255, verbose_name="paused by"
                    ),
                ),
                (
                    "next_at",
                    models.DateTimeField(editable=False, null=True, verbose_name="next at"),
                ),
                ("due_at", models.DateTimeField(editable=False, null=True, verbose_name="due at")),
                (
                    "last_at",
                    models.DateTimeField(editable=False, null=True, verbose_name="last at"),
                ),
                (
                    "last_task_id",
                    models.BigIntegerField(editable=False, null=True, verbose_name="last task"),
                ),
                (
                    "pending",
                    models.JSONField(default=list, editable=False, verbose_name="pending ticks"),
                ),
                ("fired", models.BigIntegerField(default=0, editable=False, verbose_name="fired")),
                (
                    "skipped_overlap",
                    models.BigIntegerField(
                        default=0, editable=False, verbose_name="skipped: overlap"
                    ),
                ),
                (
                    "skipped_late",
                    models.BigIntegerField(default=0, editable=False, verbose_name="skipped: late"),
                ),
                (
                    "failures",
                    models.IntegerField(
                        default=0, editable=False, verbose_name="failures in a row"
                    ),
                ),
                (
                    "counted",
                    models.BooleanField(
                        default=True, editable=False, verbose_name="last task counted"
                    ),
                ),
                (
                    "problem",
                    models.CharField(
                        blank=True,
                        default="",
                        editable=False,
                        max_length=255,
                        verbose_name="problem",
                    ),
                ),
            ],
            options={
                "verbose_name": "schedule",
                "verbose_name_plural": "     Schedules",
            },
        ),
        migrations.CreateModel(
            name="Step",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "kind",
                    models.SmallIntegerField(
                        choices=[
                            (0, "step"),
                            (1, "signal"),
                            (2, "wait for a signal"),
                            (3, "sleep"),
                            (4, "wait for tasks"),
                        ],
                        db_default=0,
                        verbose_name="kind",
                    ),
                ),
                (
                    "name",
                    django_perfectqueue.models.fields.ExactCharField(
                        max_length=100, verbose_name="name"
                    ),
                ),
                ("result_text", models.TextField(db_column="result", verbose_name="result")),
                ("kept_at", models.DateTimeField(verbose_name="kept at")),
                ("until", models.DateTimeField(blank=True, null=True, verbose_name="until")),
            ],
            options={
                "default_permissions": (),
            },
        ),
        migrations.CreateModel(
            name="Tag",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "tag",
                    django_perfectqueue.models.fields.ExactCharField(
                        max_length=64, verbose_name="tag"
                    ),
                ),
            ],
            options={
                "default_permissions": (),
            },
        ),
        migrations.CreateModel(
            name="Usage",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                (
                    "queue",
                    django_perfectqueue.models.fields.ExactCharField(
                        max_length=100, verbose_name="queue"
                    ),
                ),
                (
                    "span",
                    models.IntegerField(
                        choices=[(60, "minute"), (3600, "hour"), (0, "all time")],
                        verbose_name="span",
                    ),
                ),
                (
                    "type",
                    django_perfectqueue.models.fields.ExactCharField(
                        blank=True, default="", max_length=255, verbose_name="type"
                    ),
                ),
                ("start", models.DateTimeField(verbose_name="start")),
                ("others", models.BooleanField(default=False, verbose_name="others")),
                (
                    "user",
                    django_perfectqueue.models.fields.ExactCharField(
                        blank=True, default="", max_length=255, verbose_name="user"
                    ),
                ),
                ("ended", models.BigIntegerField(default=0, verbose_name="ended")),
                ("finished", models.BigIntegerField(default=0, verbose_name="finished")),
                ("retried", models.BigIntegerField(default=0, verbose_name="retried")),
                ("failed", models.BigIntegerField(default=0, verbose_name="failed")),
                ("cancelled", models.BigIntegerField(default=0, verbose_name="cancelled")),
                ("lost", models.BigIntegerField(default=0, verbose_name="lost")),
                ("submitted", models.BigIntegerField(default=0, verbose_name="submitted")),
                ("lasted", models.FloatField(default=0.0, verbose_name="run time")),
                ("squares", models.FloatField(default=0.0, verbose_name="squares of run times")),
                ("waited", models.FloatField(default=0.0, verbose_name="waited")),
                ("wait_squares", models.FloatField(default=0.0, verbose_name="squares of waits")),
                ("seconds", models.FloatField(default=0.0, verbose_name="seconds")),
                ("entitled", models.FloatField(default=0.0, verbose_name="entitled")),
                ("eager", models.IntegerField(default=0, verbose_name="eager")),
                ("paused", models.IntegerField(default=0, verbose_name="paused")),
                ("capped", models.IntegerField(default=0, verbose_name="capped")),
                ("limited", models.IntegerField(default=0, verbose_name="limited")),
                ("longest", models.FloatField(default=0.0, verbose_name="longest wait")),
                ("wait_0", models.BigIntegerField(default=0, verbose_name="waits")),
                ("run_0", models.BigIntegerField(default=0, verbose_name="runs")),
                ("wait_1", models.BigIntegerField(default=0, verbose_name="waits")),
                ("run_1", models.BigIntegerField(default=0, verbose_name="runs")),
                ("wait_2", models.BigIntegerField(default=0, verbose_name="waits")),
                ("run_2", models.BigIntegerField(default=0, verbose_name="runs")),
                ("wait_3", models.BigIntegerField(default=0, verbose_name="waits")),
                ("run_3", models.BigIntegerField(default=0, verbose_name="runs")),
                ("wait_4", models.BigIntegerField(default=0, verbose_name="waits")),
                ("run_4", models.BigIntegerField(default=0, verbose_name="runs")),
                ("wait_5", models.BigIntegerField(default=0, verbose_name="waits")),
                ("run_5", models.BigIntegerField(default=0, verbose_name="runs")),
                ("wait_6", models.BigIntegerField(default=0, verbose_name="waits")),
                ("run_6", models.BigIntegerField(default=0, verbose_name="runs")),
                ("wait_7", models.BigIntegerField(default=0, verbose_name="waits")),
                ("run_7", models.BigIntegerField(default=0, verbose_name="runs")),
                ("wait_8", models.BigIntegerField(default=0, verbose_name="waits")),
                ("run_8", models.BigIntegerField(default=0, verbose_name="runs")),
                ("wait_9", models.BigIntegerField(default=0, verbose_name="waits")),
                ("run_9", models.BigIntegerField(default=0, verbose_name="runs")),
                ("wait_10", models.BigIntegerField(default=0, verbose_name="waits")),
                ("run_10", models.BigIntegerField(default=0, verbose_name="runs")),
                ("wait_11", models.BigIntegerField(default=0, verbose_name="waits")),
                ("run_11", models.BigIntegerField(default=0, verbose_name="runs")),
                ("wait_12", models.BigIntegerField(default=0, verbose_name="waits")),
                ("run_12", models.BigIntegerField(default=0, verbose_name="runs")),
                ("wait_13", models.BigIntegerField(default=0, verbose_name="waits")),
                ("run_13", models.BigIntegerField(default=0, verbose_name="runs")),
                ("wait_14", models.BigIntegerField(default=0, verbose_name="waits")),
                ("run_14", models.BigIntegerField(default=0, verbose_name="runs")),
                ("wait_15", models.BigIntegerField(default=0, verbose_name="waits")),
                ("run_15", models.BigIntegerField(default=0, verbose_name="runs")),
                ("wait_16", models.BigIntegerField(default=0, verbose_name="waits")),
                ("run_16", models.BigIntegerField(default=0, verbose_name="runs")),
                ("wait_17", models.BigIntegerField(default=0, verbose_name="waits")),
                ("run_17", models.BigIntegerField(default=0, verbose_name="runs")),
                ("wait_18", models.BigIntegerField(default=0, verbose_name="waits")),
                ("run_18", models.BigIntegerField(default=0, verbose_name="runs")),
                ("wait_19", models.BigIntegerField(default=0, verbose_name="waits")),
                ("run_19", models.BigIntegerField(default=0, verbose_name="runs")),
                ("wait_20", models.BigIntegerField(default=0, verbose_name="waits")),
                ("run_20", models.BigIntegerField(default=0, verbose_name="runs")),
                ("wait_21", models.BigIntegerField(default=0, verbose_name="waits")),
                ("run_21", models.BigIntegerField(default=0, verbose_name="runs")),
                ("wait_22", models.BigIntegerField(default=0, verbose_name="waits")),
                ("run_22", models.BigIntegerField(default=0, verbose_name="runs")),
                ("wait_23", models.BigIntegerField(default=0, verbose_name="waits")),
                ("run_23", models.BigIntegerField(default=0, verbose_name="runs")),
                ("wait_24", models.BigIntegerField(default=0, verbose_name="waits")),
                ("run_24", models.BigIntegerField(default=0, verbose_name="runs")),
                ("wait_25", models.BigIntegerField(default=0, verbose_name="waits")),
                ("run_25", models.BigIntegerField(default=0, verbose_name="runs")),
                ("wait_26", models.BigIntegerField(default=0, verbose_name="waits")),
                ("run_26", models.BigIntegerField(default=0, verbose_name="runs")),
                ("wait_27", models.BigIntegerField(default=0, verbose_name="waits")),
                ("run_27", models.BigIntegerField(default=0, verbose_name="runs")),
            ],
            options={
                "verbose_name": "share received",
                "verbose_name_plural": "shares received",
                "default_permissions": (),
            },
        ),
        migrations.CreateModel(
            name="Watch",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "person",
                    django_perfectqueue.models.fields.ExactCharField(
                        max_length=255, verbose_name="person"
                    ),
                ),
            ],
            options={
                "default_permissions": (),
            },
        ),
        migrations.CreateModel(
            name="Worker",
            fields=[
                ("id", models.BigIntegerField(primary_key=True, serialize=False)),
                ("host", models.CharField(max_length=255, verbose_name="host")),
                ("pid", models.IntegerField(verbose_name="pid")),
                ("launcher", models.IntegerField(default=0, verbose_name="launcher")),
                ("generation", models.IntegerField(default=1, verbose_name="generation")),
                ("version", models.CharField(max_length=50, verbose_name="version")),
                (
                    "release",
                    models.CharField(
                        db_default="", default="", max_length=100, verbose_name="release"
                    ),
                ),
                ("processors", models.IntegerField(verbose_name="processors")),
                ("queues_text", models.TextField(db_column="queues", verbose_name="queues")),
                ("routes_text", models.TextField(db_column="routes", verbose_name="types")),
                ("pid_space", models.CharField(db_default="", default="", max_length=100)),
                ("start", models.BigIntegerField(db_default=0, default=0)),
                (
                    "schedules_text",
                    models.TextField(db_column="schedules", default="[]", verbose_name="schedules"),
                ),
                (
                    "states_text",
                    models.TextField(db_column="states", default="[]", verbose_name="runs"),
                ),
                ("leaving", models.BooleanField(default=False, verbose_name="leaving")),
                ("draining", models.BooleanField(db_default=False, default=False)),
                ("started_at", models.DateTimeField(verbose_name="started at")),
                ("seen_at", models.DateTimeField(verbose_name="seen at")),
                ("drifted_at", models.DateTimeField(null=True, verbose_name="drifted at")),
                ("problem", models.TextField(db_default="", verbose_name="problem")),
            ],
            options={
                "verbose_name": "worker",
                "verbose_name_plural": " Workers",
                "default_permissions": ("view", "drain"),
            },
        ),
        migrations.CreateModel(
            name="Batch",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                (
                    "queue",
                    django_perfectqueue.models.fields.ExactCharField(
                        max_length=100, verbose_name="queue"
                    ),
                ),
                (
                    "name",
                    django_perfectqueue.models.fields.ExactCharField(
                        max_length=255, verbose_name="name"
                    ),
                ),
                (
                    "user",
                    django_perfectqueue.models.fields.ExactCharField(
                        blank=True, default="", max_length=255, verbose_name="user"
                    ),
                ),
                ("parent_id", models.BigIntegerField(blank=True, null=True, verbose_name="parent")),
                ("total", models.IntegerField(default=0, verbose_name="total")),
                ("finished", models.IntegerField(default=0, verbose_name="finished")),
                ("dead", models.IntegerField(default=0, verbose_name="dead")),
                ("stopped", models.BooleanField(default=False, verbose_name="stopped")),
                ("created_at", models.DateTimeField(verbose_name="created at")),
                ("ended_at", models.DateTimeField(blank=True, null=True, verbose_name="ended at")),
            ],
            options={
                "verbose_name": "batch",
                "verbose_name_plural": "      Batches",
                "default_permissions": ("view",),
                "indexes": [models.Index(fields=["parent_id"], name="perfectqueue_batch_parent")],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("queue", "name"), name="perfectqueue_batch_name"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("stopped__range", (False, True)),
                            django_perfectqueue.models.fields.IsTime("created_at"),
                            django_perfectqueue.models.fields.IsTime("ended_at"),
                        ),
                        name="perfectqueue_batch_values",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="BatchDelta",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("batch_id", models.BigIntegerField(verbose_name="batch")),
                ("total", models.IntegerField(default=0, verbose_name="total")),
                ("finished", models.IntegerField(default=0, verbose_name="finished")),
                ("dead", models.IntegerField(default=0, verbose_name="dead")),
            ],
            options={
                "default_permissions": (),
                "indexes": [models.Index(fields=["batch_id"], name="perfectqueue_delta_batch")],
            },
        ),
        migrations.CreateModel(
            name="DebouncedSubmit",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                (
                    "queue",
                    django_perfectqueue.models.fields.ExactCharField(
                        max_length=100, verbose_name="queue"
                    ),
                ),
                (
                    "key",
                    django_perfectqueue.models.fields.ExactCharField(
                        max_length=255, verbose_name="key"
                    ),
                ),
                ("at", models.DateTimeField(verbose_name="submitted at")),
                ("wait", models.FloatField(verbose_name="wait")),
                ("at_most", models.FloatField(null=True, verbose_name="at most")),
                ("leading", models.BooleanField(verbose_name="leading")),
                ("terms", models.TextField(verbose_name="terms")),
            ],
            options={
                "default_permissions": (),
                "indexes": [
                    models.Index(fields=["queue", "key"], name="perfectqueue_debounced_key")
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            django_perfectqueue.models.fields.IsTime("at"),
                            ("wait__range", (0.0, 3155760000.0)),
                            ("at_most__range", (0.0, 3155760000.0)),
                            ("leading__range", (False, True)),
                        ),
                        name="perfectqueue_debouncedsubmit_values",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="BatchMember",
            fields=[
                (
                    "task",
                    models.OneToOneField(
                        db_constraint=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        primary_key=True,
                        related_name="membership",
                        serialize=False,
                        to="perfectqueue.task",
                        verbose_name="task",
                    ),
                ),
                ("batch_id", models.BigIntegerField(verbose_name="batch")),
            ],
            options={
                "default_permissions": (),
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
                    django_perfectqueue.models.fields.ExactCharField(
                        blank=True, default="", max_length=255, verbose_name="group"
                    ),
                ),
                ("message", models.TextField(blank=True, default="", verbose_name="message")),
                ("errors", models.SmallIntegerField(default=0, verbose_name="errors")),
                ("crashes", models.SmallIntegerField(default=0, verbose_name="crashes")),
                ("ended_at", models.DateTimeField(verbose_name="ended at")),
            ],
            options={
                "verbose_name": "failed task",
                "verbose_name_plural": "       Failed tasks",
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
                            (3, "other tasks or a signal"),
                        ],
                        verbose_name="state",
                    ),
                ),
                (
                    "last_ending",
                    models.SmallIntegerField(
                        choices=[
                            (0, "none yet"),
                            (1, "retried"),
                            (2, "snoozed"),
                            (3, "released"),
                            (4, "lost"),
                            (5, "given back"),
                            (6, "yielded"),
                            (7, "suspended"),
                        ],
                        db_default=0,
                        verbose_name="last ending",
                    ),
                ),
                ("rank", models.IntegerField(default=0, verbose_name="rank")),
                ("run_at", models.DateTimeField(verbose_name="run at")),
                ("timer_at", models.DateTimeField(null=True, verbose_name="timer at")),
                ("attempt", models.IntegerField(default=0, verbose_name="attempt")),
                ("errors", models.SmallIntegerField(default=0, verbose_name="errors")),
                ("crashes", models.SmallIntegerField(default=0, verbose_name="crashes")),
                ("holder", models.BigIntegerField(null=True, verbose_name="holder")),
                ("token", models.BigIntegerField(null=True, verbose_name="token")),
                (
                    "cancel_requested",
                    models.BooleanField(default=False, verbose_name="cancel requested"),
                ),
                ("charged", models.FloatField(null=True, verbose_name="charged")),
                ("watched", models.BooleanField(db_default=False, verbose_name="watched")),
                ("followed", models.BigIntegerField(null=True, verbose_name="followed")),
            ],
            options={
                "default_permissions": (),
            },
        ),
        migrations.AddIndex(
            model_name="task",
            index=django_perfectqueue.models.fields.PartialIndex(
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
        migrations.AddConstraint(
            model_name="task",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    django_perfectqueue.models.fields.IsTime("created_at"),
                    django_perfectqueue.models.fields.IsTime("run_at"),
                    django_perfectqueue.models.fields.IsTime("expected_at"),
                    django_perfectqueue.models.fields.IsTime("expires_at"),
                    ("time_limit__range", (0.0, 3155760000.0)),
                    ("outcome__in", ["", "finished", "failed", "cancelled", "expired"]),
                    django_perfectqueue.models.fields.IsTime("started_at"),
                    django_perfectqueue.models.fields.IsTime("ended_at"),
                ),
                name="perfectqueue_task_values",
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
        migrations.AddIndex(
            model_name="change",
            index=models.Index(
                fields=["kind", "name", "queue", "id"], name="perfectqueue_change_of"
            ),
        ),
        migrations.AddConstraint(
            model_name="change",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    django_perfectqueue.models.fields.IsTime("at"),
                    ("kind__in", ["share", "queue", "limit", "task", "sched", "code"]),
                    django_perfectqueue.models.fields.IsJson("before", kinds="'object', 'null'"),
                    django_perfectqueue.models.fields.IsJson("after", kinds="'object', 'null'"),
                ),
                name="perfectqueue_change_values",
            ),
        ),
        migrations.AddField(
            model_name="dependency",
            name="child",
            field=models.ForeignKey(
                db_constraint=False,
                db_index=False,
                on_delete=django.db.models.deletion.DO_NOTHING,
                related_name="dependencies",
                to="perfectqueue.task",
                verbose_name="task",
            ),
        ),
        migrations.AddField(
            model_name="dependency",
            name="parent",
            field=models.ForeignKey(
                db_constraint=False,
                db_index=False,
                on_delete=django.db.models.deletion.DO_NOTHING,
                related_name="dependents",
                to="perfectqueue.task",
                verbose_name="waits for",
            ),
        ),
        migrations.AddConstraint(
            model_name="dependencyevent",
            constraint=models.CheckConstraint(
                condition=models.Q(("kind__range", (0, 1))),
                name="perfectqueue_dependencyevent_values",
            ),
        ),
        migrations.AddIndex(
            model_name="fairshare",
            index=models.Index(
                fields=["paused", "user", "queue"], name="perfectqueue_share_paused"
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
                condition=models.Q(
                    ("paused__range", (False, True)),
                    django_perfectqueue.models.fields.IsTime("paused_until"),
                    ("weight__range", (0.001, 1000000.0)),
                ),
                name="perfectqueue_fairshare_values",
            ),
        ),
        migrations.AddIndex(
            model_name="hold",
            index=models.Index(fields=["queue", "opens_at"], name="perfectqueue_hold_opens"),
        ),
        migrations.AddIndex(
            model_name="hold",
            index=models.Index(fields=["key"], name="perfectqueue_hold_key"),
        ),
        migrations.AddConstraint(
            model_name="hold",
            constraint=models.CheckConstraint(
                condition=models.Q(django_perfectqueue.models.fields.IsTime("opens_at")),
                name="perfectqueue_hold_values",
            ),
        ),
        migrations.AddField(
            model_name="journal",
            name="task",
            field=models.ForeignKey(
                db_constraint=False,
                db_index=False,
                on_delete=django.db.models.deletion.DO_NOTHING,
                related_name="journals",
                to="perfectqueue.task",
                verbose_name="task",
            ),
        ),
        migrations.AddIndex(
            model_name="lane",
            index=models.Index(
                fields=["account", "held_by", "has_waiting", "since"],
                name="perfectqueue_lane_account",
            ),
        ),
        migrations.AddIndex(
            model_name="lane",
            index=django_perfectqueue.models.fields.PartialIndex(
                condition=models.Q(("held_by", 0), _negated=True),
                fields=["held_by", "turn", "since"],
                name="perfectqueue_lane_held",
                on=["postgresql"],
                whole=["held_by", "turn", "since"],
            ),
        ),
        migrations.AddIndex(
            model_name="lane",
            index=django_perfectqueue.models.fields.PartialIndex(
                condition=models.Q(("finish_tag__gt", 0)),
                fields=["gate", "finish_tag"],
                name="perfectqueue_lane_clock",
                on=["postgresql", "sqlite"],
                whole=["gate", "finish_tag"],
            ),
        ),
        migrations.AddConstraint(
            model_name="lane",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    django_perfectqueue.models.fields.IsJson("keys", kinds="'array'"),
                    ("has_waiting__range", (False, True)),
                    ("turn__range", (-1e30, 1e30)),
                    django_perfectqueue.models.fields.IsTime("since"),
                    ("finish_tag__range", (0.0, 1000000000000000.0)),
                ),
                name="perfectqueue_lane_values",
            ),
        ),
        migrations.AddIndex(
            model_name="limit",
            index=models.Index(fields=["ending", "scope"], name="perfectqueue_limit_family"),
        ),
        migrations.AddConstraint(
            model_name="limit",
            constraint=models.UniqueConstraint(
                fields=("scope", "name"), name="perfectqueue_limit_name"
            ),
        ),
        migrations.AddConstraint(
            model_name="limit",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("rate__isnull", True),
                    ("burst__isnull", True),
                    (
                        "burst__lte",
                        django.db.models.expressions.CombinedExpression(
                            django.db.models.expressions.CombinedExpression(
                                models.F("rate"), "*", models.Value(31622400.0)
                            ),
                            "/",
                            models.F("period"),
                        ),
                    ),
                    _connector="OR",
                ),
                name="perfectqueue_limit_burst",
                violation_error_message="The burst is too large: at this rate it exceeds the starts of 366 days.",
            ),
        ),
        migrations.AddConstraint(
            model_name="limit",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("paused__range", (False, True)),
                    django_perfectqueue.models.fields.IsTime("paused_until"),
                    ("scope__in", ["name", "queue", "type", "user"]),
                    ("rate__range", (1, 2147483647)),
                    ("period__range", (0.001, 31622400.0)),
                    ("burst__range", (1, 2147483647)),
                    django_perfectqueue.models.fields.IsTime("declared_at"),
                ),
                name="perfectqueue_limit_values",
            ),
        ),
        migrations.AddConstraint(
            model_name="meter",
            constraint=models.CheckConstraint(
                condition=models.Q(django_perfectqueue.models.fields.IsTime("next_at")),
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
        migrations.AddIndex(
            model_name="schedule",
            index=models.Index(fields=["due_at"], name="perfectqueue_schedule_due"),
        ),
        migrations.AddIndex(
            model_name="schedule",
            index=models.Index(fields=["origin"], name="perfectqueue_schedule_origin"),
        ),
        migrations.AddIndex(
            model_name="schedule",
            index=models.Index(fields=["user"], name="perfectqueue_schedule_user"),
        ),
        migrations.AddConstraint(
            model_name="schedule",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("cron", ""), ("every__isnull", False)),
                    models.Q(models.Q(("cron", ""), _negated=True), ("every__isnull", True)),
                    _connector="OR",
                ),
                name="perfectqueue_schedule_timing",
                violation_error_message="Give either a cron expression or an interval.",
            ),
        ),
        migrations.AddConstraint(
            model_name="schedule",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("origin__in", ["row", "code", "gone"]),
                    ("time_limit__range", (0.0, 3155760000.0)),
                    ("expires_after__range", (0.0, 3155760000.0)),
                    django_perfectqueue.models.fields.IsJson("options", kinds="'object', 'null'"),
                    ("every__range", (0.001, 3155760000.0)),
                    django_perfectqueue.models.fields.IsTime("starts_at"),
                    django_perfectqueue.models.fields.IsTime("ends_at"),
                    ("delay__range", (0.0, 3155760000.0)),
                    ("jitter__range", (0.0, 3155760000.0)),
                    ("overlap__in", ["skip", "allow", "queue_one", "queue", "cancel"]),
                    ("deadline__range", (0.0, 3155760000.0)),
                    ("paused__range", (False, True)),
                    django_perfectqueue.models.fields.IsTime("next_at"),
                    django_perfectqueue.models.fields.IsTime("due_at"),
                    django_perfectqueue.models.fields.IsTime("last_at"),
                    django_perfectqueue.models.fields.IsJson("pending", kinds="'array'"),
                    ("counted__range", (False, True)),
                ),
                name="perfectqueue_schedule_values",
            ),
        ),
        migrations.AddField(
            model_name="step",
            name="task",
            field=models.ForeignKey(
                db_constraint=False,
                db_index=False,
                on_delete=django.db.models.deletion.DO_NOTHING,
                related_name="steps",
                to="perfectqueue.task",
                verbose_name="task",
            ),
        ),
        migrations.AddField(
            model_name="tag",
            name="task",
            field=models.ForeignKey(
                db_constraint=False,
                db_index=False,
                on_delete=django.db.models.deletion.DO_NOTHING,
                related_name="tags",
                to="perfectqueue.task",
                verbose_name="task",
            ),
        ),
        migrations.AddConstraint(
            model_name="usage",
            constraint=models.UniqueConstraint(
                fields=("queue", "span", "type", "start", "others", "user"),
                name="perfectqueue_usage_key",
            ),
        ),
        migrations.AddConstraint(
            model_name="usage",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("span__in", [60, 3600, 0]),
                    django_perfectqueue.models.fields.IsTime("start"),
                    ("others__range", (False, True)),
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
        migrations.CreateModel(
            name="Overview",
            fields=[],
            options={
                "verbose_name": "overview",
                "verbose_name_plural": "         Overview",
                "proxy": True,
                "default_permissions": ("view",),
                "indexes": [],
                "constraints": [],
            },
            bases=("perfectqueue.usage",),
        ),
        migrations.AddField(
            model_name="watch",
            name="task",
            field=models.ForeignKey(
                db_constraint=False,
                db_index=False,
                on_delete=django.db.models.deletion.DO_NOTHING,
                related_name="watches",
                to="perfectqueue.task",
                verbose_name="task",
            ),
        ),
        migrations.AddIndex(
            model_name="worker",
            index=models.Index(fields=["seen_at"], name="perfectqueue_worker_seen"),
        ),
        migrations.AddConstraint(
            model_name="worker",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    django_perfectqueue.models.fields.IsJson("queues_text", kinds="'array'"),
                    django_perfectqueue.models.fields.IsJson(
                        "routes_text", kinds="'object', 'null'"
                    ),
                    django_perfectqueue.models.fields.IsJson("schedules_text", kinds="'array'"),
                    django_perfectqueue.models.fields.IsJson("states_text", kinds="'array'"),
                    ("leaving__range", (False, True)),
                    ("draining__range", (False, True)),
                    django_perfectqueue.models.fields.IsTime("started_at"),
                    django_perfectqueue.models.fields.IsTime("seen_at"),
                    django_perfectqueue.models.fields.IsTime("drifted_at"),
                ),
                name="perfectqueue_worker_values",
            ),
        ),
        migrations.AddIndex(
            model_name="batchmember",
            index=models.Index(fields=["batch_id", "task"], name="perfectqueue_member_batch"),
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
            model_name="deadletter",
            index=models.Index(fields=["ended_at", "task"], name="perfectqueue_dead_ended"),
        ),
        migrations.AddIndex(
            model_name="deadletter",
            index=models.Index(
                fields=["status", "ended_at", "task"], name="perfectqueue_dead_failed"
            ),
        ),
        migrations.AddIndex(
            model_name="deadletter",
            index=models.Index(
                fields=["group", "ended_at", "task"], name="perfectqueue_dead_cause"
            ),
        ),
        migrations.AddConstraint(
            model_name="deadletter",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("status__in", ["finished", "failed", "cancelled", "expired"]),
                    django_perfectqueue.models.fields.IsTime("ended_at"),
                ),
                name="perfectqueue_deadletter_values",
            ),
        ),
        migrations.AddIndex(
            model_name="ticket",
            index=django_perfectqueue.models.fields.PartialIndex(
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
                condition=models.Q(("timer_at__isnull", False)),
                fields=["timer_at", "state", "task"],
                name="perfectqueue_ticket_timer",
            ),
        ),
        migrations.AddIndex(
            model_name="ticket",
            index=models.Index(
                condition=models.Q(("state", 3)),
                fields=["lane", "task"],
                name="perfectqueue_ticket_blocked",
            ),
        ),
        migrations.AddConstraint(
            model_name="ticket",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("state__range", (0, 3)),
                    ("last_ending__range", (0, 7)),
                    django_perfectqueue.models.fields.IsTime("run_at"),
                    django_perfectqueue.models.fields.IsTime("timer_at"),
                    ("cancel_requested__range", (False, True)),
                    ("charged__range", (-1e30, 1e30)),
                    ("watched__range", (False, True)),
                ),
                name="perfectqueue_ticket_values",
            ),
        ),
        migrations.AddConstraint(
            model_name="attempt",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("ending__in", ["retried", "failed", "cancelled", "lost"]),
                    django_perfectqueue.models.fields.IsTime("started_at"),
                    django_perfectqueue.models.fields.IsTime("ended_at"),
                ),
                name="perfectqueue_attempt_values",
            ),
        ),
        migrations.AddIndex(
            model_name="dependency",
            index=models.Index(fields=["child", "id"], name="perfectqueue_dep_child"),
        ),
        migrations.AddIndex(
            model_name="dependency",
            index=models.Index(fields=["parent"], name="perfectqueue_dep_parent"),
        ),
        migrations.AddConstraint(
            model_name="dependency",
            constraint=models.CheckConstraint(
                condition=models.Q(("if_failed__range", (0, 8)), ("state__range", (0, 3))),
                name="perfectqueue_dependency_values",
            ),
        ),
        migrations.AddConstraint(
            model_name="journal",
            constraint=models.UniqueConstraint(
                fields=("task", "number"), name="perfectqueue_journal_task"
            ),
        ),
        migrations.AddConstraint(
            model_name="journal",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("progress__range", (0.0, 1.0)),
                    django_perfectqueue.models.fields.IsTime("updated_at"),
                ),
                name="perfectqueue_journal_values",
            ),
        ),
        migrations.AddConstraint(
            model_name="step",
            constraint=models.UniqueConstraint(
                fields=("task", "kind", "name"), name="perfectqueue_step_name"
            ),
        ),
        migrations.AddConstraint(
            model_name="step",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("kind__range", (0, 4)),
                    django_perfectqueue.models.fields.IsTime("kept_at"),
                    django_perfectqueue.models.fields.IsTime("until"),
                ),
                name="perfectqueue_step_values",
            ),
        ),
        migrations.AddIndex(
            model_name="tag",
            index=models.Index(fields=["tag", "task"], name="perfectqueue_tag_tag"),
        ),
        migrations.AddConstraint(
            model_name="tag",
            constraint=models.UniqueConstraint(
                fields=("task", "tag"), name="perfectqueue_tag_task"
            ),
        ),
        migrations.AddIndex(
            model_name="watch",
            index=models.Index(fields=["person", "task"], name="perfectqueue_watch_person"),
        ),
        migrations.AddConstraint(
            model_name="watch",
            constraint=models.UniqueConstraint(
                fields=("task", "person"), name="perfectqueue_watch_task"
            ),
        ),
    ]
