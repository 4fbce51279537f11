"""Shares and limits, who changed them, and the rows of the fair order."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import Case, F, Q, Value, When
from django.db.models.functions import Abs, Cast, Right
from django.utils import timezone as clock
from django.utils.translation import gettext_lazy as _

from django_perfectqueue.lib.printable import printable
from django_perfectqueue.payload.codecs import LIMIT_LENGTH

from .fields import (
    AMOUNT,
    ExactCharField,
    JsonTextField,
    PartialIndex,
    PartlyIndexed,
    in_order,
    optional_count,
    readable,
)

WEIGHT = LEAST_WEIGHT, MOST_WEIGHT = 0.001, 1_000_000.0
WEIGHTS = [MinValueValidator(LEAST_WEIGHT), MaxValueValidator(MOST_WEIGHT)]

PERIOD = LEAST_PERIOD, MOST_PERIOD = 0.001, 31_622_400.0
COUNT = 1, 2**31 - 1

# In seconds: for how long a rate may have to wait for what it has let start at once.
MOST_BURST_TIME = 31_622_400.0

FAMILY = "*"

CHANGES_OF_ONE, CHANGES = 1_000, 100_000


class Pausable(models.Model):
    """
    What holds tasks back while it is ``paused``: up to ``paused_until``, or until someone
    unpauses it.

    ``note`` says why, and ``paused_by`` who did it.
    """

    paused = models.BooleanField(
        _("paused"), default=False, help_text=_("These tasks wait until the pause ends.")
    )
    paused_until = models.DateTimeField(
        _("paused until"), null=True, blank=True, help_text=_("Empty: until someone unpauses it.")
    )
    note = models.CharField(
        _("note"),
        max_length=255,
        blank=True,
        default="",
        db_default="",
        help_text=_("Why it is paused."),
    )
    paused_by = models.CharField(
        _("paused by"), max_length=255, blank=True, default="", db_default="", editable=False
    )

    class Meta:
        abstract = True


@readable(period=PERIOD, rate=COUNT, burst=COUNT)
class Limit(Pausable):
    """
    How many tasks may run at once, or start within a time: of all that list a name, or
    of all of a queue, a type or a user.

    ``rate`` tasks may start in each ``period`` of seconds, up to ``burst`` of them at once.
    One whose name ends in ``*`` is a family: it holds for each name that begins so, apart, but
    not for one with a row of its own or with a longer family. Where a worker has stored what code
    declares, ``declared_in`` is a digest of that, and ``declared_at`` when the worker started.
    """

    class Scope(models.TextChoices):
        NAME = "name", _("tasks that list this name")
        QUEUE = "queue", _("tasks of this queue")
        TYPE = "type", _("tasks of this type")
        USER = "user", _("tasks of this user")

    meter: Meter  # set by who lists
    members: Sequence[Meter] = ()
    clock: datetime  # set by queries

    scope = models.CharField(_("scope"), max_length=5, choices=Scope.choices, default=Scope.NAME)
    name = ExactCharField(_("name"), max_length=LIMIT_LENGTH)
    max_running = optional_count(
        _("max running"), _("How many of these tasks may run at once. Empty: any number. 0: none.")
    )
    rate = optional_count(
        _("rate"),
        _("How many of them may start in each period. Empty: any number."),
        validators=[MinValueValidator(1)],
    )
    period = models.FloatField(
        _("period"),
        default=1.0,
        validators=[MinValueValidator(LEAST_PERIOD), MaxValueValidator(MOST_PERIOD)],
        help_text=_("In seconds: 60 for a rate per minute."),
    )
    burst = optional_count(
        _("burst"),
        _("How many of them may start at once after a pause. Empty: as many as the rate."),
        validators=[MinValueValidator(1)],
    )
    declared_in = models.CharField(
        _("digest of the declaration"), max_length=64, blank=True, default="", editable=False
    )
    declared_at = models.DateTimeField(_("declared at"), null=True, editable=False)
    ending = models.GeneratedField(
        expression=Right("name", 1), output_field=models.CharField(max_length=1), db_persist=True
    )

    class Meta:
        verbose_name = _("limit")
        verbose_name_plural = in_order(2, _("limits"))
        constraints = [
            models.UniqueConstraint(fields=["scope", "name"], name="perfectqueue_limit_name"),
            models.CheckConstraint(
                condition=Q(rate__isnull=True)
                | Q(burst__isnull=True)
                | Q(burst__lte=F("rate") * MOST_BURST_TIME / F("period")),
                name="perfectqueue_limit_burst",
                violation_error_message=_(
                    "The burst is too large: at this rate it exceeds the starts of 366 days."
                ),
            ),
        ]
        indexes = [models.Index(fields=["ending", "scope"], name="perfectqueue_limit_family")]

    def __str__(self) -> str:
        return self.key

    @property
    def key(self) -> str:
        """What lanes, holds and meters know it by; those of a family's names by their own."""
        return f"{self.scope}:{self.name}"

    @property
    def is_family(self) -> bool:
        return self.name.endswith(FAMILY)


