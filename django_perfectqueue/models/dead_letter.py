"""Tasks that failed or were cancelled, until a person decides."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from .fields import (
    ExactCharField,
    ReadableDateTimeField,
    Undeletable,
    UndeletableQuerySet,
    in_order,
    readable,
)
from .status import Outcome
from .task import keyed_by_task


@readable()
class DeadLetter(Undeletable):
    """
    A task that ended without finishing: failed, cancelled or expired.

    Such tasks are few and are looked for; so they have a row of their own, and the wide
    table needs no index on how tasks ended. ``group`` is the error's class or the reason.
    """

    task = keyed_by_task("dead_letter")
    status = models.CharField(_("status"), max_length=9, choices=Outcome.choices)
    group = ExactCharField(_("group"), max_length=255, blank=True, default="")
    message = models.TextField(_("message"), blank=True, default="")
    errors = models.SmallIntegerField(_("errors"), default=0)
    crashes = models.SmallIntegerField(_("crashes"), default=0)
    ended_at = ReadableDateTimeField(_("ended at"))

    objects = UndeletableQuerySet.as_manager()

    class Meta:
        verbose_name = _("failed task")
        verbose_name_plural = in_order(7, _("failed tasks"))
        default_permissions = ("view",)
        indexes = [
            models.Index(fields=["status", "task"], name="perfectqueue_dead_status"),
            models.Index(fields=["group", "task"], name="perfectqueue_dead_group"),
            models.Index(fields=["ended_at", "task"], name="perfectqueue_dead_ended"),
            models.Index(fields=["status", "ended_at", "task"], name="perfectqueue_dead_failed"),
            models.Index(fields=["group", "ended_at", "task"], name="perfectqueue_dead_cause"),
        ]

    def __str__(self) -> str:
        return f"{self.task_id}: {self.status}"


DISCARDED_GROUP = "discarded"
