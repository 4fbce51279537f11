from __future__ import annotations

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class PerfectQueueConfig(AppConfig):
    name = "django_perfectqueue"
    label = "perfectqueue"
    verbose_name = _("Perfect queue")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from . import checks  # noqa: F401
        from .fairness.audit import follow_changes

        follow_changes()
