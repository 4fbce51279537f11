from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("perfectqueue", "0002_storage")]

    operations = [
        migrations.AddField(
            model_name="worker",
            name="pid_space",
            field=models.CharField(db_default="", default="", max_length=100),
        ),
        migrations.AddField(
            model_name="worker",
            name="start",
            field=models.BigIntegerField(db_default=0, default=0),
        ),
    ]
