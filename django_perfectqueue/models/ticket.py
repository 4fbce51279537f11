"""The narrow row of a task that has yet to end."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from .fields import (
    PartialIndex,
    ReadableDateTimeField,
    Undeletable,
    UndeletableQuerySet,
    readable,
)
from .status import PARKED_FROM, LastEnding, State
from .task import keyed_by_task


@readable()
class Ticket(Undeletable):
    """
    A task's place in line, from submit until it ends.

    ``lane`` is a hash of queue, user and limits. ``rank`` is minus the priority, so that
    the smallest goes first; of equals the one with the earliest ``run_at``, which is when
    it is due or, where that was said, expected to start. ``attempt`` counts acquires, and
    ``last_ending`` says how the last attempt ended that is over.
    ``holder`` names the processor that has the task. ``token`` is drawn anew for every acquire
    and fences every write of the one who made it. ``timer_at`` is when
    the clock has something to do here: the due time of a scheduled task, the end of the
    lease of a running one.
    ``charged`` is how many seconds the lane has been charged for a running task, null where
    that is only what was charged when it was taken.
    ``watched``: a program waits for its end, and is notified at once. ``followed``
    is null where nothing waits for its end; it is odd where other tasks do, and half of it,
    rounded down, is its batch.
    """

    task = keyed_by_task("ticket")
    lane = models.BigIntegerField(_("lane"))
    state = models.SmallIntegerField(_("state"), choices=State.choices)
    last_ending = models.SmallIntegerField(
        _("last ending"), choices=LastEnding.choices, db_default=LastEnding.NONE.value
    )
    rank = models.IntegerField(_("rank"), default=0)
    run_at = ReadableDateTimeField(_("run at"))
    timer_at = ReadableDateTimeField(_("timer at"), null=True)
    attempt = models.IntegerField(_("attempt"), default=0)
    errors = models.SmallIntegerField(_("errors"), default=0)
    crashes = models.SmallIntegerField(_("crashes"), default=0)
    holder = models.BigIntegerField(_("holder"), null=True)
    token = models.BigIntegerField(_("token"), null=True)
    cancel_requested = models.BooleanField(_("cancel requested"), default=False)
    charged = models.FloatField(_("charged"), null=True)
    watched = models.BooleanField(_("watched"), db_default=False)
    followed = models.BigIntegerField(_("followed"), null=True)

    objects = UndeletableQuerySet.as_manager()

    class Meta:
        default_permissions = ("view",)
        indexes = [
            PartialIndex(
                fields=["lane", "rank", "run_at", "task"],
                condition=Q(state=State.WAITING),
                whole=["state", "lane", "rank", "run_at", "task"],
                name="perfectqueue_ticket_line",
            ),
            models.Index(
                # The state and the task are there for lists of what runs or is scheduled.
                fields=["timer_at", "state", "task"],
                condition=Q(timer_at__isnull=False),
                name="perfectqueue_ticket_timer",
            ),
            models.Index(
                # The others find these by the index of the line, which begins with the state.
                fields=["lane", "task"],
                condition=Q(state=State.BLOCKED),
                name="perfectqueue_ticket_blocked",
            ),
        ]

    def __str__(self) -> str:
        return str(self.task_id)

    @property
    def is_parked(self) -> bool:
        """Whether it waits for a worker that knows its type."""
        far = self.timer_at is not None and self.timer_at > PARKED_FROM
        return far and self.timer_at != self.task.run_at
