"""Which tasks wait for which, and what has yet to be done about it."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from .fields import readable
from .task import of_task

LAST_WHEN = 5
"""The last of what a callback of a batch waits for, which stands in ``if_failed``, too."""


class IfFailed(models.IntegerChoices):
    """What becomes of a task when one that it waits for has ended without finishing."""

    WAIT = 0, _("wait")
    CANCEL = 1, _("cancel")
    RUN = 2, _("run")


@readable(if_failed=(IfFailed.WAIT.value, LAST_WHEN))
class Dependency(models.Model):
    """
    ``child`` waits for ``parent``.

    A dependency is NEW until the parent's ticket is marked as followed, and then AWAITED. It is
    FAILED when the parent has ended without finishing and ``if_failed`` is not RUN, and MET
    when the child no longer waits for it.
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
        default_permissions = ("view",)
        indexes = [
            models.Index(fields=["child", "id"], name="perfectqueue_dep_child"),
            models.Index(fields=["parent"], name="perfectqueue_dep_parent"),
        ]

    def __str__(self) -> str:
        return f"{self.child_id} > {self.parent_id}"


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

    def __str__(self) -> str:
        return f"{self.task_id}: {self.get_kind_display()}"