@readable()
class Meter(models.Model):
    """
    What a limit counts: how many tasks run behind it, and when its rate lets the next
    one start that comes evenly.
    """

    key = ExactCharField(_("limit"), max_length=LIMIT_LENGTH + 6, primary_key=True)
    running = models.IntegerField(_("running"), default=0)
    next_at = models.DateTimeField(_("next at"), null=True)

    class Meta:
        default_permissions = ()


@readable(weight=WEIGHT)
class FairShare(Pausable):
    """
    What a user is entitled to: of one queue, or where ``queue`` is empty of each.

    The share of the user ``*`` is that of all who have none of their own. Of two users who
    compete, the one with twice the ``weight`` gets twice the processor time. ``max_running``
    caps how many of its tasks run at once; 0 means none.
    """

    user = ExactCharField(
        _("user"),
        max_length=255,
        blank=True,
        default="",
        help_text=_(
            "For whom the tasks run. Empty: the tasks without a user. *: all who have no share "
            "of their own."
        ),
    )
    queue = ExactCharField(
        _("queue"), max_length=100, blank=True, default="", help_text=_("Empty: every queue.")
    )
    weight = models.FloatField(
        _("weight"),
        default=1.0,
        validators=WEIGHTS,
        help_text=_("Twice the weight gets twice the processor time while users compete."),
    )
    max_running = optional_count(
        _("max running"), _("How many of its tasks may run at once. Empty: any number. 0: none.")
    )

    class Meta:
        verbose_name = _("fair share")
        verbose_name_plural = in_order(3, _("users"))
        constraints = [
            models.UniqueConstraint(fields=["user", "queue"], name="perfectqueue_share_user")
        ]
        indexes = [
            models.Index(fields=["paused", "user", "queue"], name="perfectqueue_share_paused")
        ]

    def __str__(self) -> str:
        return printable(f"{self.user or '-'} ({self.queue or _('every queue')})")


@readable(weight=WEIGHT)
class QueueShare(models.Model):
    """
    What a queue is entitled to of the time of processors that serve several.

    Of two queues that compete, the one with twice the ``weight`` gets twice the time. A
    queue without a row has the weight 1.
    """

    queue = ExactCharField(_("queue"), max_length=100, unique=True)
    weight = models.FloatField(
        _("weight"),
        default=1.0,
        validators=WEIGHTS,
        help_text=_("Twice the weight gets twice the processor time while queues compete."),
    )

    class Meta:
        verbose_name = _("share of a queue")
        verbose_name_plural = in_order(4, _("queues"))

    def __str__(self) -> str:
        return self.queue


