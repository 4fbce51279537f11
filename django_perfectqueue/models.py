"""
The rows.

A task is two rows. ``Task`` is wide and written twice: at submit, and when it ends.
``Ticket`` is narrow, exists only while the task has yet to end, and carries all that
changes on the way. Neither has an index on a column that the other phase writes.
"""

from __future__ import annotations

import base64
import gzip
import json
import sys
import zlib
from datetime import datetime
from typing import Any

from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import Case, Count, F, OuterRef, Q, Subquery, Value, When
from django.db.models.functions import Coalesce
from django.utils.translation import gettext_lazy as _

from .exceptions import PayloadError
from .fields import ExactCharField, ServerNow
from .indexes import PartialIndex

LAST_CHARACTER = chr(sys.maxunicode)


GZIP = "gzip:"


class Outcome(models.TextChoices):
    """How a task ended."""

    FINISHED = "finished", _("finished")
    FAILED = "failed", _("failed")
    CANCELLED = "cancelled", _("cancelled")
    EXPIRED = "expired", _("expired")


class Status(models.TextChoices):
    """Where a task stands: one word, the same in queries, commands and API."""

    WAITING = "waiting", _("waiting")
    SCHEDULED = "scheduled", _("scheduled")
    RETRYING = "retrying", _("retrying")
    BLOCKED = "blocked", _("blocked")
    RUNNING = "running", _("running")
    STALLED = "stalled", _("stalled")
    FINISHED = Outcome.FINISHED.value, _("finished")
    FAILED = Outcome.FAILED.value, _("failed")
    CANCELLED = Outcome.CANCELLED.value, _("cancelled")
    EXPIRED = Outcome.EXPIRED.value, _("expired")


DEAD = tuple(outcome for outcome in Outcome if outcome != Outcome.FINISHED)
LIVE = tuple(status for status in Status if status.value not in Outcome.values)


class State(models.IntegerChoices):
    """What a ticket waits for."""

    WAITING = 0, _("a processor")
    SCHEDULED = 1, _("its time")
    RUNNING = 2, _("its handler")
    BLOCKED = 3, _("other tasks")


def condition(status: str, now: datetime | None = None) -> Q:
    """Return the condition that holds for the tasks with this status."""
    word = Status(status)
    if word in LIVE:
        return live_conditions(now, to="ticket__")[word]
    if word == Status.FINISHED:
        return Q(outcome=Outcome.FINISHED)
    return Q(dead_letter__status=word)


def id_for(status: str | None) -> str:
    """
    Return the column of task ids by which to list what has this status.

    That of the small table which tells the status, lest a database sort all that have it.
    """
    if status in (Status.SCHEDULED, Status.RETRYING, Status.RUNNING):
        return "ticket__task_id"
    return "dead_letter__task_id" if status in DEAD else "id"


def live_conditions(now: datetime | None = None, *, to: str = "") -> dict[Status, Q]:
    """Return what holds for the tickets of each live status; ``to`` leads to the ticket."""

    def ticket(**columns: Any) -> Q:
        return Q(**{f"{to}{column}": value for column, value in columns.items()})

    clock = ServerNow() if now is None else Value(now)
    due, later = ticket(alarm_at__lte=clock), ticket(alarm_at__gt=clock)
    scheduled, running = ticket(state=State.SCHEDULED), ticket(state=State.RUNNING)
    retried = ticket(errors__gt=0) | ticket(crashes__gt=0)
    return {
        Status.WAITING: ticket(state=State.WAITING) | (scheduled & due),
        Status.SCHEDULED: scheduled & later & ~retried,
        Status.RETRYING: scheduled & later & retried,
        Status.BLOCKED: ticket(state=State.BLOCKED),
        Status.RUNNING: running & later,
        Status.STALLED: running & due,
    }


