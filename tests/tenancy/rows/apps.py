from django.apps import AppConfig


class RowsConfig(AppConfig):
    name = "tests.tenancy.rows"
    label = "rows"
    default_auto_field = "django.db.models.BigAutoField"
