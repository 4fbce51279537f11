"""A router for a project whose tasks are in a database of their own."""

from __future__ import annotations

from django.db.models import Model

from .conf import options

APP = "perfectqueue"


class QueueRouter:
    """Keeps the tables of this package in the database that DATABASE names, and only there."""

    def db_for_read(self, model: type[Model], **hints: object) -> str | None:
        return options().DATABASE or None if model._meta.app_label == APP else None

    db_for_write = db_for_read

    def allow_migrate(self, db: str, app_label: str, **hints: object) -> bool | None:
        using = options().DATABASE
        return db == using if using and app_label == APP else None
