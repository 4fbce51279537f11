from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("perfectqueue", "0002_storage")]

    operations = [
        migrations.AddField(
            model_name="ticket",
            name="charged",
            field=models.FloatField(null=True, verbose_name="charged"),
        ),
    ]
