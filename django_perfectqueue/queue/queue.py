"""Submit tasks, look at them, steer them, and take them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import date, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from asgiref.sync import sync_to_async

from django_perfectqueue import models, store
from django_perfectqueue.conf import options
from django_perfectqueue.exceptions import InvalidTaskError, NotFoundError, WaitInTransactionError
from django_perfectqueue.fairness import edit, set_limit
from django_perfectqueue.fairness.limits import in_force
from django_perfectqueue.fairness.report import UserShare, balance
from django_perfectqueue.inspection.results import End, results_of, results_of_async
from django_perfectqueue.inspection.statistics import Statistics, statistics
from django_perfectqueue.lib.async_twins import twin
from django_perfectqueue.payload import inputs
from django_perfectqueue.payload.inputs import Duration, OnConflict
from django_perfectqueue.store.database.transaction import database
from django_perfectqueue.store.values import ClaimRequest, Now, new_holder
from django_perfectqueue.tracing import otel

from . import retention
from .acquired import AcquiredTask
from .batch import Batch, batch_in, begin
from .submission import (
    OF_KEYS,
    IfFailed,
    TaskOptions,
    listed,
    store_some,
    submission_of,
    submissions_of,
)
from .task_handle import MergedTask, TaskHandle

if TYPE_CHECKING:
    from typing_extensions import Unpack

Window = Literal["minute", "hour", "day"]
UNTENDED = 300.0


class Queue:
    """
    One named queue in one database.

    ``len(queue)`` is how many tasks have yet to end, ``for task in queue`` acquires
    until nothing is due, ``queue[key]`` names a task whether or not there is one.
    """

    def __init__(self, name: str | None = None, *, using: str | None = None) -> None:
        self.name = inputs.checked(
            "queue", options().DEFAULT_QUEUE if name is None else name, inputs.QUEUE_LENGTH
        )
        self._using = using

    def __repr__(self) -> str:
        return f"<Queue {self.name!r}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Queue) and (self.name, self.using) == (other.name, other.using)

    def __hash__(self) -> int:
        return hash((self.name, self.using))

    @property
    def using(self) -> str:
        """The alias of the database that holds the queue."""
        return self._using or database()

    @otel.sends
    def submit(
        self,
        key: str | None,
        type: str,  # noqa: A002
        data: object = None,
        *,
        on_conflict: OnConflict = "raise",
        now: Now = None,
        **options: Unpack[TaskOptions],
    ) -> TaskHandle:
        """
        Store a task in the caller's transaction; it may run once that commits.

        ``key`` is its name in the queue; None makes one, a random UUID. ``data`` is what JSON
        can hold. The options are those of TaskOptions: ``user``, ``run_at``, ``priority``,
        ``expected_at``, ``expires_at``, ``limits``, ``time_limit``, ``after``, ``if_failed``,
        ``tags``, ``sequence``, ``context``, ``unique``, ``unique_for``, ``unique_by``,
        ``debounce``, ``at_most``, ``leading``, ``max_attempts`` and ``backoff``. A key that is
        taken raises AlreadyExistsError, or with ``on_conflict`` is ignored, or replaces a task
        that is not running. The returned task is the one that has the key then.

        Raise InvalidTaskError when it can't be stored as it is, NotFoundError where there is
        no such task to wait for, and TypeError for an unknown option.
        """
        terms: dict[str, Any] = {"using": self.using, "now": now}
        task = submission_of(
            self, key, type, data, surroundings=inputs.captured(), **terms, **options
        )
        inputs.ON_CONFLICT.require("on_conflict", on_conflict, InvalidTaskError)
        fresh, keys = store_some([task], on_conflict, **terms)
        if not fresh and on_conflict == "replace":
            links = task.after or task.tags
            replace = store.dependencies.replace_linked if links else store.replace
            replace([task], **terms)
        if isinstance(task.unique, store.Debounce):
            return MergedTask(self, task.key)
        return TaskHandle(self, keys.get((self.name, task.key), task.key))

    @otel.sends
    def submit_many(
        self,
        tasks: Iterable[Mapping[str, Any]],
        *,
        on_conflict: Literal["raise", "ignore"] = "raise",
        now: Now = None,
        progress: Callable[[int], None] | None = None,
    ) -> int:
        """
        Store any number of tasks, each a dict of submit()'s arguments; return how many.

        Reads the iterable as it goes, with psycopg 3 the next thousand while PostgreSQL stores
        the last: so it must not wait for what it has given. Each thousand is stored in one
        transaction, so wrap the call in ``transaction.atomic()`` for all or none. ``progress`` is
        called with the number done so far. A task that another waits for comes before that.
        """
        stored = read = 0
        chunks, following = submissions_of(self, tasks, now), None
        while given := following or next(chunks, None):
            following = None
            try:
                # The server stores these while the next are read.
                if on_conflict == "raise" and store.send_ahead(given, using=self.using, now=now):
                    following = next(chunks, None)
            finally:
                read += len(given)
                stored += len(store_some(given, on_conflict, using=self.using, now=now)[0])
                if progress:
                    progress(read)
        return stored

    def chain(
        self, tasks: Iterable[Mapping[str, Any]], *, if_failed: IfFailed = "wait"
    ) -> list[TaskHandle]:
        """
        Store tasks each of which waits for the one before it, all or none; return them.

        Each is a dict of submit()'s arguments. Raise what that does.
        """
        given, before = [], None
        for task in tasks:
            if not isinstance(task, Mapping):
                raise InvalidTaskError(f"A task is given as a dict of arguments, not {task!r}.")
            if not task.keys().isdisjoint(OF_KEYS):
                raise InvalidTaskError("A task of a chain can't be unique.")
            after = [*listed(task.get("after", ())), *([] if before is None else [before])]
            before = inputs.checked_key(task.get("key"))
            given.append({"if_failed": if_failed, **task, "key": before, "after": after})
        with store.database.together(using=self.using):
            self.submit_many(given)
        return [self[task["key"]] for task in given]

    def batch(self, name: str, *, user: str | None = None) -> AbstractContextManager[Batch]:
        """
        Begin a batch: a block in which tasks are submitted to it, stored all or none.

        ``user`` is for whom its tasks run if they say nothing else. Raise AlreadyExistsError
        where the queue has a batch of this name.
        """
        return begin(self, name, user, None)

    def batch_named(self, name: str) -> Batch:
        """Return a batch; raise NotFoundError where there is none, or InvalidTaskError as []."""
        name = inputs.checked("name of a batch", name, inputs.KEY_LENGTH)
        row = models.Batch.objects.using(self.using).filter(queue=self.name, name=name).first()
        if row is None:
            raise NotFoundError(f"Queue '{self.name}' has no batch called '{name}'.")
        return batch_in(self, row)

    def __getitem__(self, key: str) -> TaskHandle:
        """Return the task with a key; raise InvalidTaskError where no task can have it."""
        return TaskHandle(self, inputs.checked("key", key, inputs.KEY_LENGTH))

    def acquire(
        self, limit: int = 1, *, alive_time: float | None = None, now: Now = None
    ) -> list[AcquiredTask]:
        """
        Take up to so many due tasks, in fair order, each for ``alive_time`` seconds.

        The default is five minutes, or ALIVE_TIME where that is longer: nothing renews a
        lease here but heartbeat(). Raise InvalidTaskError when that is no length of time.
        """
        usual = max(UNTENDED, options().ALIVE_TIME)
        alive_time = inputs.checked_duration("alive_time", alive_time or None) or usual
        request = ClaimRequest(
            queues=[self.name],
            limit=limit,
            alive_time=alive_time,
            holder=new_holder(),
            using=self.using,
            now=now,
        )
        leases = store.acquire(request)
        return [AcquiredTask(lease, alive_time=alive_time, _writes=True) for lease in leases]

    def poll(
        self, timeout: Duration | None = 0, *, alive_time: float | None = None, now: Now = None
    ) -> AcquiredTask | None:
        """
        Take the next due task, or None when nothing is due.

        With a ``timeout``, a timedelta, seconds or a span, wait so long for one; None is for
        ever. Raise WaitInTransactionError when it has to wait in an open transaction,
        ValueError for an invalid timeout.
        """
        seconds = inputs.checked_timeout(timeout)
        take = partial(self.acquire, 1, alive_time=alive_time, now=now)
        waits = pauses(self.name, using=self.using, timeout=seconds)
        taken = take()
        while not taken and seconds != 0 and (pause := next(waits, None)) is not None:
            time.sleep(pause)
            taken = take()
        return taken[0] if taken else None

    async def apoll(
        self, timeout: Duration | None = 0, *, alive_time: float | None = None, now: Now = None
    ) -> AcquiredTask | None:
        """Do what poll() does, without holding up the event loop."""
        seconds = inputs.checked_timeout(timeout)
        take = partial(self.aacquire, 1, alive_time=alive_time, now=now)
        waits = pauses(self.name, using=self.using, timeout=seconds)
        next_pause = sync_to_async(partial(next, waits, None))
        taken = await take()
        while not taken and seconds != 0 and (pause := await next_pause()) is not None:
            await asyncio.sleep(pause)
            taken = await take()
        return taken[0] if taken else None

    def __iter__(self) -> Iterator[AcquiredTask]:
        while task := self.poll():
            yield task

    async def __aiter__(self) -> AsyncIterator[AcquiredTask]:
        while task := await self.apoll():
            yield task

    def shares(
        self,
        over: Window = "hour",
        *,
        user: str | None = None,
        top: int | None = 100,
        now: Now = None,
    ) -> Sequence[UserShare]:
        """
        Return what each user was entitled to and received in the last minute, hour or day.

        The users who received most come first; users beyond ``top``, or but for one ``user``,
        are summed up in a last one with ``others``. What processors did less than ten
        seconds ago may not be in it yet.

        Raise ValueError for another window.
        """
        return balance(self.name, over=over, using=self.using, top=top, user=user, now=now).shares

    def statistics(
        self,
        day: date | None = None,
        *,
        type: str | None = None,  # noqa: A002
        user: str | None = None,
        now: Now = None,
    ) -> Statistics:
        """
        Return how attempts ended on a day in UTC, by default today, and how long they took.

        With a ``type`` or a ``user`` only its own; ValueError for both.
        """
        return statistics(self.name, day, using=self.using, type=type, user=user, now=now)

    def list(self) -> models.TaskQuerySet:
        """Return all its tasks, ended ones too, as a QuerySet with their ``status``."""
        tasks: models.TaskQuerySet = models.Task.objects.using(self.using).filter(queue=self.name)
        tasks.only_queue = self.name
        return tasks

    def __len__(self) -> int:
        return store.database.with_retries(self.list().live().count, using=self.using)

    def __bool__(self) -> bool:
        return True

    def clear(self) -> int:
        """
        Forget all its tasks, whatever their status, and its batches; return how many tasks.

        Tasks stay to which rows of other apps refer by a constraint; a warning names these.
        """
        return retention.clear(self.name, using=self.using)

    def purge(
        self,
        older_than: Duration | None = None,
        *,
        status: str | None = None,
        group: str | None = None,
        type: str | None = None,  # noqa: A002
        user: str | None = None,
        now: Now = None,
    ) -> int:
        """
        Delete its tasks that ended so long ago that their retention has passed; return how many.

        ``older_than`` takes the place of the retention: a timedelta, seconds or a span, 0 for
        all that have ended. What the settings keep for ever, as failed tasks by default, stays
        unless its ``status`` is named. ``group`` is an error's class or the reason of a dead
        letter; with that, a ``type`` or a ``user`` only such tasks are deleted.

        Raise ConfigError where the settings keep all of them for ever, ValueError for an
        unknown status or what is no length of time.
        """
        rule = retention.PurgeRule.of(
            older_than=inputs.checked_timeout(older_than, "older_than"),
            statuses=[] if status is None else [status],
            only={"queue": self.name, "group": group, "type": type, "user": user},
        )
        return retention.purge(rule, using=self.using, now=now).total()

    def as_completed(self, keys: Iterable[str], timeout: Duration | None = None) -> Iterator[End]:
        """
        Yield how tasks of these keys have ended, each once it has.

        ``timeout`` is for all of them: a timedelta, seconds or a span such as "5m30s".
        Raise NotFoundError where there is no such task, or none any more; WaitTimeoutError
        when not all have ended in time; WaitInTransactionError in an open transaction.
        """
        seconds = inputs.checked_timeout(timeout)
        return results_of(self.name, inputs.checked_keys(keys), using=self.using, timeout=seconds)

    def as_completed_async(
        self, keys: Iterable[str], timeout: Duration | None = None
    ) -> AsyncIterator[End]:
        """Do what as_completed() does, without holding up the event loop."""
        seconds = inputs.checked_timeout(timeout)
        return results_of_async(
            self.name, inputs.checked_keys(keys), using=self.using, timeout=seconds
        )

    def pause(self, *, until: datetime | None = None, note: str = "", by: str = "") -> None:
        """
        Start none of its tasks ``until`` a time, or without one until unpause(); running tasks
        go on.

        ``note`` says why, and ``by`` is recorded as the person who did it. Raise ConfigError for
        a time without a time zone and for a note of over 255 characters.
        """
        set_limit(
            self.name, scope="queue", paused=True, until=until, note=note, by=by, using=self.using
        )

    def unpause(self, *, by: str = "") -> None:
        """Start its tasks again."""
        edit.end_pause(models.Limit, {"scope": "queue", "name": self.name}, by=by, using=self.using)

    def is_paused(self) -> bool:
        """Return whether the queue is paused, by whatever process."""
        found = in_force([f"queue:{self.name}"], using=self.using).values()
        return any(limit.paused for limit in found)

    asubmit = twin(submit)
    asubmit_many = twin(submit_many)
    achain = twin(chain)
    aacquire = twin(acquire)
    aclear = twin(clear)
    apurge = twin(purge)
    apause = twin(pause)
    aunpause = twin(unpause)
    ais_paused = twin(is_paused)
    ashares = twin(shares)
    astatistics = twin(statistics)

    async def alen(self) -> int:
        """Return what ``len(queue)`` does."""
        return await sync_to_async(len)(self)


# Waiting for a task that is due.


SOONEST, LATEST = 0.05, 0.5


def pauses(queue: str, *, using: str, timeout: float | None) -> Iterator[float]:
    """
    Yield the seconds to wait before each look for a task, until the time is up.

    Ever longer, up to half a second, and until the clock has something due. ``timeout`` is in
    seconds, None for ever. Raise WaitInTransactionError in an open transaction.
    """
    if store.database.is_callers(using):
        raise WaitInTransactionError(
            f"A transaction is open, in which tasks of queue '{queue}' may never be seen."
            " Poll with a timeout outside of the atomic block."
        )
    ends_at = float("inf") if timeout is None else time.monotonic() + timeout
    longest = SOONEST
    while (left := ends_at - time.monotonic()) > 0.0:
        outlook = store.database.with_retries(lambda: look(queue, using), using=using)
        due_in = LATEST if outlook.wait is None else max(SOONEST, outlook.wait)
        yield min(longest, due_in, left)
        longest = min(LATEST, longest * 2)


def look(queue: str, using: str) -> store.Outlook:
    """Look once; where no worker is, a program that waits fires the schedules."""
    outlook = store.look([queue], using=using)
    if outlook.ticks_due:
        store.schedules.fire_schedules(using=using)
        outlook = store.look([queue], using=using)
    return outlook
