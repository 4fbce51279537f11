"""
The rows.

A task is two rows. ``Task`` is wide and written twice: at submit, and when it ends.
``Ticket`` is narrow, exists only while the task has yet to end, and carries all that
changes on the way. Neither has an index on a column that the other phase writes.
"""

from __future__ import annotations

import json
import sys
from datetime import datetime, timedelta, timezone
from typing import Any, NoReturn, TypeVar

from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import Case, Count, F, OuterRef, Q, Subquery, Sum, Value, When
from django.db.models.functions import Abs, Coalesce
from django.utils import timezone as clock
from django.utils.translation import gettext_lazy as _

from .codecs import decode
from .fields import ExactCharField, ReadableDateTimeField, ServerNow
from .indexes import PartialIndex
from .notes import Line, read
from .texts import printable

LAST_CHARACTER = chr(sys.maxunicode)
EVERYONE = "*"
LEAST_WEIGHT, MOST_WEIGHT = 0.001, 1_000_000.0
LEAST_PERIOD, MOST_PERIOD = 0.001, 31_622_400.0
MOST_BURST_TIME = 31_622_400.0
"""In seconds: for how long a rate may have to wait for what it has let start at once."""

CHANGES_OF_ONE, CHANGES = 1_000, 100_000

LIMITS_LENGTH = 500
LIMIT_LENGTH = 249
UNSEEN = timedelta(seconds=30)
WAIT_BUCKETS = 28

UNDELETABLE = (
    "Tasks, tickets and dead letters can't be deleted so, as it would leave behind what belongs"
    " to them: use the command pq_purge, Queue.purge() or Queue.clear()."
)


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


PARKED_FROM = datetime(9000, 1, 1, tzinfo=timezone.utc)
"""
From when on an alarm may be no time, but tell that a ticket is parked: see ``store/park.py``.
"""


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


M = TypeVar("M", bound=models.Model)


class KeptQuerySet(models.QuerySet[M]):
    """Rows of which one task has several, so that only the store may delete them."""

    def delete(self) -> NoReturn:
        """Refuse: that would leave behind what belongs to them, and their lanes' accounts."""
        raise TypeError(UNDELETABLE)

    delete.queryset_only = True  # type: ignore[attr-defined]


