"""
Why a task does not run now: the first condition that holds it back.

Each look is into an index and reads a bounded number of rows, whatever is stored.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from typing import Any

from django.db.models import Exists, IntegerField, OuterRef, QuerySet, Subquery

from django_perfectqueue import models
from django_perfectqueue.fairness import edit
from django_perfectqueue.fairness.limits import in_force, next_at
from django_perfectqueue.lib.printable import printable
from django_perfectqueue.models.batch import SEQUENCE
from django_perfectqueue.models.fields import ServerNow
from django_perfectqueue.models.worker import routes_in
from django_perfectqueue.store.arithmetic.fair_order import lane_id, turn_of
from django_perfectqueue.store.arithmetic.rate_limit import named, scoped, split

from .family import exact, stops_sequence, summed
from .reasons import COUNTED, Code, Reason
from .workers import WORKERS

__all__ = ["Case", "Code", "Reason", "may_know", "why_waiting", "workers_serving"]


def why_waiting(task: models.Task, *, using: str, now: datetime | None = None) -> Reason:
    """Return what holds a task back, or that it is running or has ended."""
    rows = models.Ticket.objects.using(using).annotate(clock=ServerNow())
    ticket: Any = None if task.outcome else rows.filter(pk=task.pk).first()
    if ticket is None:
        return Reason(code=Code.ENDED, name=task.outcome)
    return Case(task, ticket, using, now or ticket.clock).reason


def workers_serving(
    *, using: str, drained: bool = False, now: datetime | None = None
) -> list[models.Worker]:
    """Return the workers that take tasks, those seen last first; then also who is ``drained``."""
    rows = models.Worker.objects.using(using).staying(now or ServerNow())
    rows = rows.only("queues_text", "routes_text", "states_text", "problem", "draining")[:WORKERS]
    return [worker for worker in rows if drained or not worker.draining]


class Rows(Subquery):
    """How many rows there are, of the first COUNTED and one."""

    template = "(SELECT COUNT(*) FROM (%(subquery)s) pq_rows)"

    def __init__(self, rows: QuerySet[Any]) -> None:
        super().__init__(rows[: COUNTED + 1], output_field=IntegerField())


class Case:
    """One task that has yet to end, looked at from all sides until one explains it."""

    def __init__(self, task: models.Task, ticket: models.Ticket, using: str, now: datetime) -> None:
        self.task = task
        self.ticket = ticket
        self.using = using
        self.now = now

    @property
    def reason(self) -> Reason:
        """The most decisive reason."""
        return next(self.reasons())

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
        if self.ticket.state == models.State.RUNNING and self.wait > 0:
            yield self.timed(Code.RUNNING)
        elif self.ticket.state == models.State.BLOCKED:
            yield self.by_its_parents()

    def by_its_parents(self) -> Reason:
        """Name one that it waits for: one that has failed, if any."""
        rows = models.Dependency.objects.using(self.using).filter(
            child_id=self.task.pk, state__lt=models.Dependency.State.MET
        )
        links = rows.order_by("-state").only("parent_id", "state", "if_failed")[: COUNTED + 1]
        if not links:
            return self.by_its_wait() or Reason(code=Code.BLOCKED)
        first, count = links[0], len(links)
        waits, stopped = Code.BLOCKED, Code.PARENT_FAILED
        if first.if_failed == SEQUENCE:
            waits, stopped = Code.SEQUENCE, Code.SEQUENCE_STOPPED
            if dead := stops_sequence(self.task.pk, using=self.using):
                first.parent_id, first.state = dead, models.Dependency.State.FAILED
        elif first.parent_id < 0:
            return self.by_its_batch(-first.parent_id)
        parents = models.Task.objects.using(self.using).select_related("dead_letter")
        parent = parents.filter(pk=first.parent_id).only("key", "ended_at", "dead_letter").first()
        if parent is None:
            return Reason(code=Code.BLOCKED)
        name = printable(parent.key)
        if first.state == models.Dependency.State.FAILED and parent.ended_at:
            return Reason(
                code=stopped,
                name=name,
                at=parent.ended_at,
                wait=(parent.ended_at - self.now).total_seconds(),
                parents=count,
                error=printable(parent.dead_letter.group or parent.outcome),
            )
        return Reason(code=waits, name=name, parents=count)

    def has_waited(self) -> bool:
        rows = models.Step.objects.using(self.using).filter(task_id=self.task.pk)
        return rows.filter(kind__gt=models.Step.Kind.SIGNAL).exists()

    def by_its_wait(self) -> Reason | None:
        """Name the newest of its waits, where its last attempt has ended by that."""
        if self.ticket.last_ending != models.LastEnding.SUSPENDED:
            return None
        kinds = models.Step.Kind
        rows = models.Step.objects.using(self.using).filter(task_id=self.task.pk)
        wait = rows.filter(kind__in=(kinds.WAIT, kinds.SLEEP)).order_by("-pk").first()
        if wait is None:
            return None
        code = Code.SIGNAL if wait.kind == kinds.WAIT else Code.SLEEPING
        return replace(self.timed(code), name=printable(wait.name), since=wait.kept_at)

    def by_its_batch(self, batch: int) -> Reason:
        rows = models.Batch.objects.using(self.using).filter(pk=batch)
        for row in exact(summed(rows)):
            count = row.total - row.finished - row.dead
            code = Code.BATCH_OPEN
            if row.ended_at and not count:
                code, count = Code.BATCH_FAILED, row.dead
            return Reason(code=code, name=printable(row.name), parents=count)
        return Reason(code=Code.BLOCKED)

    def by_its_expiry(self) -> Iterator[Reason]:
        at = self.task.expires_at
        begun = self.ticket.last_ending in models.GOES_ON
        begun = begun or self.ticket.state == models.State.RUNNING
        if at is not None and at <= self.now and not (begun or self.has_waited()):
            wait = (at - self.now).total_seconds()
            yield Reason(code=Code.EXPIRED, at=at, wait=wait)

    def by_the_clock(self) -> Iterator[Reason]:
        """Check whether a worker gave it back because it has no handler for its type."""
        if self.ticket.state != models.State.SCHEDULED or self.wait <= 0:
            return
        if wait := self.by_its_wait():
            yield wait
        last, held = self.ticket.last_ending, list(self.by_workers())
        if self.ticket.is_parked or last == models.LastEnding.RELEASED:
            yield from held
        if self.ticket.is_parked:
            return
        code = Code.RETRYING if last in models.UNFINISHED else Code.SCHEDULED
        why = {one.code.value: one.name for one in held if one.code != Code.UNKNOWN_TYPE}
        yield replace(self.timed(code), unserved="".join(why), name="".join(why.values()))

    def by_workers(self) -> Iterator[Reason]:
        workers = workers_serving(using=self.using, drained=True, now=self.now)
        here = [worker for worker in workers if self.task.queue in worker.queues]
        listening = {worker.routes_text for worker in here if not worker.draining}
        if not listening:
            yield Reason(code=Code.DRAINED if here else Code.NO_WORKER, name=self.task.queue)
        elif not any(may_know(routes, self.task.type) for routes in listening):
            yield Reason(code=Code.UNKNOWN_TYPE, name=self.task.type)

    def by_a_lapsed_lease(self) -> Iterator[Reason]:
        if self.ticket.state == models.State.RUNNING:
            yield self.timed(Code.STALLED)

    def by_its_user(self) -> Iterator[Reason]:
        lane = self.lane
        if lane.paused:
            share = edit.share_in_force(self.task.user, self.task.queue, using=self.using)
            yield self.paused(Code.USER_PAUSED, self.task.user, share)
        elif lane.max_running is not None and lane.running >= lane.max_running:
            yield Reason(
                code=Code.USER_CAP, name=self.task.user, running=lane.running, most=lane.max_running
            )

    def by_limits(self) -> Iterator[Reason]:
        """Those of its limits that let none start: paused ones first, then the longest wait."""
        task = self.task
        keys = named(split(task.limits)) | scoped(task.queue, task.type, task.user)
        found = [self.by_limit(*one) for one in in_force(keys, using=self.using).items()]
        held = [reason for reason in found if reason]
        order = list(Code)
        yield from sorted(held, key=lambda one: (order.index(one.code), -(one.wait or 0)))

    def by_limit(self, key: str, limit: models.Limit) -> Reason | None:
        of_queue = limit.scope == models.Limit.Scope.QUEUE
        name = key.partition(":")[2] if limit.scope == models.Limit.Scope.NAME else key
        if limit.paused and of_queue:
            return self.paused(Code.QUEUE_PAUSED, self.task.queue, limit)
        if limit.paused:
            return self.paused(Code.LIMIT_PAUSED, name, limit)
        running = limit.meter.running
        if limit.max_running is not None and running >= limit.max_running:
            return Reason(code=Code.LIMIT_CAP, name=name, running=running, most=limit.max_running)
        if at := next_at(limit, self.now):
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
        waits = self.behind or self.lane
        if waits.id == self.ticket.lane and not waits.has_waiting:
            yield Reason(code=Code.LANE_ASLEEP, name=self.task.user)

    def check_position(self) -> Reason:
        """Return its place in line, by one statement."""
        own = (self.ticket.rank, self.ticket.run_at, self.ticket.pk)
        # The first that wait in its lane. No values_list(), of which Django would order by what
        # is selected, past the index.
        line: Any = models.Ticket.objects.using(self.using)
        line = line.filter(lane=self.ticket.lane, state=models.State.WAITING).only("rank", "run_at")
        earlier = {f"earlier_{number}": Rows(rows) for number, rows in enumerate(self.earlier())}
        line = line.annotate(**earlier, yields=Subquery(self.users_with_steps()[:1]))
        first = list(line.order_by("rank", "run_at", "task_id")[:COUNTED])
        before = sum((one.rank, one.run_at, one.pk) < own for one in first)
        lanes = None
        if first and earlier:
            lanes = min(sum(getattr(first[0], name) for name in earlier), COUNTED + 1)
        if lanes == before == 0 and first[0].yields is not None:
            return Reason(code=Code.NEXT_STEP, name=first[0].yields, position=1, lanes=0)
        return Reason(code=Code.POSITION, name=self.task.user, position=before + 1, lanes=lanes)

    def users_with_steps(self) -> Any:
        """Return the users of running tasks that may yield to it, as they have kept steps."""
        steps = models.Step.objects.filter(task=OuterRef("pk"), kind=models.Step.Kind.STEP)
        held = models.Ticket.objects.filter(Exists(steps), timer_at__gt=self.now)
        held = held.filter(state=models.State.RUNNING, task__queue=self.task.queue)
        others = held.exclude(task__user=self.task.user)
        return others.order_by("timer_at").values("task__user")

    def earlier(self) -> Iterator[QuerySet[Any]]:
        """
        Yield the users, and the lanes behind the limit that holds it back, with an earlier turn;
        none where it has no turn yet.
        """
        if not self.behind and self.lane.id != self.ticket.lane:
            return
        users = models.Account.objects.filter(queue=self.task.queue)
        # Compared like this, it is found by the index on every database.
        users = users.filter(ready__in=[True], turn__lt=turn_of(self.lane))
        # A turn is rounded on the way, so the own one might seem to come before itself.
        yield users.exclude(pk=self.lane.id).order_by().values("pk")
        if self.behind and self.behind.held_by:
            lanes = models.Lane.objects.filter(
                held_by=self.behind.held_by, turn__lt=turn_of(self.lane)
            )
            yield lanes.exclude(account=self.lane.id).order_by().values("pk")

    @cached_property
    def lane(self) -> models.Account:
        """Its user's account; one that has yet to be made has its user's share."""
        ids = {self.behind.account} if self.behind else {self.ticket.lane, self.plain}
        found = models.Account.objects.using(self.using).in_bulk(ids)
        return found.get(self.ticket.lane) or next(iter(found.values()), None) or self.new_lane()

    @cached_property
    def behind(self) -> models.Lane | None:
        """Its lane, where it keeps to limits: the plain one has no row."""
        if self.ticket.lane == self.plain:
            return None
        return models.Lane.objects.using(self.using).filter(pk=self.ticket.lane).first()

    @property
    def plain(self) -> int:
        """Its user's account, which is also the lane of tasks without limits."""
        return lane_id(self.task.queue, self.task.user)

    def new_lane(self) -> models.Account:
        share = edit.share_in_force(self.task.user, self.task.queue, using=self.using)
        return models.Account(max_running=share.max_running, paused=share.paused)

    def paused(self, code: Code, name: str, rule: models.Pausable) -> Reason:
        at = rule.paused_until
        wait = (at - self.now).total_seconds() if at else None
        return Reason(code=code, name=name, at=at, wait=wait, by=rule.paused_by, note=rule.note)

    def timed(self, code: Code) -> Reason:
        return Reason(code=code, at=self.ticket.timer_at, wait=self.wait)

    @property
    def wait(self) -> float:
        """The seconds until the clock has something to do with it."""
        due = self.ticket.timer_at
        return (due - self.now).total_seconds() if due else 0.0


def may_know(routes_text: str, type_: str) -> bool:
    """Return whether a worker may have a handler for a type; True where that is unknown."""
    routes = routes_in(routes_text)
    if routes is None or type_ in routes["types"]:
        return True
    try:
        return any(re.search(source, type_, flags) for source, flags in routes["patterns"])
    except re.error:  # another Python's
        return True