@readable()
class Change(models.Model):
    """
    One change of a fair share, of the share of a queue, of a limit or of a task: when, by
    whom, and what it was before and after.

    ``before`` is empty for one that was added, ``after`` for one that was taken away. Of a
    task, whose key is the ``name``, ``after`` has the word for what a person did. A release of the
    site has one when a worker of it is first seen, and when it is back after another. The
    last CHANGES_OF_ONE of each are kept, and of all together the last CHANGES.
    """

    class Kind(models.TextChoices):
        SHARE = "share", _("fair share")
        QUEUE = "queue", _("share of a queue")
        LIMIT = "limit", _("limit")
        TASK = "task", _("task")
        SCHEDULE = "sched", _("schedule")
        RELEASE = "code", _("release")

    at = models.DateTimeField(_("at"))
    by = models.CharField(_("by"), max_length=255, blank=True, default="")
    kind = models.CharField(_("kind"), max_length=5, choices=Kind.choices)
    name = ExactCharField(_("name"), max_length=261, blank=True, default="")
    queue = ExactCharField(_("queue"), max_length=100, blank=True, default="")
    before = models.JSONField(_("before"), null=True)
    after = models.JSONField(_("after"), null=True)

    class Meta:
        verbose_name = _("change")
        verbose_name_plural = _("audit log")
        default_permissions = ("view",)
        indexes = [
            models.Index(fields=["kind", "name", "queue", "id"], name="perfectqueue_change_of")
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


# The rows of the fair order.


class Policy(models.IntegerChoices):
    """By which rule a lane's turn comes: see ``UserLanes.key()``."""

    FAIR = 0, _("fair")
    SLOTS = 1, _("slots")


READY = (
    Q(paused=False)
    & (Q(has_waiting=True) | Q(has_open=True))
    & (Q(max_running__isnull=True) | Q(running__lt=F("max_running")))
)


@readable(
    virtual_time=(-1e15, 1e15),
    cost=(-1e10, 1e10),
    weight=WEIGHT,
    advance=(0.0, 1e15),
    finish_tag=(0.0, 1e15),
)
class Account(PartlyIndexed):
    """
    What one user has had in one queue, and its turn. Its id is the hash of both.

    ``virtual_time`` is the processor time that the user has been charged, divided by its
    weight; ``turn`` adds the expected ``cost`` of its next task, which is negative where
    none was measured yet. The account with the smallest turn is served next; of equals the one
    that waits the longest, ``since`` its first task was due or it was last served, or where
    it sleeps since it was found empty.
    ``advance`` is how many seconds its running tasks were charged when they were taken.
    ``finish_tag`` is the virtual time to which the task that ended last has brought it, by
    what was expected: the largest is the clock of the queue.

    Its tasks without limits stand in the plain lane, which has the account's id and no row;
    ``has_waiting`` says that there may be some. Those that keep to limits stand in lanes of
    their own, and ``has_open`` says that one of these may have some, and no limit holds it
    back. ``ready`` says that one task may be taken now. Where it may not, ``turn`` is the virtual
    time in whole milliseconds, so that most charges change no index.
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
    advance = models.FloatField(_("charged in advance"), db_default=0.0)
    has_waiting = models.BooleanField(_("has waiting tasks"), default=True)
    has_open = models.BooleanField(_("has tasks behind open limits"), db_default=False)
    since = models.DateTimeField(_("since"), default=clock.now)
    finish_tag = models.FloatField(_("finish tag"), db_default=0.0)
    policy = models.SmallIntegerField(_("policy"), choices=Policy.choices, default=Policy.FAIR)
    turn = models.GeneratedField(
        expression=Case(
            When(~READY, then=Cast(F("virtual_time") * Value(1000.0), models.BigIntegerField())),
            When(policy=Policy.SLOTS, then=(F("running") + Value(1.0)) / F("weight")),
            default=F("virtual_time") + Abs(F("cost")) / F("weight"),
            output_field=models.FloatField(),
        ),
        output_field=models.FloatField(),
        db_persist=True,
    )
    ready = models.GeneratedField(
        expression=READY,  # type: ignore[arg-type]
        output_field=models.BooleanField(),
        db_persist=True,
    )

    class Meta:
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
    since = models.DateTimeField(_("since"), default=clock.now)
    finish_tag = models.FloatField(_("finish tag"), db_default=0.0)

    class Meta:
        default_permissions = ()
        indexes = [
            models.Index(
                fields=["account", "held_by", "has_waiting", "since"],
                name="perfectqueue_lane_account",
            ),
            PartialIndex(
                fields=["held_by", "turn", "since"],
                condition=~Q(held_by=0),
                on=["postgresql"],
                name="perfectqueue_lane_held",
            ),
            PartialIndex(
                fields=["gate", "finish_tag"],
                condition=Q(finish_tag__gt=0),
                name="perfectqueue_lane_clock",
            ),
        ]


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
    opens_at = models.DateTimeField(_("opens at"), null=True)

    class Meta:
        default_permissions = ()
        indexes = [
            models.Index(fields=["queue", "opens_at"], name="perfectqueue_hold_opens"),
            models.Index(fields=["key"], name="perfectqueue_hold_key"),
        ]
