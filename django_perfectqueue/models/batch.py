"""Tasks that are followed together, wait for others, or failed until a person decides."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from .fields import SPAN, ExactCharField, Undeletable, in_order, readable
from .status import Outcome
from .task import keyed_by_task, of_task


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
    created_at = models.DateTimeField(_("created at"))
    ended_at = models.DateTimeField(_("ended at"), null=True, blank=True)

    class Meta:
        verbose_name = _("batch")
        verbose_name_plural = in_order(6, _("batches"))
        default_permissions = ("view",)
        constraints = [
            models.UniqueConstraint(fields=["queue", "name"], name="perfectqueue_batch_name")
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


# Which tasks wait for which, and what has yet to be done about it.


# What stands in ``if_failed``, too: what a callback waits for, up to this, that a task waits for
# its turn in its sequence, and that it joins another.
SEQUENCE = 7
JOINED = 8


# The ids of sequences, as parents, are no larger than this; a batch is given by minus its id.
SEQUENCES = -(2**62)


class IfFailed(models.IntegerChoices):
    """What becomes of a task when one that it waits for has ended without finishing."""

    WAIT = 0, _("wait")
    CANCEL = 1, _("cancel")
    RUN = 2, _("run")


@readable(if_failed=(IfFailed.WAIT.value, JOINED))
class Dependency(models.Model):
    """
    ``child`` waits for ``parent``.

    A dependency is NEW until the parent's ticket is marked as followed, and then AWAITED. It is
    FAILED when the parent has ended without finishing and ``if_failed`` is not RUN, and MET
    when the child no longer waits for it. Where it is JOINED the child has run the parent, or
    joins it, while it runs itself.

    A sequence is a parent, too, by a number up to SEQUENCES: NEW of a task that has no place in
    it yet, MET of the one that has the last place.
    """

    class State(models.IntegerChoices):
        NEW = 0, _("new")
        AWAITED = 1, _("awaited")
        FAILED = 2, _("failed")
        MET = 3, _("met")

    child = of_task("dependencies")
    parent = of_task("dependents", _("waits for"))
    if_failed = models.SmallIntegerField(
        _("if it fails"), choices=IfFailed.choices, db_default=IfFailed.WAIT.value
    )
    state = models.SmallIntegerField(_("state"), choices=State.choices, db_default=State.NEW.value)

    class Meta:
        default_permissions = ()
        indexes = [
            models.Index(fields=["child", "id"], name="perfectqueue_dep_child"),
            models.Index(fields=["parent"], name="perfectqueue_dep_parent"),
        ]


@readable()
class DependencyEvent(models.Model):
    """
    Something about dependencies that was committed and has yet to be acted on.

    Rows are appended, and live for milliseconds: ADDED names a child with new dependencies,
    ENDED a parent that has ended. A batch is given by minus its id.
    """

    class Kind(models.IntegerChoices):
        ADDED = 0, _("added")
        ENDED = 1, _("ended")

    id = models.BigAutoField(primary_key=True)
    task_id = models.BigIntegerField(_("task"))
    kind = models.SmallIntegerField(_("kind"), choices=Kind.choices)

    class Meta:
        default_permissions = ()


# Submits that have yet to be merged.


@readable(wait=SPAN, at_most=SPAN)
class DebouncedSubmit(models.Model):
    """
    A submit of a debounced task that was committed and has yet to be merged into a run.

    Rows are appended, and live for milliseconds. ``wait`` and ``at_most`` are in seconds;
    ``terms`` are what was submitted, as JSON.
    """

    id = models.BigAutoField(primary_key=True)
    queue = ExactCharField(_("queue"), max_length=100)
    key = ExactCharField(_("key"), max_length=255)
    at = models.DateTimeField(_("submitted at"))
    wait = models.FloatField(_("wait"))
    at_most = models.FloatField(_("at most"), null=True)
    leading = models.BooleanField(_("leading"))
    terms = models.TextField(_("terms"))

    class Meta:
        default_permissions = ()
        indexes = [models.Index(fields=["queue", "key"], name="perfectqueue_debounced_key")]


# Tasks that failed or were cancelled, until a person decides.


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
    ended_at = models.DateTimeField(_("ended at"))

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
