"""Submit tasks, look at them, steer them, and take them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Literal

from asgiref.sync import sync_to_async
from django.db import router
from django.utils import timezone

from django_perfectqueue import models, rules, signals, store
from django_perfectqueue.balance import UserShare, balance
from django_perfectqueue.conf import options
from django_perfectqueue.ends import End, end_of, end_of_async, ends_of, ends_of_async
from django_perfectqueue.exceptions import AlreadyExistsError, InvalidTaskError, NotFoundError
from django_perfectqueue.tracing import telemetry
from django_perfectqueue.waiting import Reason, why_waiting

from . import retention
from .acquired import AcquiredTask
from .due import DueWait
from .given import (
    KEY_LENGTH,
    QUEUE_LENGTH,
    OnConflict,
    Span,
    When,
    captured,
    checked,
    checked_keys,
    checked_limits,
    checked_priority,
    checked_span,
    checked_timeout,
    checked_user,
    encoded,
    moment,
)
from .twins import twin

Window = Literal["minute", "hour", "day"]


class Queue:
    """
    One named queue in one database.

    ``len(queue)`` is how many tasks have yet to end, ``for task in queue`` acquires
    until nothing is due, ``queue[key]`` names a task whether or not there is one.
    """

    def __init__(self, name: str | None = None, *, using: str | None = None) -> None:
        self.name = checked(
            "queue", options().DEFAULT_QUEUE if name is None else name, QUEUE_LENGTH
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

    @telemetry.sends
    def submit(
        self,
        key: str,
        type: str,  # noqa: A002
        data: Any = None,
        *,
        user: str | None = None,
        run_at: When | None = None,
        priority: int = 0,
        expected_at: When | None = None,
        expires_at: When | None = None,
        limits: Iterable[str] = (),
        time_limit: Span | None = None,
        on_conflict: OnConflict = "raise",
        now: datetime | None = None,
    ) -> Task:
        """
        Store a task in the caller's transaction; it may run once that commits.

        ``data`` is what JSON can hold. Times are an aware datetime, a timedelta, seconds
        from now or a span such as ``"5m30s"``. A larger ``priority`` goes first among its
        user's tasks, and of equals the one that is due first; ``expected_at`` is then
        counted as when it is due. ``limits`` are names of limits that it keeps to, and
        ``time_limit`` is for how long an attempt may run: a timedelta, seconds or a span;
        None leaves it to the handler. A key that is taken raises AlreadyExistsError, or with
        ``on_conflict`` is ignored, or replaces a task that is not running.

        Raise InvalidTaskError when it can't be stored as it is.
        """
        submission = self._submission(
            key,
            type,
            data,
            user=user,
            run_at=run_at,
            priority=priority,
            expected_at=expected_at,
            expires_at=expires_at,
            limits=limits,
            time_limit=time_limit,
            surroundings=captured(),
            now=now,
        )
        if on_conflict not in ("raise", "ignore", "replace"):
            raise InvalidTaskError(
                f"on_conflict is 'raise', 'ignore' or 'replace', not {on_conflict!r}."
            )
        task = self[submission.key]
        fresh = store.submit([submission], using=self.using, now=now)
        if not fresh:
            if on_conflict == "raise":
                raise AlreadyExistsError(
                    f"Queue '{self.name}' already has a task with the key '{key}'."
                )
            if on_conflict == "ignore":
                return task
            fresh = store.replace(submission, using=self.using, now=now)
        store.announce(signals.task_submitted, [submission], using=self.using)
        lanes = store.due_lanes([submission], fresh)
        store.ring(self.name, using=self.using, delay=until(submission, now), lanes=lanes)
        return task

    @telemetry.sends
    def submit_many(
        self,
        tasks: Iterable[Mapping[str, Any]],
        *,
        on_conflict: Literal["raise", "ignore"] = "raise",
        now: datetime | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> int:
        """
        Store any number of tasks, each a dict of submit()'s arguments; return how many.

        Reads the iterable as it goes. Each thousand is stored in one transaction, so
        wrap the call in ``transaction.atomic()`` for all or none. ``progress`` is called
        with the number read so far.
        """
        stored = read = 0
        terms: dict[str, Any] = {"surroundings": captured(), "now": now}
        submissions = (self._submission(**terms, **task) for task in tasks)
        for given in store.in_chunks(submissions):
            submit = store.submit_all if on_conflict == "raise" else store.submit
            fresh = submit(given, using=self.using, now=now)
            if on_conflict == "raise" and len(fresh) < len(given):
                raise AlreadyExistsError(already(self.name, given, fresh))
            if fresh:
                soonest = min(until(task, now) for task in given if (task.queue, task.key) in fresh)
                lanes = store.due_lanes(given, fresh)
                store.ring(self.name, using=self.using, delay=soonest, lanes=lanes)
                stored_now = (task for task in given if (task.queue, task.key) in fresh)
                store.announce(signals.task_submitted, stored_now, using=self.using)
            read += len(given)
            stored += len(fresh)
            if progress:
                progress(read)
        return stored

    def _submission(
        self,
        key: str,
        type: str,  # noqa: A002
        data: Any = None,
        *,
        user: str | None = None,
        run_at: When | None = None,
        priority: int = 0,
        expected_at: When | None = None,
        expires_at: When | None = None,
        limits: Iterable[str] = (),
        time_limit: Span | None = None,
        surroundings: str | None = None,
        now: datetime | None = None,
    ) -> store.Submission:
        starts, ends = moment("run_at", run_at, now), moment("expires_at", expires_at, now)
        names, type_ = checked_limits(limits), checked("type", type, KEY_LENGTH)
        user = checked_user(user)
        may_hold = store.may_hold(self.name, type_, user, names)
        keys = sorted(store.known_limits(may_hold, using=self.using))
        if expires_first(starts, ends):
            raise InvalidTaskError(
                f"The task could never run: it expires at {ends}, before run_at."
            )
        return store.Submission(
            queue=self.name,
            key=checked("key", key, KEY_LENGTH),
            type=type_,
            user=user,
            payload=encoded(data),
            priority=checked_priority(priority),
            run_at=starts,
            expected_at=moment("expected_at", expected_at, now),
            expires_at=ends,
            limits=names,
            lane=store.lane_of(self.name, user, keys),
            time_limit=checked_span("time_limit", time_limit),
            context=surroundings,
        )

    def __getitem__(self, key: str) -> Task:
        return Task(self, key)

    def acquire(
        self,
        limit: int = 1,
        *,
        alive_time: float | None = None,
        now: datetime | None = None,
    ) -> list[AcquiredTask]:
        """
        Take up to so many due tasks, in fair order, each for ``alive_time`` seconds.

        Raise InvalidTaskError when that is no length of time.
        """
        alive_time = checked_span("alive_time", alive_time or None) or options().ALIVE_TIME
        leases = store.acquire(
            [self.name],
            limit=limit,
            alive_time=alive_time,
            holder=store.new_holder(),
            using=self.using,
            now=now,
        )
        return [AcquiredTask(lease, alive_time=alive_time, _writes=True) for lease in leases]

    def poll(
        self,
        timeout: Span | None = 0,
        *,
        alive_time: float | None = None,
        now: datetime | None = None,
    ) -> AcquiredTask | None:
        """
        Take the next due task, or None when nothing is due.

        With a ``timeout``, a timedelta, seconds or a span, wait so long for one; None is for
        ever. Raise WaitInTransactionError when it has to wait in an open transaction,
        ValueError for a timeout that is none.
        """
        seconds = checked_timeout(timeout)
        take = partial(self.acquire, 1, alive_time=alive_time, now=now)
        if (taken := take()) or seconds == 0:
            return taken[0] if taken else None
        with DueWait(self.name, using=self.using, timeout=seconds) as watch:
            while not (taken := take()) and watch.wait():
                pass
        return taken[0] if taken else None

    async def apoll(
        self,
        timeout: Span | None = 0,
        *,
        alive_time: float | None = None,
        now: datetime | None = None,
    ) -> AcquiredTask | None:
        """Do what poll() does, without holding up the event loop."""
        seconds = checked_timeout(timeout)
        take = partial(self.aacquire, 1, alive_time=alive_time, now=now)
        if (taken := await take()) or seconds == 0:
            return taken[0] if taken else None
        terms: dict[str, Any] = {"using": self.using, "timeout": seconds}
        watch = await sync_to_async(DueWait)(self.name, **terms)
        while not taken and await watch.wait_async():
            taken = await take()
        return taken[0] if taken else None

    def consume(
        self, timeout: Span | None = None, *, alive_time: float | None = None
    ) -> Iterator[AcquiredTask]:
        """
        Take one task after another, and wait for the next; end when none has come for so long.

        Unlike ``for task in queue``, which ends when nothing is due. The timeout is one of
        poll(), None for ever; raise what that does.
        """
        while task := self.poll(timeout, alive_time=alive_time):
            yield task

    async def consume_async(
        self, timeout: Span | None = None, *, alive_time: float | None = None
    ) -> AsyncIterator[AcquiredTask]:
        """Do what consume() does, without holding up the event loop."""
        while task := await self.apoll(timeout, alive_time=alive_time):
            yield task

    def __iter__(self) -> Iterator[AcquiredTask]:
        while task := self.poll():
            yield task

    def shares(
        self,
        over: Window = "hour",
        *,
        user: str | None = None,
        top: int | None = 100,
        now: datetime | None = None,
    ) -> Sequence[UserShare]:
        """
        Return what each user was entitled to and received in the last minute, hour or day.

        Those who received most come first; those beyond ``top``, or but for one ``user``,
        are summed up in a last one with ``others``. What processors did less than ten
        seconds ago may not be in it yet.

        Raise ValueError for another window.
        """
        return balance(self.name, over=over, using=self.using, top=top, user=user, now=now).shares

    def list(self) -> models.TaskQuerySet:
        """Return all its tasks, ended ones too, as a QuerySet with their ``status``."""
        tasks: models.TaskQuerySet = models.Task.objects.using(self.using).filter(queue=self.name)
        return tasks

    def __len__(self) -> int:
        return store.patiently(self.list().live().count, using=self.using)

    def __bool__(self) -> bool:
        return True

    def clear(self) -> int:
        """Forget all its tasks, whatever their status; return how many."""
        return store.clear(self.name, using=self.using)

    def purge(
        self,
        older_than: Span | None = None,
        *,
        status: str | None = None,
        group: str | None = None,
        type: str | None = None,  # noqa: A002
        user: str | None = None,
        now: datetime | None = None,
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
        rule = retention.Rule.of(
            older_than=checked_timeout(older_than, "older_than"),
            statuses=[] if status is None else [status],
            only={"queue": self.name, "group": group, "type": type, "user": user},
        )
        return retention.purge(rule, using=self.using, now=now).total()

    def as_completed(self, keys: Iterable[str], timeout: Span | None = None) -> Iterator[End]:
        """
        Yield how tasks of these keys have ended, each once it has.

        ``timeout`` is for all of them: a timedelta, seconds or a span such as "5m30s".
        Raise NotFoundError where there is no such task, or none any more; WaitTimeoutError
        when not all have ended in time; WaitInTransactionError in an open transaction.
        """
        seconds = checked_timeout(timeout)
        return ends_of(self.name, checked_keys(keys), using=self.using, timeout=seconds)

    def as_completed_async(
        self, keys: Iterable[str], timeout: Span | None = None
    ) -> AsyncIterator[End]:
        """Do what as_completed() does, without holding up the event loop."""
        seconds = checked_timeout(timeout)
        return ends_of_async(self.name, checked_keys(keys), using=self.using, timeout=seconds)

    def pause(self, *, by: str = "") -> None:
        """
        Start none of its tasks until unpause(); those that run are not disturbed.

        ``by`` is kept as who has done it.
        """
        rules.change_limit("queue", self.name, {"paused": True}, by=by, using=self.using)

    def unpause(self, *, by: str = "") -> None:
        """Let its tasks go on."""
        rules.lift_pause("queue", self.name, by=by, using=self.using)

    def is_paused(self) -> bool:
        """Tell whether pause() holds, from wherever it came."""
        paused = models.Limit.objects.filter(scope="queue", name=self.name, paused=True)
        return store.patiently(paused.using(self.using).exists, using=self.using)

    asubmit = twin(submit)
    asubmit_many = twin(submit_many)
    aacquire = twin(acquire)
    aclear = twin(clear)
    apurge = twin(purge)
    apause = twin(pause)
    aunpause = twin(unpause)
    ais_paused = twin(is_paused)
    ashares = twin(shares)

    async def __aiter__(self) -> AsyncIterator[AcquiredTask]:
        while task := await self.apoll():
            yield task

    async def alen(self) -> int:
        return await sync_to_async(len)(self)


@dataclass(frozen=True, slots=True)
class Task:
    """A task by its name: it may or may not exist."""

    queue: Queue
    key: str

    @property
    def using(self) -> str:
        return self.queue.using

    @property
    def id(self) -> int:
        """The id of its row; raise NotFoundError when there is none."""
        return store.find(self.queue.name, self.key, using=self.using)

    def exists(self) -> bool:
        """Tell whether it is in the queue, or has ended and is retained."""
        return store.patiently(self.queue.list().filter(key=self.key).exists, using=self.using)

    def metadata(self) -> models.Task:
        """
        Return its row with ``status``, times, user, type, data and result.

        Raise NotFoundError when there is none.
        """
        rows = self.queue.list().select_related("ticket", "dead_letter")
        try:
            row: models.Task = store.patiently(lambda: rows.get(key=self.key), using=self.using)
        except models.Task.DoesNotExist:
            raise NotFoundError(
                f"Queue '{self.queue.name}' has no task with the key '{self.key}'."
            ) from None
        return row

    def why_waiting(self, *, now: datetime | None = None) -> Reason:
        """
        Return the first condition that holds it back, or that it is running or has ended.

        Raise NotFoundError when there is no such task.
        """
        row = self.metadata()
        return store.patiently(
            lambda: why_waiting(row, using=self.using, now=now), using=self.using
        )

    def wait(self, timeout: Span | None = None) -> Any:
        """
        Wait until it has ended; return what its handler returned.

        ``timeout`` is a timedelta, seconds or a span such as "5m30s"; None is for ever, 0
        looks once. Raise TaskFailedError, or TaskCancelledError or TaskExpiredError, which
        are kinds of it, when it has ended and has not finished; WaitTimeoutError when it
        has not ended in time; NotFoundError where there is no such task, or none any more;
        WaitInTransactionError in an open transaction, unless it has ended already.
        """
        seconds = checked_timeout(timeout)
        return end_of(self.queue.name, self.key, using=self.using, timeout=seconds).result()

    async def wait_async(self, timeout: Span | None = None) -> Any:
        """Do what wait() does, without holding up the event loop."""
        seconds = checked_timeout(timeout)
        end = await end_of_async(self.queue.name, self.key, using=self.using, timeout=seconds)
        return end.result()

    def progress(self) -> models.Journal | None:
        """
        Return what its present attempt has told, or its last one, or None if nothing.

        Raise NotFoundError when there is no such task.
        """
        rows = models.Journal.objects.using(self.using).filter(task_id=self.id)
        return store.patiently(rows.present().first, using=self.using)

    def cancel_request(self, *, now: datetime | None = None) -> bool:
        """
        Cancel it if it has yet to run; if it is running, ask it to stop.

        Return whether it is cancelled already. In an open transaction it is not: there this
        is done after the commit, and what has ended by then stays as it is. Raise
        NotFoundError or AlreadyFinishedError.
        """
        return store.cancel_request(self.id, using=self.using, now=now)

    def force_finish(self, *, now: datetime | None = None) -> None:
        """
        Close it as finished, even while it runs: its holder is then preempted.

        In an open transaction this is done after the commit. Raise NotFoundError or
        AlreadyFinishedError.
        """
        store.force_finish(self.id, using=self.using, now=now)

    def retry(self, *, now: datetime | None = None) -> None:
        """
        Put it back if it has failed, was cancelled or expired; hasten it if it waits for
        its time.

        In an open transaction this is done after the commit. Raise NotFoundError,
        AlreadyFinishedError or NotSupportedError.
        """
        store.redrive(self.id, using=self.using, now=now)

    def set_priority(self, priority: int) -> None:
        """
        Give it another priority, and with it another place in its line.

        If it is running it goes on, and the priority holds if it is tried again. In an open
        transaction this is done after the commit. Raise NotFoundError, AlreadyFinishedError
        or InvalidTaskError.
        """
        store.reprioritize(self.id, checked_priority(priority), using=self.using)

    aexists = twin(exists)
    ametadata = twin(metadata)
    awhy_waiting = twin(why_waiting)
    aprogress = twin(progress)
    acancel_request = twin(cancel_request)
    aforce_finish = twin(force_finish)
    aretry = twin(retry)
    aset_priority = twin(set_priority)


def until(submission: store.Submission, now: datetime | None) -> float:
    """Return in how many seconds a task may run."""
    starts = submission.run_at
    if starts is None:
        return 0.0
    wait = starts if isinstance(starts, timedelta) else starts - (now or timezone.now())
    return max(0.0, wait.total_seconds())


def expires_first(starts: store.Moment | None, ends: store.Moment | None) -> bool:
    """
    Tell whether a task ends before it begins.

    Of a time and a span only the server's clock could tell: the task then expires unrun.
    """
    if isinstance(starts, datetime) and isinstance(ends, datetime):
        return ends <= starts
    return isinstance(starts, timedelta) and isinstance(ends, timedelta) and ends <= starts


def already(
    queue: str, given: Iterable[store.Submission], fresh: Mapping[tuple[str, str], int]
) -> str:
    taken = sorted({task.key for task in given} - {key for _queue, key in fresh})
    if not taken:
        return f"Queue '{queue}' was given a key twice in one batch."
    return f"Queue '{queue}' already has tasks with these keys: {', '.join(taken[:5])}."


def database() -> str:
    """Return the alias of the database that holds the tasks: DATABASE, or else the router's."""
    return options().DATABASE or router.db_for_write(models.Task)
