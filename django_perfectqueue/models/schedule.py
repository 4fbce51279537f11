"""A schedule: what is submitted again and again, and when next."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from django_perfectqueue.lib.durations import LONGEST
from django_perfectqueue.lib.printable import printable
from django_perfectqueue.payload.codecs import JSON, LIMITS_LENGTH, decode

from .fields import SPAN, ExactCharField, in_order, optional_count, readable

NAME_LENGTH = 200
SPANS = ("time_limit", "expires_after", "delay", "jitter", "deadline")


# What is said of its tasks and has no column of its own, and what it is where nothing is said.
OPTIONS: dict[str, object] = {"tags": (), "sequence": "", "max_attempts": None, "backoff": None}


def option(name: str) -> property:
    """Return the attribute for one of these."""

    def put(row: Schedule, value: Any) -> None:
        others = {known: row.options[known] for known in row.options if known != name}
        row.options = {**others, name: value} if value else others

    return property(lambda row: row.options.get(name, OPTIONS[name]), put)


@readable(every=(0.001, LONGEST), **dict.fromkeys(SPANS, SPAN))
class Schedule(models.Model):
    """
    A task that is submitted at each tick of a cron expression or of an interval.

    ``next_at`` is the next tick, and ``due_at`` when it is to be submitted: after ``delay``
    and a part of ``jitter``, or once the task before has ended. It is empty while nothing is
    to come: the schedule is paused, has ended, is broken, or no longer declared in code. A tick's
    task has the key ``NAME@TICK``. All times are the server's, all spans are in seconds.

    ``context`` is JSON text: what its tasks take along of the surroundings of who stored it.
    ``options`` has the tags, the sequence and what is said of the attempts of its tasks.
    ``declared_in`` is a digest of the declaration in code that the row was last made from.
    ``pending`` has the ticks that wait for the task before to end. ``failures`` counts tasks
    in a row that failed, and ``counted`` says whether the last one is in it.
    """

    now: datetime  # set by queries

    class Origin(models.TextChoices):
        ROW = "row", _("made by a person or a program")
        CODE = "code", _("declared in code")
        GONE = "gone", _("no longer declared in code")

    class Overlap(models.TextChoices):
        SKIP = "skip", _("skip the tick")
        ALLOW = "allow", _("run both")
        QUEUE_ONE = "queue_one", _("let one tick wait")
        QUEUE = "queue", _("let all ticks wait")
        CANCEL = "cancel", _("cancel the previous task")

    last_status: str | None = None  # set by who lists

    name = ExactCharField(_("name"), max_length=NAME_LENGTH, unique=True)
    origin = models.CharField(
        _("origin"), max_length=4, choices=Origin.choices, default=Origin.ROW, editable=False
    )
    declared_in = models.CharField(
        _("digest of the declaration"), max_length=64, blank=True, default="", editable=False
    )

    queue = ExactCharField(_("queue"), max_length=100)
    type = ExactCharField(_("type"), max_length=255)
    payload = models.TextField(_("data"), db_column="data", default="null")
    user = ExactCharField(
        _("user"),
        max_length=255,
        blank=True,
        default="",
        help_text=_("The user of the tasks. They count against this user's fair share."),
    )
    priority = models.IntegerField(_("priority"), default=0)
    limits = models.CharField(
        _("limits"), max_length=LIMITS_LENGTH, blank=True, default="", help_text=_("With commas.")
    )
    time_limit = models.FloatField(_("time limit"), null=True, blank=True)
    expires_after = models.FloatField(
        _("expires after"),
        null=True,
        blank=True,
        help_text=_("In seconds: a task that has not started by then expires."),
    )

    context = models.TextField(_("context"), null=True, editable=False)  # noqa: DJ001
    options = models.JSONField(_("options of its tasks"), default=dict, editable=False)
    tags, sequence, max_attempts, backoff = map(option, OPTIONS)

    cron = models.CharField(_("cron"), max_length=200, blank=True, default="")
    every = models.FloatField(_("every"), null=True, blank=True, help_text=_("In seconds."))
    timezone = models.CharField(
        _("time zone"), max_length=64, blank=True, default="", help_text=_("Empty: TIME_ZONE.")
    )
    starts_at = models.DateTimeField(_("starts at"), null=True, blank=True)
    ends_at = models.DateTimeField(_("ends at"), null=True, blank=True)
    remaining = optional_count(
        _("remaining"), _("How many more tasks it submits. Empty: any number.")
    )
    delay = models.FloatField(
        _("delay"), default=0.0, help_text=_("How many seconds after its tick a task is submitted.")
    )
    jitter = models.FloatField(
        _("jitter"),
        default=0.0,
        help_text=_(
            "A random delay of at most this many seconds is added; it is fixed for each tick."
        ),
    )

    overlap = models.CharField(
        _("overlap"),
        max_length=9,
        choices=Overlap.choices,
        default=Overlap.SKIP,
        help_text=_("What to do with a tick while the previous task has not ended."),
    )
    catch_up = optional_count(
        _("catch up"),
        _("How many missed ticks are submitted besides the latest. Empty: all."),
        default=0,
    )
    deadline = models.FloatField(
        _("deadline"),
        null=True,
        blank=True,
        help_text=_(
            "A tick that is later than this many seconds is dropped. Empty: none is dropped."
        ),
    )
    pause_after = optional_count(
        _("pause after"),
        _("The schedule is paused after this many failed tasks in a row. Empty: never."),
    )

    paused = models.BooleanField(_("paused"), default=False)
    note = models.CharField(
        _("note"), max_length=255, blank=True, default="", help_text=_("Why it is paused.")
    )
    paused_by = models.CharField(_("paused by"), max_length=255, blank=True, default="")
    next_at = models.DateTimeField(_("next at"), null=True, editable=False)
    due_at = models.DateTimeField(_("due at"), null=True, editable=False)
    last_at = models.DateTimeField(_("last at"), null=True, editable=False)
    last_task_id = models.BigIntegerField(_("last task"), null=True, editable=False)
    pending = models.JSONField(_("pending ticks"), default=list, editable=False)
    fired = models.BigIntegerField(_("fired"), default=0, editable=False)
    skipped_overlap = models.BigIntegerField(_("skipped: overlap"), default=0, editable=False)
    skipped_late = models.BigIntegerField(_("skipped: late"), default=0, editable=False)
    failures = models.IntegerField(_("failures in a row"), default=0, editable=False)
    counted = models.BooleanField(_("last task counted"), default=True, editable=False)
    problem = models.CharField(_("problem"), max_length=255, blank=True, default="", editable=False)

    class Meta:
        verbose_name = _("schedule")
        verbose_name_plural = in_order(5, _("schedules"))
        indexes = [
            models.Index(fields=["due_at"], name="perfectqueue_schedule_due"),
            models.Index(fields=["origin"], name="perfectqueue_schedule_origin"),
            models.Index(fields=["user"], name="perfectqueue_schedule_user"),
        ]
        constraints = [
            models.CheckConstraint(
                condition=(Q(cron="") & Q(every__isnull=False))
                | (~Q(cron="") & Q(every__isnull=True)),
                name="perfectqueue_schedule_timing",
                violation_error_message=_("Give either a cron expression or an interval."),
            )
        ]

    def __str__(self) -> str:
        return printable(self.name)

    @property
    def surroundings(self) -> dict[str, JSON]:
        """What its tasks take along, beside its name and their ticks; may raise PayloadError."""
        return decode(self.context) if self.context else {}

    @property
    def state(self) -> str:
        """Return one word: gone, broken, paused, ended, or active."""
        if self.origin == self.Origin.GONE:
            return "gone"
        if self.problem:
            return "broken"
        if self.paused:
            return "paused"
        return "ended" if self.due_at is None else "active"
