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
        from .fairness import audit, limits, shares

        audit.follow_changes()
        shares.follow_changes()
        limits.follow_changes()