class Kept(models.Model):
    class Meta:
        abstract = True

    def delete(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError(UNDELETABLE)


class TaskQuerySet(KeptQuerySet["Task"]):
    def with_status(self, now: datetime | None = None) -> TaskQuerySet:
        """Add ``status``: the outcome, or else what the ticket says."""
        live = [
            When(holds, then=Value(word.value))
            for word, holds in live_conditions(now, to="ticket__").items()
        ]
        return self.annotate(  # type: ignore[no-redef]
            status=Case(
                When(outcome__in=Outcome.values, then=F("outcome")),
                *live,
                default=Value(Status.WAITING.value),
                output_field=models.CharField(),
            )
        )

    def with_tries(self) -> TaskQuerySet:
        """Add ``tries``: the attempts that count, the one that is running among them."""
        rows = Attempt.objects.filter(task_id=OuterRef("pk")).order_by().values("task_id")
        count = Count("pk") + Sum("omitted")
        counted = Subquery(rows.annotate(count=count).values("count"))
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


class Task(Kept):
    """
    One submission, kept from submit until retention has passed.

    ``key`` names it in its queue, and refuses a second submission as long as the row
    is there. ``user`` is for whom it runs. ``payload`` and ``result`` are JSON text,
    or what a codec has made of it.
    ``outcome`` stays empty until the task has ended; ``attempt`` is how often it had
    been acquired by then. ``run_at`` is when the submitter wanted it to start, and
    ``expected_at`` by when at the latest, if it said so. ``limits`` are the names of the
    limits that it keeps to, with commas between them. ``time_limit`` is how many seconds an
    attempt may take, where the submitter said so. ``context`` is JSON text: what of the
    submitter's surroundings, its trace above all, the handler is to find again.
    """

    id = models.BigAutoField(primary_key=True)
    queue = ExactCharField(_("queue"), max_length=100)
    key = ExactCharField(_("key"), max_length=255)
    type = ExactCharField(_("type"), max_length=255)
    user = ExactCharField(_("user"), max_length=255, blank=True, default="")
    payload = models.TextField(_("data"), db_column="data")
    priority = models.IntegerField(_("priority"), default=0)
    created_at = ReadableDateTimeField(_("created at"))
    run_at = ReadableDateTimeField(_("run at"))
    expected_at = ReadableDateTimeField(_("expected at"), null=True, blank=True)
    expires_at = ReadableDateTimeField(_("expires at"), null=True, blank=True)
    limits = ExactCharField(_("limits"), max_length=LIMITS_LENGTH, blank=True, default="")
    time_limit = models.FloatField(_("time limit"), null=True, blank=True)
    context = models.TextField(_("context"), null=True, blank=True)  # noqa: DJ001

    outcome = models.CharField(
        _("outcome"), max_length=9, choices=Outcome.choices, blank=True, default=""
    )
    attempt = models.IntegerField(_("attempt"), default=0)
    worker = models.CharField(_("worker"), max_length=255, blank=True, default="")
    started_at = ReadableDateTimeField(_("started at"), null=True, blank=True)
    ended_at = ReadableDateTimeField(_("ended at"), null=True, blank=True)
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
            ("purge_task", "Can delete ended task"),
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
        return printable(self.key)

    @classmethod
    def check(cls, **kwargs: Any) -> list[Any]:
        return without_partial_indexes(super().check(**kwargs))

    @property
    def data(self) -> Any:
        """
        What was submitted.

        Raise PayloadError when the stored text can't be read.
        """
        return decode(self.payload)

    @property
    def result(self) -> Any:
        """What the handler returned, or None."""
        return None if self.result_text is None else decode(self.result_text)


def without_partial_indexes(found: list[Any]) -> list[Any]:
    """Leave out W037: a database without partial indexes gets the whole ones, as intended."""
    return [one for one in found if one.id != "models.W037"]


class Ticket(Kept):
    """
    A task's place in line, from submit until it ends.

    ``lane`` is a hash of queue, user and limits. ``rank`` is minus the priority, so that
    the smallest goes first; of equals the one with the earliest ``run_at``, which is when
    it is due or, where that was said, expected to start. ``attempt`` counts acquires.
    ``holder`` names the processor that has the task. ``token`` is drawn anew for every acquire
    and fences every write of the one who made it. ``alarm_at`` is when
    the clock has something to do here: the due time of a scheduled task, the end of the
    lease of a running one, and on a waiting one a mark that its lane may be asleep.
    ``watched`` tells that someone waits for its end and is to be told at once.
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
    run_at = ReadableDateTimeField(_("run at"))
    alarm_at = ReadableDateTimeField(_("alarm at"), null=True)
    attempt = models.IntegerField(_("attempt"), default=0)
    errors = models.SmallIntegerField(_("errors"), default=0)
    crashes = models.SmallIntegerField(_("crashes"), default=0)
    holder = models.BigIntegerField(_("holder"), null=True)
    token = models.BigIntegerField(_("token"), null=True)
    cancel_requested = models.BooleanField(_("cancel requested"), default=False)
    watched = models.BooleanField(_("watched"), db_default=False)

    objects = KeptQuerySet.as_manager()

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

    @property
    def was_given_back(self) -> bool:
        """Whether a release has put it off: that leaves the time at which it was due before."""
        if self.is_parked:
            return True
        if self.state != State.SCHEDULED or self.alarm_at is None or self.was_expected:
            return False
        return self.attempt > 0 and self.alarm_at > self.run_at

    @property
    def is_parked(self) -> bool:
        """Whether it waits for a worker that knows its type."""
        far = self.alarm_at is not None and self.alarm_at > PARKED_FROM
        return far and self.alarm_at != self.task.run_at

    @property
    def was_snoozed(self) -> bool:
        """Whether its handler has put it off, as long as nothing else has gone wrong."""
        if self.state != State.SCHEDULED or self.was_given_back or self.was_expected:
            return False
        return self.attempt > 0 == self.errors + self.crashes

    @property
    def was_expected(self) -> bool:
        """Whether it has the time at which its task is expected to start."""
        expected_at = self.task.expected_at
        return expected_at is not None and self.run_at == expected_at


class Attempt(models.Model):
    """
    One attempt that did not finish its task.

    The attempt that finishes it is told by the task's own row. Of very many the first and
    the last are kept, as ATTEMPTS_KEPT says; ``omitted`` is how many there were just before
    this one that are not.
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
    started_at = ReadableDateTimeField(_("started at"), null=True)
    ended_at = ReadableDateTimeField(_("ended at"))
    error = models.CharField(_("error"), max_length=255, blank=True, default="")
    message = models.TextField(_("message"), blank=True, default="")
    traceback = models.TextField(_("traceback"), blank=True, default="")
    omitted = models.IntegerField(_("omitted"), db_default=0)

    class Meta:
        verbose_name = _("attempt")
        verbose_name_plural = _("attempts")
        default_permissions = ("view",)
        ordering = ["task_id", "id"]

    def __str__(self) -> str:
        return f"{self.task_id}#{self.number}"


class JournalQuerySet(models.QuerySet["Journal"]):
    def present(self) -> JournalQuerySet:
        """Keep those of the attempts that are running, or else were the last."""
        present = Coalesce("task__ticket__attempt", "task__attempt")
        return self.annotate(present=present).filter(number=F("present"))


class Journal(models.Model):
    """
    What a handler has told during one attempt: how far it is, and what it has logged.

    It is written beside the task, at most every so often, so that telling costs the queue
    nothing. ``number`` is that of the attempt, ``progress`` a part of 1, and ``lines`` the
    first and the last of its log, as text.
    """

    task = models.ForeignKey(
        Task,
        models.DO_NOTHING,
        db_constraint=False,
        db_index=False,
        related_name="journals",
        verbose_name=_("task"),
    )
    number = models.IntegerField(_("number"))
    progress = models.FloatField(_("progress"), null=True, blank=True)
    stage = models.CharField(_("stage"), max_length=255, blank=True, default="")
    lines = models.TextField(_("log lines"), blank=True, default="")
    updated_at = ReadableDateTimeField(_("updated at"))

    objects = JournalQuerySet.as_manager()

    class Meta:
        verbose_name = _("journal")
        verbose_name_plural = _("journals")
        default_permissions = ("view",)
        ordering = ["task_id", "number"]
        constraints = [
            models.UniqueConstraint(fields=["task", "number"], name="perfectqueue_journal_task"),
        ]

    def __str__(self) -> str:
        return f"{self.task_id}#{self.number}"

    @property
    def tells_progress(self) -> bool:
        return self.progress is not None or bool(self.stage)

    @property
    def log(self) -> list[Line]:
        """Its log lines, each with its time, level, logger and text."""
        return list(read(self.lines))


class DeadLetter(Kept):
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
    ended_at = ReadableDateTimeField(_("ended at"))

    objects = KeptQuerySet.as_manager()

    class Meta:
        verbose_name = _("dead letter")
        verbose_name_plural = _("dead letters")
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


class Policy(models.IntegerChoices):
    """By which rule a lane's turn comes: see ``store.lanes``."""

    FAIR = 0, _("fair")
    SLOTS = 1, _("slots")


class Lane(models.Model):
    """
    One user's line in one queue, and its account.

    ``virtual_time`` is the processor time that the user has been charged, divided by its
    weight; ``turn`` adds the expected ``cost`` of its next task, which is negative where
    none was measured yet. The lane with the smallest turn is served next; of equals the one
    that waits the longest, ``since`` its first task was due or it was last served, or where
    it sleeps since it was found empty.
    ``finish_tag`` is the virtual time to which the task that ended last has brought it, by
    what was expected: the largest is the clock of the queue. ``awake`` says that it has
    waiting tickets, and ``open`` that one of them may be taken now.

    Tasks that keep to limits stand in a lane of their own for each set of limits: ``keys``
    are these limits' keys in order, as JSON, and ``gate`` is the hash of queue and keys, 0
    for none. Such a lane has the account of its user's lane without limits, whose id is
    ``account``, and carries a copy of it. ``held`` is the id of the Hold of the limit that
    lets none of its tasks start now, 0 for none: held lanes are not read by who looks for
    tasks, until the limit opens.
    """

    id = models.BigIntegerField(primary_key=True)
    account = models.BigIntegerField(_("account"))
    gate = models.BigIntegerField(_("gate"), default=0)
    held = models.BigIntegerField(_("held by"), db_default=0)
    keys = models.TextField(_("limits"), null=True, blank=True)  # noqa: DJ001
    queue = ExactCharField(_("queue"), max_length=100)
    user = ExactCharField(_("user"), max_length=255, blank=True, default="")
    virtual_time = models.FloatField(_("virtual time"), default=0.0)
    cost = models.FloatField(_("expected cost"), default=-0.002)
    weight = models.FloatField(_("weight"), default=1.0)
    max_running = models.IntegerField(_("max running"), null=True, blank=True)
    paused = models.BooleanField(_("paused"), default=False)
    running = models.IntegerField(_("running"), default=0)
    awake = models.BooleanField(_("awake"), default=True)
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
            models.Index(
                fields=["queue", "held", "-open", "turn", "since"], name="perfectqueue_lane_turn"
            ),
            PartialIndex(
                fields=["queue", "gate", "finish_tag"],
                condition=Q(finish_tag__gt=0),
                on=["postgresql", "sqlite"],
                whole=["queue", "gate", "finish_tag"],
                name="perfectqueue_lane_clock",
            ),
            PartialIndex(
                fields=["account"],
                condition=~Q(gate=0),
                on=["postgresql", "sqlite"],
                whole=["account"],
                name="perfectqueue_lane_account",
            ),
        ]

    def __str__(self) -> str:
        return printable(f"{self.queue}/{self.user}")

    @classmethod
    def check(cls, **kwargs: Any) -> list[Any]:
        return without_partial_indexes(super().check(**kwargs))


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
        verbose_name = _("hold")
        verbose_name_plural = _("holds")
        default_permissions = ("view",)
        indexes = [
            models.Index(fields=["queue", "opens_at"], name="perfectqueue_hold_opens"),
            models.Index(fields=["key"], name="perfectqueue_hold_key"),
        ]

    def __str__(self) -> str:
        return printable(f"{self.queue}: {self.key}")