class TaskQuerySet(models.QuerySet["Task"]):
    def with_status(self, now: datetime | None = None) -> TaskQuerySet:
        """Add ``status``: the outcome, or else what the ticket says."""
        live = [
            When(holds, then=Value(word.value))
            for word, holds in live_conditions(now, to="ticket__").items()
        ]
        return self.annotate(  # type: ignore[no-redef]
            status=Case(
                When(~Q(outcome=""), then=F("outcome")),
                *live,
                default=Value(Status.WAITING.value),
                output_field=models.CharField(),
            )
        )

    def with_tries(self) -> TaskQuerySet:
        """Add ``tries``: the attempts that count, the one that is running among them."""
        rows = Attempt.objects.filter(task_id=OuterRef("pk")).order_by().values("task_id")
        counted = Subquery(rows.annotate(count=Count("pk")).values("count"))
        finished = Q(outcome=Outcome.FINISHED, started_at__isnull=False)
        one_more = Case(
            When(finished | Q(ticket__state=State.RUNNING), then=1),
            default=0,
            output_field=models.IntegerField(),
        )
        return self.annotate(
            tries=Coalesce(counted, 0, output_field=models.IntegerField()) + one_more
        )

    def in_status(self, status: str, now: datetime | None = None) -> TaskQuerySet:
        """
        Keep the tasks with this status, found by an index and not by the word.

        Raise ValueError when there is no such status.
        """
        return self.filter(condition(status, now))

    def key_begins(self, start: str) -> TaskQuerySet:
        """Keep the tasks whose key is this or begins so, as the index of keys finds them."""
        return self.filter(key__gte=start, key__lt=start + LAST_CHARACTER)

    def live(self) -> TaskQuerySet:
        """Keep the tasks that have not ended."""
        return self.filter(ticket__isnull=False)


class TaskManager(models.Manager.from_queryset(TaskQuerySet)):  # type: ignore[misc]
    def get_queryset(self) -> TaskQuerySet:
        return super().get_queryset().with_status()  # type: ignore[no-any-return]


class Task(models.Model):
    """
    One submission, kept from submit until retention has passed.

    ``key`` names it in its queue, and refuses a second submission as long as the row
    is there. ``user`` is for whom it runs. ``payload`` and ``result`` are JSON text.
    ``outcome`` stays empty until the task has ended; ``attempt`` is how often it had
    been acquired by then. ``run_at`` is when the submitter wanted it to start.
    """

    id = models.BigAutoField(primary_key=True)
    queue = ExactCharField(_("queue"), max_length=100)
    key = ExactCharField(_("key"), max_length=255)
    type = ExactCharField(_("type"), max_length=255)
    user = ExactCharField(_("user"), max_length=255, blank=True, default="")
    payload = models.TextField(_("data"), db_column="data")
    priority = models.IntegerField(_("priority"), default=0)
    created_at = models.DateTimeField(_("created at"))
    run_at = models.DateTimeField(_("run at"))
    expires_at = models.DateTimeField(_("expires at"), null=True, blank=True)

    outcome = models.CharField(
        _("outcome"), max_length=9, choices=Outcome.choices, blank=True, default=""
    )
    attempt = models.IntegerField(_("attempt"), default=0)
    worker = models.CharField(_("worker"), max_length=255, blank=True, default="")
    started_at = models.DateTimeField(_("started at"), null=True, blank=True)
    ended_at = models.DateTimeField(_("ended at"), null=True, blank=True)
    result_text = models.TextField(_("result"), db_column="result", null=True, blank=True)  # noqa: DJ001

    objects = TaskManager()

    status: str
    ticket: Ticket
    dead_letter: DeadLetter

    class Meta:
        verbose_name = _("task")
        verbose_name_plural = _("tasks")
        base_manager_name = "objects"
        default_permissions = ("view",)
        permissions = [
            ("force_finish_task", "Can force finish task"),
            ("cancel_task", "Can request cancel of task"),
            ("retry_task", "Can retry task"),
        ]
        constraints = [
            models.UniqueConstraint(fields=["queue", "key"], name="perfectqueue_task_key"),
        ]
        indexes = [
            PartialIndex(
                fields=["user", "id"],
                condition=~Q(user=""),
                on=["postgresql"],
                whole=["user", "id"],
                name="perfectqueue_task_user",
            ),
        ]

    def __str__(self) -> str:
        return self.key

    @classmethod
    def check(cls, **kwargs: Any) -> list[Any]:
        return without_partial_indexes(super().check(**kwargs))

    @property
    def data(self) -> Any:
        """
        What was submitted.

        Raise PayloadError when the stored text is not JSON.
        """
        return decode(self.payload)

    @property
    def result(self) -> Any:
        """What the handler returned, or None."""
        return None if self.result_text is None else decode(self.result_text)


def decode(text: str) -> Any:
    """
    Return what a stored text means, compressed or not.

    Raise PayloadError when it can't be read.
    """
    try:
        return json.loads(unpacked(text))
    except (ValueError, OSError, EOFError, zlib.error) as error:
        raise PayloadError(f"The stored text is not JSON: {error}.") from error


