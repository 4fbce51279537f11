import django.core.validators
import django.db.models.deletion
from django.db import migrations, models

import reports.models


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="Customer",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("slug", models.SlugField(unique=True)),
                ("name", models.CharField(max_length=100)),
                (
                    "plan",
                    models.CharField(
                        choices=[("standard", "standard"), ("gold", "gold")],
                        default="standard",
                        max_length=8,
                    ),
                ),
            ],
            options={
                "ordering": ["name"],
            },
        ),
        migrations.CreateModel(
            name="Upload",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("name", models.CharField(max_length=100)),
                (
                    "file",
                    models.FileField(
                        upload_to=reports.models.folder_of_uploads,
                        validators=[django.core.validators.FileExtensionValidator(["csv"])],
                    ),
                ),
                ("uploaded_at", models.DateTimeField(auto_now_add=True)),
                (
                    "customer",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="uploads",
                        to="reports.customer",
                    ),
                ),
            ],
            options={
                "ordering": ["-pk"],
            },
        ),
        migrations.CreateModel(
            name="Report",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("rows", models.PositiveIntegerField()),
                ("total", models.DecimalField(decimal_places=2, max_digits=20)),
                ("low", models.FloatField()),
                ("high", models.FloatField()),
                ("figures", models.JSONField()),
                (
                    "chart",
                    models.FileField(
                        blank=True,
                        storage=reports.models.overwriting,
                        upload_to=reports.models.folder_of_charts,
                    ),
                ),
                ("finished_at", models.DateTimeField(blank=True, null=True)),
                (
                    "upload",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="report",
                        to="reports.upload",
                    ),
                ),
            ],
            options={
                "ordering": ["-pk"],
            },
        ),
    ]