class Limit(models.Model):
    """
    How many tasks may run at once, or start within a time: of all that list a name, or
    of all of a queue, a type or a user.

    ``rate`` tasks may start in each ``period`` of seconds, up to ``burst`` of them at once.
    """

    class Scope(models.TextChoices):
        NAME = "name", _("tasks that list this name")
        QUEUE = "queue", _("tasks of this queue")
        TYPE = "type", _("tasks of this type")
        USER = "user", _("tasks of this user")

    scope = models.CharField(_("scope"), max_length=5, choices=Scope.choices, default=Scope.NAME)
    name = ExactCharField(_("name"), max_length=LIMIT_LENGTH)
    max_running = models.PositiveIntegerField(
        _("max running"),
        null=True,
        blank=True,
        help_text=_("How many of these tasks may run at once. Empty: any number. 0: none."),
    )
    rate = models.PositiveIntegerField(
        _("rate"),
        null=True,
        blank=True,
        validators=[MinValueValidator(1)],
        help_text=_("How many of them may start in each period. Empty: any number."),
    )
    period = models.FloatField(
        _("period"),
        default=1.0,
        validators=[MinValueValidator(LEAST_PERIOD), MaxValueValidator(MOST_PERIOD)],
        help_text=_("In seconds: 60 for a rate per minute."),
    )
    burst = models.PositiveIntegerField(
        _("burst"),
        null=True,
        blank=True,
        validators=[MinValueValidator(1)],
        help_text=_(
            "How many of them may start at once after a pause. Empty: as many as the rate."
        ),
    )
    paused = models.BooleanField(
        _("paused"), default=False, help_text=_("These tasks wait until this is taken back.")
    )

    class Meta:
        verbose_name = _("limit")
        verbose_name_plural = _("limits")
        constraints = [
            models.UniqueConstraint(fields=["scope", "name"], name="perfectqueue_limit_name"),
            models.CheckConstraint(
                condition=Q(period__gte=LEAST_PERIOD, period__lte=MOST_PERIOD)
                & (Q(rate__isnull=True) | Q(rate__gte=1))
                & (Q(burst__isnull=True) | Q(burst__gte=1)),
                name="perfectqueue_limit_rate",
            ),
            models.CheckConstraint(
                condition=Q(rate__isnull=True)
                | Q(burst__isnull=True)
                | Q(burst__lte=F("rate") * MOST_BURST_TIME / F("period")),
                name="perfectqueue_limit_burst",
                violation_error_message=_(
                    "The burst is too large: at this rate it would come evenly in more than 366"
                    " days."
                ),
            ),
        ]

    def __str__(self) -> str:
        return self.key

    @property
    def key(self) -> str:
        """What lanes, holds and meters know it by."""
        return f"{self.scope}:{self.name}"