def packed(text: str) -> str:
    """Return JSON text as gzip in base64, unless that would be longer."""
    short = base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()
    return GZIP + short if len(GZIP) + len(short) < len(text) else text


def unpacked(text: str) -> str:
    if not text.startswith(GZIP):
        return text
    return gzip.decompress(base64.b64decode(text[len(GZIP) :], validate=True)).decode()


def without_partial_indexes(found: list[Any]) -> list[Any]:
    """Leave out W037: a database without partial indexes gets the whole ones, as intended."""
    return [one for one in found if one.id != "models.W037"]


class Ticket(models.Model):
    """
    A task's place in line, from submit until it ends.

    ``lane`` is a hash of queue and user. ``rank`` is minus the priority, so that the
    smallest goes first. ``attempt`` counts acquires and, with ``holder``, fences every
    write of the one who holds the task. ``alarm_at`` is when the clock has something to
    do here: the due time of a scheduled task, the end of the lease of a running one, and
    on a waiting one a mark that its lane may be asleep.
    """

    task = models.OneToOneField(
        Task,
        models.DO_NOTHING,
        primary_key=True,
        db_constraint=False,
        related_name="ticket",
        verbose_name=_("task"),
    )
    lane = models.BigIntegerField(_("lane"))
    state = models.SmallIntegerField(_("state"), choices=State.choices)
    rank = models.IntegerField(_("rank"), default=0)
    run_at = models.DateTimeField(_("run at"))
    alarm_at = models.DateTimeField(_("alarm at"), null=True)
    attempt = models.IntegerField(_("attempt"), default=0)
    errors = models.SmallIntegerField(_("errors"), default=0)
    crashes = models.SmallIntegerField(_("crashes"), default=0)
    holder = models.BigIntegerField(_("holder"), null=True)
    cancel_requested = models.BooleanField(_("cancel requested"), default=False)

    class Meta:
        verbose_name = _("ticket")
        verbose_name_plural = _("tickets")
        default_permissions = ("view",)
        indexes = [
            PartialIndex(
                fields=["lane", "rank", "run_at", "task"],
                condition=Q(state=State.WAITING),
                on=["postgresql", "sqlite"],
                whole=["state", "lane", "rank", "run_at", "task"],
                name="perfectqueue_ticket_line",
            ),
            models.Index(
                fields=["alarm_at"],
                condition=Q(alarm_at__isnull=False),
                name="perfectqueue_ticket_alarm",
            ),
        ]

    def __str__(self) -> str:
        return str(self.task_id)

    @classmethod
    def check(cls, **kwargs: Any) -> list[Any]:
        return without_partial_indexes(super().check(**kwargs))


class Attempt(models.Model):
    """
    One attempt that did not finish its task.

    The attempt that finishes it is told by the task's own row.
    """

    class Ending(models.TextChoices):
        RETRIED = "retried", _("retried")
        FAILED = "failed", _("failed")
        CANCELLED = "cancelled", _("cancelled")
        LOST = "lost", _("lost")

    task = models.ForeignKey(
        Task,
        models.DO_NOTHING,
        db_constraint=False,
        related_name="attempts",
        verbose_name=_("task"),
    )
    number = models.IntegerField(_("number"))
    ending = models.CharField(_("ending"), max_length=9, choices=Ending.choices)
    worker = models.CharField(_("worker"), max_length=255, blank=True, default="")
    started_at = models.DateTimeField(_("started at"), null=True)
    ended_at = models.DateTimeField(_("ended at"))
    error = models.CharField(_("error"), max_length=255, blank=True, default="")
    message = models.TextField(_("message"), blank=True, default="")
    traceback = models.TextField(_("traceback"), blank=True, default="")

    class Meta:
        verbose_name = _("attempt")
        verbose_name_plural = _("attempts")
        default_permissions = ("view",)
        ordering = ["task_id", "id"]

    def __str__(self) -> str:
        return f"{self.task_id}#{self.number}"


