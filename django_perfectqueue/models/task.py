"""A task: the wide row, its attempts and their journal; and the narrow row until it ends."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from django.apps import apps
from django.db import connections, models
from django.db.models import Case, Count, F, Min, OuterRef, Q, Subquery, Sum, Value, When
from django.db.models.functions import Coalesce
from django.db.models.sql import Query
from django.utils.translation import gettext_lazy as _

from django_perfectqueue.lib.printable import printable
from django_perfectqueue.payload import codecs
from django_perfectqueue.payload.journal import Line, read

from .fields import (
    SPAN,
    ExactCharField,
    PartialIndex,
    Undeletable,
    UndeletableQuerySet,
    in_order,
    readable,
)
from .status import PARKED_FROM, LastEnding, Outcome, State, Status, condition, live_conditions

if TYPE_CHECKING:
    from django.utils.functional import _StrPromise as StrPromise

    from .batch import DeadLetter


# The tasks of a lane have one queue, so the wide row of one of them is read.
COUNT = """
SELECT COALESCE(SUM(number), 0) FROM ({lanes}) lane
JOIN perfectqueue_task task ON task.id = lane.one WHERE task.queue = %s
"""


def begins(column: str, start: str) -> Q:
    """Return the condition of the texts that are this or begin so, as an index finds them."""
    # No LIKE, as that of SQLite ignores case.
    return Q(**{f"{column}__gte": start, f"{column}__lt": start + codecs.LAST_CHARACTER})


def type_condition(pattern: str) -> Q:
    """Return the condition of a type, or, with ``*`` at its end, of those that begin so."""
    return begins("type", pattern[:-1]) if pattern.endswith("*") else Q(type=pattern)


class TaskQuerySet(UndeletableQuerySet["Task"]):
    """
    ``only_queue`` is the queue of which it has all tasks, or all that ``lanes`` counts: for
    each lane, how many there are and one of them. A query made from it has neither.
    """

    only_queue: str | None = None
    lanes: Query | None = None

    def count(self) -> int:
        if self.lanes is None or self._result_cache is not None:
            return super().count()
        counted, values = self.lanes.get_compiler(self.db).as_sql()
        with connections[self.db].cursor() as cursor:
            cursor.execute(COUNT.replace("{lanes}", counted), [*values, self.only_queue])
            return int(cursor.fetchone()[0])

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
        return self.annotate(  # type: ignore[no-redef]
            tries=Coalesce(counted, 0, output_field=models.IntegerField()) + one_more
        )

    def in_status(self, status: str, now: datetime | None = None) -> TaskQuerySet:
        """
        Keep the tasks with this status, found by an index and not by the word.

        Raise ValueError when there is no such status.
        """
        return self.counted(self.filter(condition(status, now)), status, now)

    def tagged(self, *tags: str) -> TaskQuerySet:
        """Keep the tasks that have all of these tags."""
        tasks = self.all()
        for tag in tags:
            tasks = tasks.tagged_any(tag)
        return tasks

    def tagged_any(self, *tags: str) -> TaskQuerySet:
        """Keep the tasks that have one of these tags, each once."""
        return self.filter(pk__in=Tag.objects.filter(tag__in=tags).values("task_id"))

    def live(self) -> TaskQuerySet:
        """Keep the tasks that have not ended."""
        return self.counted(self.filter(ticket__isnull=False))

    def counted(
        self, found: TaskQuerySet, status: str = "", now: datetime | None = None
    ) -> TaskQuerySet:
        """Have live tasks of one queue counted lane by lane, by their tickets."""
        if self.only_queue is not None and status not in Outcome.values:
            tickets = apps.get_model("perfectqueue", "Ticket")._default_manager.using(self.db)
            live = tickets.filter(live_conditions(now)[Status(status)]) if status else tickets
            lanes = live.values("lane").annotate(number=Count("*"), one=Min("task_id"))
            found.lanes, found.only_queue = lanes.values("number", "one").query, self.only_queue
        return found


class TaskManager(models.Manager.from_queryset(TaskQuerySet)):  # type: ignore[misc]
    def get_queryset(self) -> TaskQuerySet:
        return super().get_queryset().with_status()  # type: ignore[no-any-return]


@readable(time_limit=SPAN)
class Task(Undeletable):
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
    submitter's surroundings, its trace above all, the handler is to find again, and what the
    submit said of its attempts. ``merged`` is how many submits are one in a task that is
    debounced.
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
    expected_at = models.DateTimeField(_("expected at"), null=True, blank=True)
    expires_at = models.DateTimeField(_("expires at"), null=True, blank=True)
    limits = ExactCharField(_("limits"), max_length=codecs.LIMITS_LENGTH, blank=True, default="")
    time_limit = models.FloatField(_("time limit"), null=True, blank=True)
    context = models.TextField(_("context"), null=True, blank=True)  # noqa: DJ001
    merged = models.IntegerField(_("merged submits"), null=True, blank=True)

    outcome = models.CharField(
        _("outcome"), max_length=9, choices=Outcome.choices, blank=True, default=""
    )
    attempt = models.IntegerField(_("attempt"), default=0)
    worker = models.CharField(_("worker"), max_length=255, blank=True, default="")
    started_at = models.DateTimeField(_("started at"), null=True, blank=True)
    ended_at = models.DateTimeField(_("ended at"), null=True, blank=True)
    result_text = models.TextField(_("result"), db_column="result", null=True, blank=True)  # noqa: DJ001

    objects = TaskManager()  # type: ignore[misc]

    # Set by queries that ask for them.
    status: str
    tries: int
    clock: datetime
    ticket: Ticket
    dead_letter: DeadLetter

    class Meta:
        verbose_name = _("task")
        verbose_name_plural = in_order(8, _("tasks"))
        base_manager_name = "objects"
        default_permissions = ("view",)
        permissions = [
            ("force_finish_task", "Can force finish task"),
            ("cancel_task", "Can request cancel of task"),
            ("retry_task", "Can retry task"),
            ("purge_task", "Can delete ended task"),
            ("move_task", "Can move task to another queue"),
            ("edit_task", "Can edit data of task"),
            ("copy_task", "Can run copy of task"),
            ("signal_task", "Can send signal to task"),
        ]
        constraints = [
            models.UniqueConstraint(fields=["queue", "key"], name="perfectqueue_task_key")
        ]
        indexes = [
            PartialIndex(
                fields=["user", "id"],
                condition=~Q(user=""),
                on=["postgresql"],
                name="perfectqueue_task_user",
            )
        ]

    def __str__(self) -> str:
        return printable(self.key)

    @property
    def data(self) -> codecs.JSON:
        """
        What was submitted.

        Raise PayloadError when the stored text can't be read.
        """
        return codecs.decode(self.payload)

    @property
    def result(self) -> codecs.JSON:
        """What the handler returned, or None."""
        return None if self.result_text is None else codecs.decode(self.result_text)


def of_task(
    related_name: str, name: StrPromise | None = None, *, db_index: bool = False
) -> models.ForeignKey[Task, Task]:
    """Return the column of a task of which there may be several rows; another index may have it."""
    return models.ForeignKey(
        Task,
        models.DO_NOTHING,
        db_constraint=False,
        db_index=db_index,
        related_name=related_name,
        verbose_name=name or _("task"),
    )


def keyed_by_task(related_name: str) -> models.OneToOneField[Task, Task]:
    """Return the primary key of rows of which a task has one at most."""
    return models.OneToOneField(
        Task,
        models.DO_NOTHING,
        primary_key=True,
        db_constraint=False,
        related_name=related_name,
        verbose_name=_("task"),
    )


@readable()
class Attempt(models.Model):
    """
    One attempt that did not finish its task.

    The attempt that finishes it is in the task's own row. Of very many the first and
    the last are kept, Options.ATTEMPTS_KEPT of them; ``omitted`` is how many there were just before
    this one that are not.
    """

    class Ending(models.TextChoices):
        RETRIED = "retried", _("retried")
        FAILED = "failed", _("failed")
        CANCELLED = "cancelled", _("cancelled")
        LOST = "lost", _("lost")

    task = of_task("attempts", db_index=True)
    number = models.IntegerField(_("number"))
    ending = models.CharField(_("ending"), max_length=9, choices=Ending.choices)
    worker = models.CharField(_("worker"), max_length=255, blank=True, default="")
    started_at = models.DateTimeField(_("started at"), null=True)
    ended_at = models.DateTimeField(_("ended at"))
    error = models.CharField(_("error"), max_length=255, blank=True, default="")
    message = models.TextField(_("message"), blank=True, default="")
    traceback = models.TextField(_("traceback"), blank=True, default="")
    omitted = models.IntegerField(_("omitted"), db_default=0)

    class Meta:
        default_permissions = ()
        ordering = ["task_id", "id"]


class JournalQuerySet(models.QuerySet["Journal"]):
    def present(self) -> JournalQuerySet:
        """Keep those of the attempts that are running, or else were the last."""
        present = Coalesce("task__ticket__attempt", "task__attempt")
        return self.annotate(present=present).filter(number=F("present"))


@readable(progress=(0.0, 1.0))
class Journal(models.Model):
    """
    The journal of one attempt: its progress and its log.

    It is written beside the task, at most every so often, so that telling costs the queue
    nothing. ``number`` is that of the attempt, ``progress`` a part of 1, and ``lines`` the
    first and the last of its log, as text.
    """

    task = of_task("journals")
    number = models.IntegerField(_("number"))
    progress = models.FloatField(_("progress"), null=True, blank=True)
    stage = models.CharField(_("stage"), max_length=255, blank=True, default="")
    lines = models.TextField(_("log lines"), blank=True, default="")
    updated_at = models.DateTimeField(_("updated at"))

    objects = JournalQuerySet.as_manager()

    class Meta:
        default_permissions = ()
        ordering = ["task_id", "number"]
        constraints = [
            models.UniqueConstraint(fields=["task", "number"], name="perfectqueue_journal_task")
        ]

    @property
    def tells_progress(self) -> bool:
        return self.progress is not None or bool(self.stage)

    @property
    def log(self) -> list[Line]:
        """Its log lines, each with its time, level, logger and text."""
        return list(read(self.lines))


@readable()
class Step(models.Model):
    """
    What a named step of a task has returned, kept for the attempts after it; and as such, too,
    its waits and the signals to it.

    The result of a signal are its data. That of a wait is empty: a signal of its name, or the
    server's clock ``until`` a time, ends it; where the time was over first, it is null. What a
    blocked task waits for is the newest of its waits. ``kept_at`` is since when it waits.
    """

    class Kind(models.IntegerChoices):
        STEP = 0, _("step")
        SIGNAL = 1, _("signal")
        WAIT = 2, _("wait for a signal")
        SLEEP = 3, _("sleep")
        JOIN = 4, _("wait for tasks")

    task = of_task("steps")
    kind = models.SmallIntegerField(_("kind"), choices=Kind.choices, db_default=Kind.STEP.value)
    name = ExactCharField(_("name"), max_length=codecs.STEP_LENGTH)
    result_text = models.TextField(_("result"), db_column="result")
    kept_at = models.DateTimeField(_("kept at"))
    until = models.DateTimeField(_("until"), null=True, blank=True)

    class Meta:
        default_permissions = ()
        constraints = [
            models.UniqueConstraint(fields=["task", "kind", "name"], name="perfectqueue_step_name")
        ]


class Tag(models.Model):
    """A tag of a task."""

    task = of_task("tags")
    tag = ExactCharField(_("tag"), max_length=codecs.TAG_LENGTH)

    class Meta:
        default_permissions = ()
        constraints = [
            models.UniqueConstraint(fields=["task", "tag"], name="perfectqueue_tag_task")
        ]
        indexes = [models.Index(fields=["tag", "task"], name="perfectqueue_tag_tag")]


class Watch(models.Model):
    """A task that a person watches in the admin; ``person`` is the primary key as text."""

    task = of_task("watches")
    person = ExactCharField(_("person"), max_length=255)

    class Meta:
        default_permissions = ()
        constraints = [
            models.UniqueConstraint(fields=["task", "person"], name="perfectqueue_watch_task")
        ]
        indexes = [models.Index(fields=["person", "task"], name="perfectqueue_watch_person")]


# The narrow row of a task that has yet to end.


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
    lease of a running one, the time at which a blocked one waits for its signal no longer.
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
    run_at = models.DateTimeField(_("run at"))
    timer_at = models.DateTimeField(_("timer at"), null=True)
    attempt = models.IntegerField(_("attempt"), default=0)
    errors = models.SmallIntegerField(_("errors"), default=0)
    crashes = models.SmallIntegerField(_("crashes"), default=0)
    holder = models.BigIntegerField(_("holder"), null=True)
    token = models.BigIntegerField(_("token"), null=True)
    cancel_requested = models.BooleanField(_("cancel requested"), default=False)
    charged = models.FloatField(_("charged"), null=True)
    watched = models.BooleanField(_("watched"), db_default=False)
    followed = models.BigIntegerField(_("followed"), null=True)

    class Meta:
        default_permissions = ()
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

    @property
    def is_parked(self) -> bool:
        """Whether it waits for a worker that knows its type."""
        far = self.timer_at is not None and self.timer_at > PARKED_FROM
        return far and self.timer_at != self.task.run_at
