"""Tasks that are followed together."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from .fields import ExactCharField, ReadableDateTimeField, in_order, readable
from .task import keyed_by_task


@readable()
class Batch(models.Model):
    """
    A named set of tasks.

    ``total``, ``finished`` and ``dead`` are what has been counted; deltas that are not yet
    counted are to be added. A batch with a ``parent`` counts there as one task. ``stopped``
    takes no more tasks.
    """

    id = models.BigAutoField(primary_key=True)
    queue = ExactCharField(_("queue"), max_length=100)
    name = ExactCharField(_("name"), max_length=255)
    user = ExactCharField(_("user"), max_length=255, blank=True, default="")
    parent_id = models.BigIntegerField(_("parent"), null=True, blank=True)
    total = models.IntegerField(_("total"), default=0)
    finished = models.IntegerField(_("finished"), default=0)
    dead = models.IntegerField(_("dead"), default=0)
    stopped = models.BooleanField(_("stopped"), default=False)
    created_at = ReadableDateTimeField(_("created at"))
    ended_at = ReadableDateTimeField(_("ended at"), null=True, blank=True)

    class Meta:
        verbose_name = _("batch")
        verbose_name_plural = in_order(6, _("batches"))
        default_permissions = ("view",)
        constraints = [
            models.UniqueConstraint(fields=["queue", "name"], name="perfectqueue_batch_name"),
        ]
        indexes = [models.Index(fields=["parent_id"], name="perfectqueue_batch_parent")]

    def __str__(self) -> str:
        return self.name


class BatchMember(models.Model):
    """A task of a batch."""

    task = keyed_by_task("membership")
    batch_id = models.BigIntegerField(_("batch"))

    class Meta:
        default_permissions = ()
        indexes = [models.Index(fields=["batch_id", "task"], name="perfectqueue_member_batch")]

    def __str__(self) -> str:
        return f"{self.batch_id}: {self.task_id}"


class BatchDelta(models.Model):
    """
    What a transaction has changed of a batch's counts.

    Rows are appended, and counted at the end of the batch, or where there are many: so nobody
    waits for the batch's row.
    """

    id = models.BigAutoField(primary_key=True)
    batch_id = models.BigIntegerField(_("batch"))
    total = models.IntegerField(_("total"), default=0)
    finished = models.IntegerField(_("finished"), default=0)
    dead = models.IntegerField(_("dead"), default=0)

    class Meta:
        default_permissions = ()
        indexes = [models.Index(fields=["batch_id"], name="perfectqueue_delta_batch")]

    def __str__(self) -> str:
        return f"{self.batch_id}: {self.total:+d} {self.finished:+d} {self.dead:+d}"