class DeadLetter(models.Model):
    """
    A task that ended without finishing: failed, cancelled or expired.

    Such tasks are few and are looked for; so they have a row of their own, and the wide
    table needs no index on how tasks ended. ``group`` is the error's class or the reason.
    """

    task = models.OneToOneField(
        Task,
        models.DO_NOTHING,
        primary_key=True,
        db_constraint=False,
        related_name="dead_letter",
        verbose_name=_("task"),
    )
    status = models.CharField(_("status"), max_length=9, choices=Outcome.choices)
    group = ExactCharField(_("group"), max_length=255, blank=True, default="")
    message = models.TextField(_("message"), blank=True, default="")
    errors = models.SmallIntegerField(_("errors"), default=0)
    crashes = models.SmallIntegerField(_("crashes"), default=0)
    ended_at = models.DateTimeField(_("ended at"))

    class Meta:
        verbose_name = _("dead letter")
        verbose_name_plural = _("dead letters")
        default_permissions = ("view",)
        indexes = [
            models.Index(fields=["status", "task"], name="perfectqueue_dead_status"),
            models.Index(fields=["group", "task"], name="perfectqueue_dead_group"),
        ]

    def __str__(self) -> str:
        return f"{self.task_id}: {self.status}"


class Lane(models.Model):
    """
    One user's line in one queue, and its account.

    ``virtual_time`` is the processor time that the user has been charged, divided by its
    weight; ``turn`` adds the expected ``cost`` of its next task, and the lane with the
    smallest turn is served next. ``awake`` says that it has waiting tickets, and ``open``
    that one of them may be taken now.
    """

    id = models.BigIntegerField(primary_key=True)
    queue = ExactCharField(_("queue"), max_length=100)
    user = ExactCharField(_("user"), max_length=255, blank=True, default="")
    virtual_time = models.FloatField(_("virtual time"), default=0.0)
    cost = models.FloatField(_("expected cost"), default=0.002)
    weight = models.FloatField(_("weight"), default=1.0)
    max_running = models.IntegerField(_("max running"), null=True, blank=True)
    paused = models.BooleanField(_("paused"), default=False)
    running = models.IntegerField(_("running"), default=0)
    awake = models.BooleanField(_("awake"), default=True)
    turn = models.GeneratedField(
        expression=F("virtual_time") + F("cost") / F("weight"),
        output_field=models.FloatField(),
        db_persist=True,
    )
    open = models.GeneratedField(
        expression=Q(awake=True, paused=False)  # type: ignore[arg-type]
        & (Q(max_running__isnull=True) | Q(running__lt=F("max_running"))),
        output_field=models.BooleanField(),
        db_persist=True,
    )

    class Meta:
        verbose_name = _("lane")
        verbose_name_plural = _("lanes")
        default_permissions = ("view",)
        indexes = [
            models.Index(fields=["queue", "-open", "turn"], name="perfectqueue_lane_turn"),
        ]

    def __str__(self) -> str:
        return f"{self.queue}/{self.user}"


LEAST_WEIGHT, MOST_WEIGHT = 0.001, 1_000_000.0


class FairShare(models.Model):
    """
    What a user is entitled to: of one queue, or where ``queue`` is empty of each.

    Of two users who compete, the one with twice the ``weight`` gets twice the processor
    time. ``max_running`` caps how many of its tasks run at once; 0 means none.
    """

    user = ExactCharField(
        _("user"),
        max_length=255,
        blank=True,
        default="",
        help_text=_("For whom the tasks run. Empty: the tasks without a user."),
    )
    queue = ExactCharField(
        _("queue"), max_length=100, blank=True, default="", help_text=_("Empty: every queue.")
    )
    weight = models.FloatField(
        _("weight"),
        default=1.0,
        validators=[MinValueValidator(LEAST_WEIGHT), MaxValueValidator(MOST_WEIGHT)],
        help_text=_("Twice the weight gets twice the processor time while users compete."),
    )
    max_running = models.PositiveIntegerField(
        _("max running"),
        null=True,
        blank=True,
        help_text=_("How many of its tasks may run at once. Empty: any number. 0: none."),
    )
    paused = models.BooleanField(
        _("paused"), default=False, help_text=_("Its tasks wait until this is taken back.")
    )

    class Meta:
        verbose_name = _("fair share")
        verbose_name_plural = _("fair shares")
        constraints = [
            models.UniqueConstraint(fields=["user", "queue"], name="perfectqueue_share_user"),
            models.CheckConstraint(
                condition=Q(weight__gte=LEAST_WEIGHT, weight__lte=MOST_WEIGHT),
                name="perfectqueue_share_weight",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.user or '-'} ({self.queue or '*'})"