class Meter(models.Model):
    """
    What a limit counts: how many tasks run behind it, and when its rate lets the next
    one start that comes evenly.
    """

    key = ExactCharField(_("limit"), max_length=LIMIT_LENGTH + 6, primary_key=True)
    running = models.IntegerField(_("running"), default=0)
    next_at = ReadableDateTimeField(_("next at"), null=True)

    class Meta:
        verbose_name = _("meter")
        verbose_name_plural = _("meters")
        default_permissions = ("view",)

    def __str__(self) -> str:
        return self.key


class WorkerQuerySet(models.QuerySet["Worker"]):
    def seen(self, now: datetime) -> WorkerQuerySet:
        """Keep those that have told lately that they live."""
        return self.filter(seen_at__gt=now - UNSEEN)

    def serving(self, now: datetime) -> WorkerQuerySet:
        """Keep those of them that take tasks."""
        return self.seen(now).filter(leaving=False)


class Worker(models.Model):
    """
    A worker: one supervisor with its processors, until the last of them has ended.

    ``id`` is a random number that the supervisor drew when it started, ``launcher`` the
    pid of the process that was started by hand or by a service manager, and ``generation``
    counts the supervisors of that one, from 1. Who was not seen for UNSEEN is gone; one
    that is ``leaving`` ends what runs and takes no more. ``routes_text`` is JSON: the types
    that its dispatch knows, and its patterns, each with the flags that it was compiled
    with; null where the dispatch decides by itself. ``version`` is that of this package.
    ``seats_text`` is JSON: what each processor did when the worker was seen. ``drifted_at``
    is when it last had to correct a counter of what runs.
    """

    id = models.BigIntegerField(primary_key=True)
    host = models.CharField(_("host"), max_length=255)
    pid = models.IntegerField(_("pid"))
    launcher = models.IntegerField(_("launcher"), default=0)
    generation = models.IntegerField(_("generation"), default=1)
    version = models.CharField(_("version"), max_length=50)
    processors = models.IntegerField(_("processors"))
    queues_text = models.TextField(_("queues"), db_column="queues")
    routes_text = models.TextField(_("types"), db_column="routes")
    seats_text = models.TextField(_("runs"), db_column="seats", default="[]")
    leaving = models.BooleanField(_("leaving"), default=False)
    started_at = ReadableDateTimeField(_("started at"))
    seen_at = ReadableDateTimeField(_("seen at"))
    drifted_at = ReadableDateTimeField(_("drifted at"), null=True)

    objects = WorkerQuerySet.as_manager()

    class Meta:
        verbose_name = _("worker")
        verbose_name_plural = _("workers")
        default_permissions = ("view",)
        indexes = [models.Index(fields=["seen_at"], name="perfectqueue_worker_seen")]

    def __str__(self) -> str:
        return f"{self.host}:{self.pid}"

    @property
    def queues(self) -> list[str]:
        """The queues that it serves, the first one first."""
        return list(json.loads(self.queues_text))

    @property
    def routes(self) -> dict[str, Any] | None:
        """Its ``types`` and ``patterns``, or None where that can't be told."""
        routes: dict[str, Any] | None = json.loads(self.routes_text)
        return routes

    @property
    def seats(self) -> list[dict[str, Any]]:
        """
        Each processor, as it was when the worker was seen.

        A dict has its ``number`` and ``pid``, its ``memory`` in bytes or None, under
        ``counts`` how many attempts of that place ended in which way, and under ``tasks``
        the ``id`` of each task that it ran and for how many ``seconds``.
        """
        return list(json.loads(self.seats_text))

    def is_gone(self, now: datetime) -> bool:
        return self.seen_at <= now - UNSEEN


