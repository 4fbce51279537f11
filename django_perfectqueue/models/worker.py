"""Workers and what they have in hand; what users received, by time."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, TypedDict

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_perfectqueue.lib.durations import LONGEST, is_number
from django_perfectqueue.lib.stored_json import names_in, parsed

from .fields import ExactCharField, JsonTextField, in_order, readable

UNSEEN = timedelta(seconds=30)


class Routes(TypedDict):
    """What a worker knows: types, and patterns each with its flags."""

    types: list[str]
    patterns: list[tuple[str, int]]


class HeldTaskState(TypedDict):
    id: int
    seconds: float


class ProcessorState(TypedDict):
    """
    What a processor did when its worker was seen; ``memory`` is in bytes, and ``start`` in ticks
    since the host started. Only one that is ``kept`` for short tasks says so.
    """

    number: int
    pid: int
    start: int
    holder: int
    memory: int | None
    counts: dict[str, int]
    tasks: list[HeldTaskState]
    kept: bool


def routes_in(text: str) -> Routes | None:
    """Return the types and patterns of a worker, or None where they are unknown."""
    try:
        found = parsed(text)
        types = [type_ for type_ in found["types"] if isinstance(type_, str)]
        patterns = [(str(source), int(flags)) for source, flags in found["patterns"]]
        return Routes(types=types, patterns=patterns)
    except (TypeError, ValueError, LookupError):
        return None


def is_processor_state(found: Any) -> bool:
    try:
        whole = [found[name] for name in ("number", "pid", "start", "holder")]
        whole += [found.get("memory") or 0, *found.get("counts", {}).values()]
        spans = [task["seconds"] for task in found["tasks"]]
        whole += [task["id"] for task in found["tasks"]]
    except (TypeError, LookupError, AttributeError):
        return False
    return all(isinstance(one, int) and abs(one) < 2**63 for one in whole) and all(
        is_number(span) and 0 <= span <= LONGEST for span in spans
    )


class WorkerQuerySet(models.QuerySet["Worker"]):
    def seen(self, now: datetime | models.Expression) -> WorkerQuerySet:
        """Keep workers that reported lately."""
        return self.filter(seen_at__gt=now - UNSEEN)

    def staying(self, now: datetime | models.Expression) -> WorkerQuerySet:
        """Keep those of them that do not leave: first those that take tasks, then drained ones."""
        return self.seen(now).filter(leaving=False).order_by("draining", "-seen_at")

    def serving(self, now: datetime) -> WorkerQuerySet:
        """Keep those of them that take tasks."""
        return self.staying(now).filter(draining=False)


@readable()
class Worker(models.Model):
    """
    A worker: one supervisor with its processors, until the last of them has ended.

    ``id`` is a random number that the supervisor drew when it started, ``launcher`` the
    pid of the process that was started by hand or by a service manager, and ``generation``
    counts the supervisors of that one, from 1. Who was not seen for UNSEEN is gone; one
    that is ``leaving`` ends what runs and takes no more. One that is ``draining`` does so, too,
    until a person takes that back. ``routes_text`` is JSON: the types
    that its dispatch knows, and its patterns, each with the flags that it was compiled
    with; null where the dispatch decides by itself. ``version`` is that of this package, and
    ``release`` that of the site, as RELEASE says or SENTRY_RELEASE of its environment.
    ``pid_space`` is the same for workers that can see each other's pids, and ``start`` is when
    the supervisor started, in ticks since the host did; empty and 0 if unknown.
    ``schedules_text`` is JSON: the names of the schedules that its code declares.
    ``states_text`` is JSON: what each processor did when the worker was seen. ``drifted_at``
    is when it last had to correct a counter of what runs, and ``problem`` what of its upkeep
    has failed lately.
    """

    clock: datetime  # set by queries

    id = models.BigIntegerField(primary_key=True)
    host = models.CharField(_("host"), max_length=255)
    pid = models.IntegerField(_("pid"))
    launcher = models.IntegerField(_("launcher"), default=0)
    generation = models.IntegerField(_("generation"), default=1)
    version = models.CharField(_("version"), max_length=50)
    processors = models.IntegerField(_("processors"))
    queues_text = JsonTextField(_("queues"), db_column="queues")
    routes_text = JsonTextField(_("types"), db_column="routes", kinds="'object', 'null'")
    release = models.CharField(_("release"), max_length=100, default="", db_default="")
    pid_space = models.CharField(max_length=100, default="", db_default="")
    start = models.BigIntegerField(default=0, db_default=0)
    schedules_text = JsonTextField(_("schedules"), db_column="schedules", default="[]")
    states_text = JsonTextField(_("runs"), db_column="states", default="[]")
    leaving = models.BooleanField(_("leaving"), default=False)
    draining = models.BooleanField(default=False, db_default=False)
    started_at = models.DateTimeField(_("started at"))
    seen_at = models.DateTimeField(_("seen at"))
    drifted_at = models.DateTimeField(_("drifted at"), null=True)
    problem = models.TextField(_("problem"), db_default="")

    objects = WorkerQuerySet.as_manager()

    class Meta:
        verbose_name = _("worker")
        verbose_name_plural = in_order(1, _("workers"))
        default_permissions = ("view", "drain")
        indexes = [models.Index(fields=["seen_at"], name="perfectqueue_worker_seen")]

    def __str__(self) -> str:
        return f"{self.host}:{self.pid}"

    @property
    def queues(self) -> list[str]:
        """The queues that it serves, the first one first."""
        return list(names_in(self.queues_text))

    @property
    def routes(self) -> Routes | None:
        """Its ``types`` and ``patterns``, or None where they are unknown."""
        return routes_in(self.routes_text)

    @property
    def schedules(self) -> list[str]:
        """The names of the schedules that its code declares."""
        return list(names_in(self.schedules_text))

    @property
    def states(self) -> list[ProcessorState]:
        """
        Each processor, as it was when the worker was seen.

        A dict has its ``number`` and ``pid``, its ``memory`` in bytes or None, under
        ``counts`` how many attempts of that place ended in which way, and under ``tasks``
        the ``id`` of each task that it ran and for how many ``seconds``.
        """
        found = parsed(self.states_text)
        return list(filter(is_processor_state, found)) if isinstance(found, list) else []

    @property
    def kept(self) -> list[ProcessorState]:
        """Those that are kept for short tasks."""
        return [state for state in self.states if state.get("kept")]

    @property
    def state(self) -> str:
        """By its ``clock`` alive, gone, leaving, draining, or drained when nothing runs."""
        if self.seen_at <= self.clock - UNSEEN:
            return "gone"
        if self.leaving or not self.draining:
            return "leaving" if self.leaving else "alive"
        return "draining" if any(state["tasks"] for state in self.states) else "drained"


# What users received, and how the tasks of each type ended, by time.


WAIT_BUCKETS = 28


class Bucket(models.IntegerChoices):
    """The lengths of time that usage is summed over, in seconds."""

    MINUTE = 60, _("minute")
    HOUR = 3_600, _("hour")
    TOTAL = 0, _("all time")


ALL_TYPES = "*"


@readable()
class Usage(models.Model):
    """
    What the tasks of one user, or of one type, got in one queue within a span of time.

    A row with a ``type`` is of that type and all users; with ``others``, too, it is of all
    types together. A row without is of the ``user``.

    ``seconds`` is processor time, ``ended`` how many attempts ended, ``finished`` to ``lost``
    how many of them in which way. ``lasted`` and ``squares`` are the sum of the seconds that
    these attempts took and of their squares, ``run_0`` to ``run_27`` a histogram of them;
    ``waited``, ``wait_squares`` and ``wait_0`` to ``wait_27`` the same of how long they waited,
    see ``store.entitlement``, and ``longest`` is the longest of these waits in seconds.
    ``entitled`` is what a user was entitled to, of ``seconds``; of a minute it is computed
    when it is asked for. ``eager`` counts the minutes in which tasks waited that might have
    started, ``paused``, ``capped`` and ``limited`` those in which they waited for that reason.

    ``submitted`` is how many tasks were stored in the queue, in the row of all types; see
    ``store.count_submitted()``.

    Of very many users those with little time have one row together, with ``others``.
    """

    id = models.BigAutoField(primary_key=True)
    queue = ExactCharField(_("queue"), max_length=100)
    span = models.IntegerField(_("span"), choices=Bucket.choices)
    type = ExactCharField(_("type"), max_length=255, blank=True, default="")
    start = models.DateTimeField(_("start"))
    others = models.BooleanField(_("others"), default=False)
    user = ExactCharField(_("user"), max_length=255, blank=True, default="")
    ended = models.BigIntegerField(_("ended"), default=0)
    finished = models.BigIntegerField(_("finished"), default=0)
    retried = models.BigIntegerField(_("retried"), default=0)
    failed = models.BigIntegerField(_("failed"), default=0)
    cancelled = models.BigIntegerField(_("cancelled"), default=0)
    lost = models.BigIntegerField(_("lost"), default=0)
    submitted = models.BigIntegerField(_("submitted"), default=0)
    lasted = models.FloatField(_("run time"), default=0.0)
    squares = models.FloatField(_("squares of run times"), default=0.0)
    waited = models.FloatField(_("waited"), default=0.0)
    wait_squares = models.FloatField(_("squares of waits"), default=0.0)
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
        default_permissions = ()
        constraints = [
            models.UniqueConstraint(
                fields=["queue", "span", "type", "start", "others", "user"],
                name="perfectqueue_usage_key",
            )
        ]


for _bucket in range(WAIT_BUCKETS):
    Usage.add_to_class(f"wait_{_bucket}", models.BigIntegerField(_("waits"), default=0))
    Usage.add_to_class(f"run_{_bucket}", models.BigIntegerField(_("runs"), default=0))


class Overview(Usage):
    """The page of all queues, for the admin and its permission."""

    class Meta:
        proxy = True
        verbose_name = _("overview")
        verbose_name_plural = in_order(9, _("Overview"))
        default_permissions = ("view",)
