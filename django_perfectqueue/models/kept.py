"""Rows that can't be deleted but by the store."""

from __future__ import annotations

from typing import NoReturn, TypeVar

from django.db import models

UNDELETABLE = (
    "Tasks, tickets and dead letters can't be deleted so, as it would leave behind what belongs"
    " to them: use the command pq_purge, Queue.purge() or Queue.clear()."
)

M = TypeVar("M", bound=models.Model)


class KeptQuerySet(models.QuerySet[M]):
    """Rows of which one task has several, so that only the store may delete them."""

    def delete(self) -> NoReturn:
        """Refuse: that would leave behind what belongs to them, and their lanes' accounts."""
        raise TypeError(UNDELETABLE)

    delete.queryset_only = True  # type: ignore[attr-defined]


KeptManager = models.Manager.from_queryset(KeptQuerySet)


class Kept(models.Model):
    class Meta:
        abstract = True

    def delete(self, *args: object, **kwargs: object) -> NoReturn:
        raise TypeError(UNDELETABLE)
