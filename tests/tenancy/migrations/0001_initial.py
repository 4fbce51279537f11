import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True
    operations = [
        migrations.CreateModel(
            "Customer",
            [
                ("id", models.BigAutoField(primary_key=True)),
                ("schema_name", models.CharField(max_length=63, unique=True, db_index=True)),
            ],
        ),
        migrations.CreateModel(
            "Domain",
            [
                ("id", models.BigAutoField(primary_key=True)),
                ("domain", models.CharField(max_length=253, unique=True, db_index=True)),
                ("is_primary", models.BooleanField(default=True, db_index=True)),
                (
                    "tenant",
                    models.ForeignKey(
                        "tenancy.Customer",
                        django.db.models.deletion.CASCADE,
                        related_name="domains",
                    ),
                ),
            ],
        ),
    ]
