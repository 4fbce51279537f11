"""The API for programs: put schedules, look at them, and steer them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Literal

from django.db import IntegrityError
from django.db.models import QuerySet
from django.db.models.functions import Substr

from django_perfectqueue import exceptions, store
from django_perfectqueue.conf import options
from django_perfectqueue.fairness import audit
from django_perfectqueue.lib.async_twins import twin
from django_perfectqueue.lib.checks import choice, nearest
from django_perfectqueue.models import Change, IfFailed, Schedule, Task
from django_perfectqueue.payload.inputs import When
from django_perfectqueue.queue import Queue, TaskHandle
from django_perfectqueue.store import schedules
from django_perfectqueue.store.database.transaction import database
from django_perfectqueue.store.records.journal import DID
from django_perfectqueue.store.values import Now, as_text

from .terms import CHECKS, TIMING, Terms, apply, at, checked_name, checked_payload, checked_type

if TYPE_CHECKING:
    from typing_extensions import Unpack

NEIGHBOURS = 1_000
BACKFILL = choice("allow", "queue")


def in_turn(given: Sequence[store.Submission], *, using: str) -> dict[tuple[str, str], int]:
    """Submit tasks of which each waits for the end of the one before."""
    linked = [given[0]]
    for task in given[1:]:
        before = store.Parent(linked[-1].queue, linked[-1].key)
        linked.append(task._replace(after=(*task.after, before), if_failed=IfFailed.RUN))
    return store.dependencies.submit_linked(store.submit, linked, using=using)


class Schedules:
    """
    The schedules of one database.

    ``schedules[name]`` names one whether or not it exists. Each method works in the caller's
    transaction where there is one, and has an async twin with an ``a`` before its name. ``by``
    is recorded as the person who did it; ``now`` takes the place of the server's clock.
    """

    def __init__(self, *, using: str | None = None) -> None:
        self._using = using

    @property
    def using(self) -> str:
        """The alias of the database that holds the schedules."""
        return self._using or database()

    def put(
        self,
        name: str,
        type: str,  # noqa: A002
        data: object = None,
        *,
        by: str = "",
        now: Now = None,
        **terms: Unpack[Terms],
    ) -> ScheduleHandle:
        """
        Store a schedule, or change the one of this name into this one; see Terms.

        Its tasks take along what the setting CONTEXT captures here, or ``context``.
        A pause, its note and the counts stay. The first tick is later than now, also where
        the timing is changed. Raise InvalidScheduleError, and store nothing, for an unknown
        type, time zone or term, a cron expression that is wrong or never comes, both or
        neither of ``cron`` and ``every``, an interval below a second, and where the user
        would have more schedules than SCHEDULES_PER_USER.
        """
        if isinstance(getattr(data, "terms", None), dict):
            raise exceptions.InvalidScheduleError(
                "The third argument is the data of the tasks. Give the timing by its name:"
                " every='10m' or cron='30 3 * * *'."
            )
        handle = self[name]
        type_ = checked_type(type, using=self.using)
        payload = checked_payload(data, type_)

        def store_it() -> None:
            with handle._changed(by, now, insert=True) as (row, moment):
                row.type, row.payload = type_, payload
                if row.origin == Schedule.Origin.GONE:
                    row.origin = Schedule.Origin.ROW
                apply(row, {**whole(), **terms}, moment)

        try:
            store.database.with_retries(store_it, using=self.using)
        except IntegrityError:
            # Another has put it after the look for it: that one is changed.
            store.database.with_retries(store_it, using=self.using)
        return handle

    def get(self, name: str) -> Schedule:
        """Return the row of a schedule; raise NotFoundError where there is none."""
        return self[name].row()

    def __getitem__(self, name: str) -> ScheduleHandle:
        return ScheduleHandle(checked_name(name), self.using)

    def list(self) -> QuerySet[Schedule]:
        """Return all schedules, as a QuerySet."""
        return Schedule.objects.using(self.using).order_by("name")

    def fire(self, *, now: Now = None) -> None:
        """Submit what is due, as workers do by themselves; for programs without a worker."""
        while store.schedules.fire_schedules(using=self.using, now=now):
            pass

    aput = twin(put)
    aget = twin(get)
    afire = twin(fire)


@dataclass(frozen=True, slots=True)
class ScheduleHandle:
    """A schedule by its name: it may or may not exist. Methods raise NotFoundError if not."""

    name: str
    using: str

    def exists(self) -> bool:
        """Return whether there is such a schedule."""
        return self._rows().exists()

    def row(self) -> Schedule:
        """Return its row, with ``state``, times and counts."""
        found = self._rows().first()
        if found is None:
            raise self._missing()
        return found

    def change(self, *, by: str = "", now: Now = None, **terms: Unpack[Terms]) -> None:
        """
        Change only the terms that are given; raise InvalidScheduleError as put() does.

        So its tasks go on to take along the same, unless ``context`` is given.

        Where that changes the timing, the next tick is the first one after now.
        """
        with self._changed(by, now) as (row, moment):
            apply(row, terms, moment)

    def pause(self, note: str = "", *, by: str = "", now: Now = None) -> None:
        """Submit nothing until unpause(); ticks that wait for the task before are dropped."""
        with self._changed(by, now) as (row, _moment):
            schedules.pause(row, note, by or audit.actor.get())

    def unpause(self, *, by: str = "", now: Now = None) -> None:
        """Go on with the first tick after now; backfill() makes up what was missed."""
        with self._changed(by, now) as (row, moment):
            row.paused, row.note, row.paused_by, row.failures = False, "", "", 0
            schedules.start_over(row, moment)

    def trigger(self, *, by: str = "", now: Now = None) -> TaskHandle:
        """Submit its task now, whatever its ticks and its overlap say; return the task."""
        with self._changed(by, now, did="triggered") as (row, moment):
            schedules.submit_ticks(row, [moment], moment, using=self.using)
        return Queue(row.queue, using=self.using)[schedules.key_of(row.name, moment)]

    def next(self, count: int = 5, *, now: Now = None) -> list[datetime]:
        """Return when its next tasks are to be submitted; none if paused, ended or broken."""
        row = self.row()
        if row.next_at is None:
            return []
        try:
            ticks = [
                row.next_at,
                *islice(schedules.timing_of(row).after(row.next_at), max(0, count - 1)),
            ]
        except exceptions.PerfectQueueError:
            return []  # The next look stores the error in ``problem``.
        left = count if row.remaining is None else min(count, row.remaining)
        return [schedules.due_time(row, tick) for tick in ticks[:left]]

    def last(self, count: int = 10) -> list[Task]:
        """Return its last tasks that are retained, with their ``status``, the last tick first."""
        row = self.row()
        tasks = Queue(row.queue, using=self.using).list()
        # Keys of a schedule sort by their ticks, to the second; ":" is the character after "9".
        own = tasks.filter(key__gt=f"{row.name}@0", key__lt=f"{row.name}@:")
        # A schedule may be named "a@2b": "@" is in its keys after "a@", and in no tick.
        own = own.annotate(tick=Substr("key", len(row.name) + 2)).exclude(tick__contains="@")
        return list(own.order_by("-key")[:count])

    def backfill(
        self,
        since: When,
        until: When,
        *,
        overlap: Literal["allow", "queue"] = "allow",
        dry_run: bool = False,
        by: str = "",
        now: Now = None,
    ) -> list[datetime]:
        """
        Submit the tasks of all ticks from ``since`` to ``until`` that have none yet.

        With ``overlap`` "queue" each of them waits for the end of the one before. Return these
        ticks; with ``dry_run`` only that. Raise InvalidScheduleError where they are more than
        1,000.
        """
        BACKFILL.require("overlap", overlap, exceptions.InvalidScheduleError)
        moment = now or store.records.clock(using=self.using)
        first, last = at("since", since, moment), at("until", until, moment)
        if first is None or last is None:
            raise exceptions.InvalidScheduleError("A backfill needs since and until.")
        row = self.row()
        following = schedules.timing_of(row).after(first - schedules.LEAST)
        ticks = list(
            islice(takewhile(lambda tick: tick <= last, following), schedules.MOST_AT_ONCE + 1)
        )
        if len(ticks) > schedules.MOST_AT_ONCE:
            raise exceptions.InvalidScheduleError(
                f"From {first} to {last} there are more than {schedules.MOST_AT_ONCE} ticks. Give a"
                " shorter range."
            )
        ticks = schedules.without_tasks(row, ticks, using=self.using)
        if not dry_run and ticks:
            with self._changed(by, now, did="backfilled") as (row, moment):
                submit = in_turn if overlap == "queue" else schedules.submit_terms
                schedules.submit_ticks(row, ticks, moment, using=self.using, submit=submit)
        return ticks

    def delete(self, *, by: str = "") -> None:
        """Delete it; the tasks that it has submitted stay."""
        with store.database.together(using=self.using):
            if not self._rows().delete()[0]:
                raise self._missing()
            record(self.name, "deleted", by, using=self.using)

    aexists = twin(exists)
    arow = twin(row)
    achange = twin(change)
    apause = twin(pause)
    aunpause = twin(unpause)
    atrigger = twin(trigger)
    anext = twin(next)  # noqa: A003
    alast = twin(last)
    abackfill = twin(backfill)
    adelete = twin(delete)

    def _rows(self) -> QuerySet[Schedule]:
        return Schedule.objects.using(self.using).filter(name=self.name)

    def _missing(self) -> exceptions.NotFoundError:
        names = Schedule.objects.using(self.using).values_list("name", flat=True)
        near = nearest(self.name, names.order_by("name")[:NEIGHBOURS])
        return exceptions.NotFoundError(f"There is no schedule '{self.name}'.{near}")

    @contextmanager
    def _changed(
        self, by: str, now: Now, *, insert: bool = False, did: str = ""
    ) -> Iterator[tuple[Schedule, datetime]]:
        """Yield the row and the time as edited() does, and record who has changed what."""
        with edited(self.name, now, using=self.using) as (row, moment):
            if row.pk is None and not insert:
                raise self._missing()
            before = None if row.pk is None else facts(row)
            yield row, moment
            check_user(row, before, using=self.using)
            word = did or ("added" if before is None else "changed")
            record(self.name, word, by, using=self.using, before=before, after=facts(row))


@contextmanager
def edited(name: str, now: Now, *, using: str) -> Iterator[tuple[Schedule, datetime]]:
    """
    Yield the locked row of a schedule, or a new one, and the time; save what has been changed,
    and wake workers.

    A change of the timing, or of what says whether it is active, sets the cursor anew.
    """
    with store.database.together(using=using):
        moment = now or store.records.clock(using=using)
        rows = Schedule.objects.using(using).select_for_update()
        row = rows.filter(name=name).first() or Schedule(name=name)
        was_gone, former = row.origin == Schedule.Origin.GONE, timing_terms(row)
        yield row, moment
        if row.state not in ("gone", "paused"):
            if row.pk is None or was_gone or row.problem or timing_terms(row) != former:
                schedules.start_over(row, moment)
            else:
                # One that had ended goes on where it has more to submit.
                following = row.next_at or schedules.timing_of(row).first_after(moment)
                schedules.set_next(row, following, moment)
        row.save(using=using)
        schedules.wake(row, moment, using=using)


def timing_terms(row: Schedule) -> list[object]:
    return [getattr(row, name) for name in TIMING]


def facts(row: Schedule) -> dict[str, object]:
    """Return what people set of a schedule, as the trail keeps it; its data is left out."""
    values = {name: getattr(row, name) for name in ("type", *CHECKS, "paused", "note")}
    return {
        name: value.isoformat() if isinstance(value, datetime) else value
        for name, value in values.items()
    }


def record(
    name: str,
    did: str,
    by: str,
    *,
    using: str,
    before: dict[str, object] | None = None,
    after: dict[str, object] | None = None,
) -> None:
    """Add to the trail what someone did to a schedule; of a change only what is different."""
    if before is not None and after is not None:
        names = [key for key in after if after[key] != before[key]]
        before, after = ({key: facts[key] for key in names} for facts in (before, after))
    by = as_text(by, audit.LONGEST_NAME) or audit.actor.get()
    change = Change(by=by, before=before, after={DID: did, **(after or {})})
    audit.write(Schedule(name=name), change, using=using)


def check_user(row: Schedule, before: dict[str, object] | None, *, using: str) -> None:
    """Raise InvalidScheduleError where the user would have too many schedules."""
    most = options().SCHEDULES_PER_USER
    if most is None or not row.user or (before is not None and before["user"] == row.user):
        return
    if Schedule.objects.using(using).filter(user=row.user).count() >= most:
        raise exceptions.InvalidScheduleError(
            f"User '{row.user}' has {most} schedules already, by SCHEDULES_PER_USER."
        )


def whole() -> dict[str, object]:
    """Return the terms of a schedule of which nothing was said."""
    blank = Schedule(queue=options().DEFAULT_QUEUE)
    return {name: getattr(blank, name) for name in CHECKS} | {"limits": (), "context": None}
