from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True
    operations = [
        migrations.CreateModel(
            "Row",
            [
                ("id", models.BigAutoField(primary_key=True)),
                ("owner", models.CharField(max_length=63)),
            ],
        )
    ]
