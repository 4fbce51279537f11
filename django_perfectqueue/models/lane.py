"""The rows of the fair order."""

from __future__ import annotations

from django.db import models
from django.db.models import Case, F, Q, Value, When
from django.db.models.functions import Abs
from django.utils import timezone as clock
from django.utils.translation import gettext_lazy as _

from django_perfectqueue.lib.printable import printable
from django_perfectqueue.payload.names import LIMIT_LENGTH

from .fields import (
    AMOUNT,
    ExactCharField,
    JsonTextField,
    PartialIndex,
    PartlyIndexed,
    ReadableDateTimeField,
    readable,
)
from .rule import WEIGHT


class Policy(models.IntegerChoices):
    """By which rule a lane's turn comes: see ``UserLanes.key()``."""

    FAIR = 0, _("fair")
    SLOTS = 1, _("slots")


@readable(virtual_time=(-1e15, 1e15), cost=(-1e10, 1e10), weight=WEIGHT, finish_tag=(0.0, 1e15))
class Account(PartlyIndexed):
    """
    What one user has had in one queue, and its turn. Its id is the hash of both.

    ``virtual_time`` is the processor time that the user has been charged, divided by its
    weight; ``turn`` adds the expected ``cost`` of its next task, which is negative where
    none was measured yet. The account with the smallest turn is served next; of equals the one
    that waits the longest, ``since`` its first task was due or it was last served, or where
    it sleeps since it was found empty.
    ``finish_tag`` is the virtual time to which the task that ended last has brought it, by
    what was expected: the largest is the clock of the queue.

    Its tasks without limits stand in the plain lane, which has the account's id and no row;
    ``has_waiting`` says that there may be some. Those that keep to limits stand in lanes of
    their own, and ``has_open`` says that one of these may have some, and no limit holds it
    back. ``ready`` says that one task may be taken now.
    """

    id = models.BigIntegerField(primary_key=True)
    queue = ExactCharField(_("queue"), max_length=100)
    user = ExactCharField(_("user"), max_length=255, blank=True, default="")
    virtual_time = models.FloatField(_("virtual time"), default=0.0)
    cost = models.FloatField(_("expected cost"), default=-0.002)
    weight = models.FloatField(_("weight"), default=1.0)
    max_running = models.IntegerField(_("max running"), null=True, blank=True)
    paused = models.BooleanField(_("paused"), default=False)
    running = models.IntegerField(_("running"), default=0)
    has_waiting = models.BooleanField(_("has waiting tasks"), default=True)
    has_open = models.BooleanField(_("has tasks behind open limits"), db_default=False)
    since = ReadableDateTimeField(_("since"), default=clock.now)
    finish_tag = models.FloatField(_("finish tag"), db_default=0.0)
    policy = models.SmallIntegerField(_("policy"), choices=Policy.choices, default=Policy.FAIR)
    turn = models.GeneratedField(
        expression=Case(
            When(policy=Policy.SLOTS, then=(F("running") + Value(1.0)) / F("weight")),
            default=F("virtual_time") + Abs(F("cost")) / F("weight"),
        ),
        output_field=models.FloatField(),
        db_persist=True,
    )
    ready = models.GeneratedField(
        expression=Q(paused=False)  # type: ignore[arg-type]
        & (Q(has_waiting=True) | Q(has_open=True))
        & (Q(max_running__isnull=True) | Q(running__lt=F("max_running"))),
        output_field=models.BooleanField(),
        db_persist=True,
    )

    class Meta:
        verbose_name = "account"
        verbose_name_plural = "accounts"
        default_permissions = ()
        indexes = [
            models.Index(
                fields=["queue", "-ready", "turn", "since"], name="perfectqueue_account_turn"
            ),
            PartialIndex(
                fields=["queue", "finish_tag"],
                condition=Q(finish_tag__gt=0),
                name="perfectqueue_account_clock",
            ),
        ]

    def __str__(self) -> str:
        return printable(f"{self.queue}/{self.user}")


@readable(turn=AMOUNT, finish_tag=(0.0, 1e15))
class Lane(PartlyIndexed):
    """
    The line of one user's tasks that keep to one set of limits.

    Its id is the hash of queue, user and ``keys``, which are the limits' keys in order, as
    JSON; ``gate`` is the hash of queue and keys. Its tasks are charged to the ``account``.
    ``held_by`` is the id of the Hold of the limit that lets none of its tasks start now, 0
    for none. Held lanes are not read by who looks for tasks, until the limit opens; they wait
    there by ``turn`` and ``since``, which are the account's as they were when it was last
    looked at, and its turn is later at most. ``finish_tag`` is as that of the account, by the
    tasks of this lane: the largest is the clock of the gate.
    """

    id = models.BigIntegerField(primary_key=True)
    account = models.BigIntegerField(_("account"))
    keys = JsonTextField(_("limits"))
    gate = models.BigIntegerField(_("gate"))
    held_by = models.BigIntegerField(_("held back by"), db_default=0)
    has_waiting = models.BooleanField(_("has waiting tasks"), default=True)
    turn = models.FloatField(_("turn"), db_default=0.0)
    since = ReadableDateTimeField(_("since"), default=clock.now)
    finish_tag = models.FloatField(_("finish tag"), db_default=0.0)

    class Meta:
        verbose_name = "lane"
        verbose_name_plural = "lanes"
        default_permissions = ()
        indexes = [
            models.Index(fields=["account", "held_by"], name="perfectqueue_lane_account"),
            PartialIndex(
                fields=["held_by", "turn", "since"],
                condition=~Q(held_by=0),
                on=["postgresql"],
                whole=["held_by", "turn", "since"],
                name="perfectqueue_lane_held",
            ),
            PartialIndex(
                fields=["gate", "finish_tag"],
                condition=Q(finish_tag__gt=0),
                on=["postgresql", "sqlite"],
                whole=["gate", "finish_tag"],
                name="perfectqueue_lane_clock",
            ),
        ]

    def __str__(self) -> str:
        return printable(self.keys)


@readable()
class Hold(models.Model):
    """
    A limit that holds back lanes of a queue. Its id is the hash of queue and key.

    At ``opens_at`` an acquire looks at the lanes again: at once where a task has ended, or
    when the rate lets the next one start. Empty: only the end of a task opens it.
    """

    id = models.BigIntegerField(primary_key=True)
    queue = ExactCharField(_("queue"), max_length=100)
    key = ExactCharField(_("limit"), max_length=LIMIT_LENGTH + 6)
    opens_at = ReadableDateTimeField(_("opens at"), null=True)

    class Meta:
        default_permissions = ("view",)
        indexes = [
            models.Index(fields=["queue", "opens_at"], name="perfectqueue_hold_opens"),
            models.Index(fields=["key"], name="perfectqueue_hold_key"),
        ]

    def __str__(self) -> str:
        return printable(f"{self.queue}: {self.key}")
