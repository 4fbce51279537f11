"""What the tasks of a schedule take along."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("perfectqueue", "0002_storage")]

    operations = [
        migrations.AddField(
            "schedule",
            "context",
            models.TextField("context", null=True, editable=False),
        ),
    ]