class FairShare(models.Model):
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
        return printable(f"{self.user or '-'} ({self.queue or _('every queue')})")


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
        validators=[MinValueValidator(LEAST_WEIGHT), MaxValueValidator(MOST_WEIGHT)],
        help_text=_("Twice the weight gets twice the processor time while queues compete."),
    )

    class Meta:
        verbose_name = _("share of a queue")
        verbose_name_plural = _("shares of queues")
        constraints = [
            models.CheckConstraint(
                condition=Q(weight__gte=LEAST_WEIGHT, weight__lte=MOST_WEIGHT),
                name="perfectqueue_queueshare_weight",
            ),
        ]

    def __str__(self) -> str:
        return self.queue


class Change(models.Model):
    """
    One change of a fair share, of the share of a queue, of a limit or of a task: when, by
    whom, and what it was before and after.

    ``before`` is empty for one that was added, ``after`` for one that was taken away. Of a
    task, whose key is the ``name``, ``after`` has the word for what a person did. The
    last CHANGES_OF_ONE of each are kept, and of all together the last CHANGES.
    """

    class Kind(models.TextChoices):
        SHARE = "share", _("fair share")
        QUEUE = "queue", _("share of a queue")
        LIMIT = "limit", _("limit")
        TASK = "task", _("task")

    at = ReadableDateTimeField(_("at"))
    by = models.CharField(_("by"), max_length=255, blank=True, default="")
    kind = models.CharField(_("kind"), max_length=5, choices=Kind.choices)
    name = ExactCharField(_("name"), max_length=261, blank=True, default="")
    queue = ExactCharField(_("queue"), max_length=100, blank=True, default="")
    before = models.JSONField(_("before"), null=True)
    after = models.JSONField(_("after"), null=True)

    class Meta:
        verbose_name = _("change")
        verbose_name_plural = _("changes")
        default_permissions = ("view",)
        indexes = [
            models.Index(fields=["kind", "name", "queue", "id"], name="perfectqueue_change_of"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


class Span(models.IntegerChoices):
    """The lengths of time that usage is summed over, in seconds."""

    SLICE = 10, _("ten seconds")
    MINUTE = 60, _("minute")
    HOUR = 3_600, _("hour")


class Usage(models.Model):
    """
    What the tasks of one user got in one queue within a span of time, and what they were
    entitled to.

    ``seconds`` is processor time, ``ended`` how many attempts ended. ``eager`` counts the
    slices in which tasks waited that might have started, ``paused``, ``capped`` and
    ``limited`` those in which they waited for that reason. ``entitled`` is known once the
    span has been summed up; for a slice it is computed when it is asked for. The columns
    ``wait_0`` to ``wait_27`` are a histogram of how long they waited, see
    ``store.entitlement``, and ``longest`` is the longest of these waits in seconds.

    Of very many users those with little time have one row together, with ``others``.
    """

    id = models.BigAutoField(primary_key=True)
    queue = ExactCharField(_("queue"), max_length=100)
    span = models.SmallIntegerField(_("span"), choices=Span.choices)
    start = ReadableDateTimeField(_("start"))
    others = models.BooleanField(_("others"), default=False)
    user = ExactCharField(_("user"), max_length=255, blank=True, default="")
    ended = models.IntegerField(_("ended"), default=0)
    seconds = models.FloatField(_("seconds"), default=0.0)
    entitled = models.FloatField(_("entitled"), default=0.0)
    eager = models.IntegerField(_("eager"), default=0)
    paused = models.IntegerField(_("paused"), default=0)
    capped = models.IntegerField(_("capped"), default=0)
    limited = models.IntegerField(_("limited"), default=0)
    longest = models.FloatField(_("longest wait"), default=0.0)

    class Meta:
        verbose_name = _("share received")
        verbose_name_plural = _("shares received")
        default_permissions = ("view",)
        constraints = [
            models.UniqueConstraint(
                fields=["queue", "span", "start", "others", "user"],
                name="perfectqueue_usage_key",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.queue}/{self.user}"


for _bucket in range(WAIT_BUCKETS):
    Usage.add_to_class(f"wait_{_bucket}", models.IntegerField(_("waits"), default=0))
