"""Workers and what they have in hand."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, TypedDict

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_perfectqueue.lib.durations import LONGEST, is_number
from django_perfectqueue.lib.stored_json import names_in, parsed

from .fields import JsonTextField, ReadableDateTimeField, in_order, readable

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
    since the host started.
    """

    number: int
    pid: int
    start: int
    holder: int
    memory: int | None
    counts: dict[str, int]
    tasks: list[HeldTaskState]


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
    def seen(self, now: datetime) -> WorkerQuerySet:
        """Keep workers that reported lately."""
        return self.filter(seen_at__gt=now - UNSEEN)

    def serving(self, now: datetime) -> WorkerQuerySet:
        """Keep those of them that take tasks."""
        return self.seen(now).filter(leaving=False)


@readable()
class Worker(models.Model):
    """
    A worker: one supervisor with its processors, until the last of them has ended.

    ``id`` is a random number that the supervisor drew when it started, ``launcher`` the
    pid of the process that was started by hand or by a service manager, and ``generation``
    counts the supervisors of that one, from 1. Who was not seen for UNSEEN is gone; one
    that is ``leaving`` ends what runs and takes no more. ``routes_text`` is JSON: the types
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
    started_at = ReadableDateTimeField(_("started at"))
    seen_at = ReadableDateTimeField(_("seen at"))
    drifted_at = ReadableDateTimeField(_("drifted at"), null=True)
    problem = models.TextField(_("problem"), db_default="")

    objects = WorkerQuerySet.as_manager()

    class Meta:
        verbose_name = _("worker")
        verbose_name_plural = in_order(1, _("workers"))
        default_permissions = ("view",)
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

    def unreadable(self) -> list[str]:
        """Return which of the columns that decide what it takes are not as a worker writes them."""
        found = [] if parsed(self.queues_text) == self.queues else ["queues"]
        is_known = self.routes is not None or self.routes_text == "null"
        return found if is_known else [*found, "routes"]

    def is_gone(self, now: datetime) -> bool:
        return self.seen_at <= now - UNSEEN
