"""
Why a task does not run now: the first condition that holds it back.

Each look is into an index and reads a bounded number of rows, whatever is stored.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import cached_property, reduce
from operator import or_
from typing import Any

from django.db import models
from django.db.models import Q
from django.utils.formats import number_format
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from django_perfectqueue.exceptions import NotFoundError
from django_perfectqueue.fairness import edit
from django_perfectqueue.lib.durations import long_duration, per
from django_perfectqueue.lib.printable import printable
from django_perfectqueue.models import (
    UNFINISHED,
    Batch,
    Dependency,
    Lane,
    LastEnding,
    Limit,
    Meter,
    State,
    Task,
    Ticket,
    Worker,
)
from django_perfectqueue.models.fields import ServerNow
from django_perfectqueue.store import batch_state
from django_perfectqueue.store.arithmetic.fair_order import lane_id
from django_perfectqueue.store.arithmetic.limit_keys import named, scoped, split
from django_perfectqueue.store.arithmetic.rate_limit import is_too_far, opens_at

COUNTED = 1_000
WORKERS = 1_000


class Code(models.TextChoices):
    """What can hold a task back, or that nothing does; in the order in which they are asked."""

    ENDED = "ended"
    RUNNING = "running"
    PARENT_FAILED = "parent_failed"
    BLOCKED = "blocked"
    BATCH_OPEN = "batch_open"
    BATCH_FAILED = "batch_failed"
    EXPIRED = "expired"
    SCHEDULED = "scheduled"
    RETRYING = "retrying"
    NO_WORKER = "no_worker"
    UNKNOWN_TYPE = "unknown_type"
    STALLED = "stalled"
    USER_PAUSED = "user_paused"
    USER_CAP = "user_cap"
    QUEUE_PAUSED = "queue_paused"
    LIMIT_PAUSED = "limit_paused"
    LIMIT_CAP = "limit_cap"
    LIMIT_RATE = "limit_rate"
    LANE_ASLEEP = "lane_asleep"
    POSITION = "position"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """
    Why a task does not run now.

    ``name`` is the user, queue, type, limit or outcome that it is about. ``at`` is when the
    clock ends it, or has ended the lease, and ``wait`` the seconds until then. ``running``
    tasks of at most ``most`` fill a cap; ``rate`` may start in each ``period`` of seconds.
    ``parents`` is how many tasks it waits for; ``name`` is one of them, that has failed if any,
    or their batch. ``error`` is why that one failed.
    ``position`` is the task's place in its user's line, 1 for the first, and ``lanes`` how
    many other lanes are served before that; COUNTED + 1 says that there are more.
    """

    code: Code
    name: str = ""
    at: datetime | None = None
    wait: float | None = None
    running: int | None = None
    most: int | None = None
    rate: int | None = None
    period: float | None = None
    parents: int | None = None
    error: str = ""
    position: int | None = None
    lanes: int | None = None

    @property
    def sentence(self) -> str:
        """The reason in words, in the language of the one who asks."""
        if self.code == Code.POSITION:
            return describe_position(self.position or 1, self.lanes)
        if self.code == Code.BLOCKED and self.parents:
            return describe_parents(self.name, self.parents)
        return str(SENTENCES[self.code]) % {
            **asdict(self),
            "rate": per(self.rate or 0, self.period or 0.0),
            "wait": long_duration(abs(self.wait or 0.0)),
        }

    def facts(self) -> dict[str, object]:
        """Return the code, the sentence and what is known, for programs."""
        known = {name: value for name, value in asdict(self).items() if value not in (None, "")}
        if self.at:
            known["at"] = self.at.isoformat()
        return {**known, "code": self.code.value, "sentence": self.sentence}


SENTENCES = {
    Code.ENDED: _("It has ended."),
    Code.RUNNING: _("A processor has it, and renews the lease as long as it works on it."),
    Code.EXPIRED: _("It expired %(wait)s ago; the next worker closes it, and does not run it."),
    Code.PARENT_FAILED: _(
        "It waits for task '%(name)s', which ended %(wait)s ago and has not finished"
        " (%(error)s): retry that one, or cancel this one."
    ),
    Code.BLOCKED: _("It waits for other tasks."),
    Code.BATCH_OPEN: _("It waits for batch '%(name)s'; open tasks: %(parents)s."),
    Code.BATCH_FAILED: _(
        "It waits for batch '%(name)s'; tasks that have not finished: %(parents)s. Retry these,"
        " or cancel this one."
    ),
    Code.SCHEDULED: _("It is due in %(wait)s."),
    Code.RETRYING: _("An attempt did not finish it; it is due again in %(wait)s."),
    Code.NO_WORKER: _("No worker serves queue '%(name)s'."),
    Code.UNKNOWN_TYPE: _("No worker that serves its queue knows the type '%(name)s'."),
    Code.STALLED: _("Its lease ran out %(wait)s ago; the next free processor takes it."),
    Code.USER_PAUSED: _("Its user is paused, by a fair share."),
    Code.USER_CAP: _("Its user runs %(running)d tasks, of %(most)d at most."),
    Code.QUEUE_PAUSED: _("Queue '%(name)s' is paused."),
    Code.LIMIT_PAUSED: _("Limit '%(name)s' is paused."),
    Code.LIMIT_CAP: _("Limit '%(name)s' lets %(most)d tasks run at once, and %(running)d run."),
    Code.LIMIT_RATE: _("Limit '%(name)s' lets %(rate)s start, the next one in %(wait)s."),
    Code.LANE_ASLEEP: _(
        "Its lane sleeps, since the program that submitted it did not wake it; a worker does so"
        " within seconds."
    ),
}


def describe_position(position: int, lanes: int | None) -> str:
    """Return a place in line in words."""
    if position > COUNTED:
        many = gettext("More than %s tasks are before it in its user's line.")
        sentence = many % grouped(COUNTED)
    else:
        sentence = gettext("It is number %s in its user's line.") % grouped(position)
    if lanes is None:
        return sentence
    if not lanes:
        return f"{sentence} " + gettext("Its lane is the next.")
    if lanes > COUNTED:
        return f"{sentence} " + gettext("More than %s lanes are served before.") % grouped(COUNTED)
    before = ngettext("%s lane is served before.", "%s lanes are served before.", lanes)
    return f"{sentence} " + before % grouped(lanes)


def describe_parents(name: str, parents: int) -> str:
    """Return in words for how many tasks one waits."""
    if parents == 1:
        return gettext("It waits for task '%s'.") % name
    more = gettext("more than %s") if parents > COUNTED else "%s"
    count = more % grouped(min(parents, COUNTED))
    return gettext("It waits for %(count)s tasks, among them '%(name)s'.") % {
        "count": count,
        "name": name,
    }


def grouped(number: int) -> str:
    return number_format(number, force_grouping=True)


def why_waiting(
    task: Task,
    *,
    using: str,
    now: datetime | None = None,
    ticket: Ticket | None = None,
    lane: Lane | None = None,
) -> Reason:
    """
    Return what holds a task back, or that it is running or has ended.

    With ``now``, a ``ticket`` and its ``lane`` that were read just then are not read again.
    """
    if now is None or ticket is None:
        rows = Ticket.objects.using(using).annotate(clock=ServerNow())
        found: Any = None if task.outcome else rows.filter(pk=task.pk).first()
        if found is None:
            return Reason(code=Code.ENDED, name=task.outcome)
        ticket, now = found, now or found.clock
    case = Case(task, ticket, using, now)
    if lane is not None:
        case.lane = lane
    return next(case.reasons())


def workers_serving(*, using: str, now: datetime | None = None) -> Sequence[Worker]:
    """Return the workers that take tasks, those seen last first; without ``now``, at present."""
    workers = Worker.objects.using(using)
    now = now or workers.values_list(ServerNow(), flat=True).first()
    if now is None:
        return ()
    found = workers.serving(now).order_by("-seen_at")
    return list(found.only("queues_text", "routes_text")[:WORKERS])


class Case:
    """One task that has yet to end, looked at from all sides until one explains it."""

    def __init__(self, task: Task, ticket: Ticket, using: str, now: datetime) -> None:
        self.task = task
        self.ticket = ticket
        self.using = using
        self.now = now

    def reasons(self) -> Iterator[Reason]:
        """Yield what holds it back, the most decisive first; its place in line is the last."""
        yield from self.in_hand()
        yield from self.by_its_expiry()
        yield from self.by_the_clock()
        yield from self.by_workers()
        yield from self.by_a_lapsed_lease()
        yield from self.by_its_user()
        yield from self.by_limits()
        yield from self.by_its_lane()
        yield self.check_position()

    def in_hand(self) -> Iterator[Reason]:
        if self.ticket.state == State.RUNNING and self.wait > 0:
            yield self.timed(Code.RUNNING)
        elif self.ticket.state == State.BLOCKED:
            yield self.by_its_parents()

    def by_its_parents(self) -> Reason:
        """Name one that it waits for: one that has failed, if any."""
        rows = Dependency.objects.using(self.using).filter(
            child_id=self.task.pk, state__lt=Dependency.State.MET
        )
        # The columns of an index, so that the first is found without sorting.
        first = rows.order_by("-state").first()
        if first is None:
            return Reason(code=Code.BLOCKED)
        count = len(rows.order_by().values_list("state", flat=True)[: COUNTED + 1])
        if first.parent_id < 0:
            return self.by_its_batch(-first.parent_id)
        parents = Task.objects.using(self.using).select_related("dead_letter")
        parent = parents.filter(pk=first.parent_id).only("key", "ended_at", "dead_letter").first()
        if parent is None:
            return Reason(code=Code.BLOCKED)
        name = printable(parent.key)
        if first.state == Dependency.State.FAILED and parent.ended_at:
            return Reason(
                code=Code.PARENT_FAILED,
                name=name,
                at=parent.ended_at,
                wait=(parent.ended_at - self.now).total_seconds(),
                parents=count,
                error=printable(parent.dead_letter.group or parent.outcome),
            )
        return Reason(code=Code.BLOCKED, name=name, parents=count)

    def by_its_batch(self, batch: int) -> Reason:
        try:
            state = batch_state(batch, using=self.using)
            name = Batch.objects.using(self.using).values_list("name", flat=True).get(pk=batch)
        except (NotFoundError, Batch.DoesNotExist):
            return Reason(code=Code.BLOCKED)
        open_ = bool(state.open) or not state.ended_at
        return Reason(
            code=Code.BATCH_OPEN if open_ else Code.BATCH_FAILED,
            name=printable(name),
            parents=state.open if open_ else state.dead,
        )

    def by_its_expiry(self) -> Iterator[Reason]:
        at = self.task.expires_at
        if at is not None and at <= self.now and self.ticket.state != State.RUNNING:
            wait = (at - self.now).total_seconds()
            yield Reason(code=Code.EXPIRED, at=at, wait=wait)

    def by_the_clock(self) -> Iterator[Reason]:
        """Check whether a worker gave it back because it has no handler for its type."""
        if self.ticket.state != State.SCHEDULED or self.wait <= 0:
            return
        last = self.ticket.last_ending
        if self.ticket.is_parked or last == LastEnding.RELEASED:
            yield from self.by_workers()
        if self.ticket.is_parked:
            return
        yield self.timed(Code.RETRYING if last in UNFINISHED else Code.SCHEDULED)

    def by_workers(self) -> Iterator[Reason]:
        listening = list(self.listening())
        if not listening:
            yield Reason(code=Code.NO_WORKER, name=self.task.queue)
        elif not any(may_know(routes, self.task.type) for routes in set(listening)):
            yield Reason(code=Code.UNKNOWN_TYPE, name=self.task.type)

    def listening(self) -> Iterator[str]:
        """Yield the routes of the workers that serve its queue."""
        for worker in workers_serving(using=self.using, now=self.now):
            if self.task.queue in worker.queues:
                yield worker.routes_text

    def by_a_lapsed_lease(self) -> Iterator[Reason]:
        if self.ticket.state == State.RUNNING:
            yield self.timed(Code.STALLED)

    def by_its_user(self) -> Iterator[Reason]:
        lane = self.lane
        if lane.paused:
            yield Reason(code=Code.USER_PAUSED, name=self.task.user)
        elif lane.max_running is not None and lane.running >= lane.max_running:
            yield Reason(
                code=Code.USER_CAP,
                name=self.task.user,
                running=lane.running,
                most=lane.max_running,
            )

    def by_limits(self) -> Iterator[Reason]:
        """Those of its limits that let none start: paused ones first, then the longest wait."""
        limits = self.limits()
        if not limits:
            return
        meters = Meter.objects.using(self.using).in_bulk([limit.key for limit in limits])
        found = [self.by_limit(limit, meters.get(limit.key)) for limit in limits]
        held = [reason for reason in found if reason]
        order = list(Code)
        yield from sorted(held, key=lambda one: (order.index(one.code), -(one.wait or 0)))

    def limits(self) -> list[Limit]:
        """Return those that it lists, and those of its queue, type and user."""
        task = self.task
        keys = named(split(task.limits)) | scoped(task.queue, task.type, task.user)
        owners = (key.partition(":") for key in keys)
        held = reduce(or_, (Q(scope=scope, name=name) for scope, _colon, name in owners))
        return list(Limit.objects.using(self.using).filter(held))

    def by_limit(self, limit: Limit, meter: Meter | None) -> Reason | None:
        of_queue = limit.scope == Limit.Scope.QUEUE
        name = limit.name if limit.scope == Limit.Scope.NAME else limit.key
        if limit.paused and of_queue:
            return Reason(code=Code.QUEUE_PAUSED, name=limit.name)
        if limit.paused:
            return Reason(code=Code.LIMIT_PAUSED, name=name)
        running = meter.running if meter else 0
        if limit.max_running is not None and running >= limit.max_running:
            return Reason(code=Code.LIMIT_CAP, name=name, running=running, most=limit.max_running)
        if (at := next_start(limit, meter, self.now)) and at > self.now:
            return Reason(
                code=Code.LIMIT_RATE,
                name=name,
                rate=limit.rate,
                period=limit.period,
                at=at,
                wait=(at - self.now).total_seconds(),
            )
        return None

    def by_its_lane(self) -> Iterator[Reason]:
        """Check whether the lane is to be woken; one that has yet to be made has no turn."""
        if self.lane.id == self.ticket.lane and not self.lane.has_waiting:
            yield Reason(code=Code.LANE_ASLEEP, name=self.task.user)

    def check_position(self) -> Reason:
        return Reason(
            code=Code.POSITION,
            name=self.task.user,
            position=self.tasks_before() + 1,
            lanes=self.lanes_before(),
        )

    def tasks_before(self) -> int:
        line = Ticket.objects.using(self.using).filter(lane=self.ticket.lane, state=State.WAITING)
        own = (self.ticket.rank, self.ticket.run_at, self.ticket.pk)
        first = line.order_by("rank", "run_at", "task_id")[:COUNTED]
        # No values_list(), of which Django would order by what is selected, past the index.
        places = ((one.rank, one.run_at, one.pk) for one in first.only("rank", "run_at"))
        return sum(other < own for other in places)

    def lanes_before(self) -> int | None:
        """Return how many ready lanes have an earlier turn, or None where it has no turn yet."""
        if self.lane.id != self.ticket.lane:
            return None
        lanes = Lane.objects.using(self.using).filter(queue=self.task.queue)
        # Compared like this, it is found by the index on every database.
        ready = lanes.filter(ready__in=[True], turn__lt=self.lane.turn)
        found = sum(
            len(ready.filter(held_by=hold).values_list("pk", flat=True)[: COUNTED + 1])
            for hold in {0, self.lane.held_by}
        )
        return min(found, COUNTED + 1)

    @cached_property
    def lane(self) -> Lane:
        """Its lane; one that has yet to be made has its user's share."""
        own = lane_id(self.task.queue, self.task.user)
        found = Lane.objects.using(self.using).in_bulk([self.ticket.lane, own])
        return found.get(self.ticket.lane) or found.get(own) or self.new_lane()

    def new_lane(self) -> Lane:
        share = edit.share_in_force(self.task.user, self.task.queue, using=self.using)
        return Lane(max_running=share.max_running, paused=share.paused)

    def timed(self, code: Code) -> Reason:
        return Reason(code=code, at=self.ticket.alarm_at, wait=self.wait)

    @property
    def wait(self) -> float:
        """The seconds until the clock has something to do with it."""
        alarm = self.ticket.alarm_at
        return (alarm - self.now).total_seconds() if alarm else 0.0


def next_start(limit: Limit, meter: Meter | None, now: datetime) -> datetime | None:
    """Return when a limit's rate lets the next task start, or None where it need not wait."""
    if not limit.rate or meter is None or meter.next_at is None:
        return None
    interval, burst = limit.period / limit.rate, limit.burst or limit.rate
    if is_too_far((meter.next_at - now).total_seconds(), interval, burst):
        return None
    return opens_at(meter.next_at, interval, burst)


def may_know(routes_text: str, type_: str) -> bool:
    """Return whether a worker may have a handler for a type; True where that is unknown."""
    routes: dict[str, Any] | None = json.loads(routes_text)
    if routes is None or type_ in routes["types"]:
        return True
    try:
        return any(re.search(source, type_, flags) for source, flags in routes["patterns"])
    except re.error:  # another Python's
        return True
