"""
The door for programs: submit tasks, look at them, steer them, and take them.

Everything here runs in the caller's transaction where there is one.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import (
    AsyncIterator,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial, wraps
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar

from asgiref.sync import sync_to_async
from django.db import Error, connections, router, transaction
from django.utils import timezone

from . import codecs, context, models, rules, signals, store, telemetry
from .balance import UserShare, balance
from .conf import options
from .ends import End, end_of, end_of_async, ends_of, ends_of_async
from .exceptions import (
    AlreadyExistsError,
    CancelRequestedError,
    Discard,
    InvalidResultError,
    InvalidTaskError,
    NotFoundError,
    PayloadError,
    PreemptedError,
    Snooze,
)
from .notes import Notes, entry, part_of
from .sensitive import secrets_of, without
from .spans import LONGEST as LONGEST_SPAN
from .spans import seconds_in
from .waiting import Reason, why_waiting

logger = logging.getLogger("django_perfectqueue.queue")

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")

Window = Literal["minute", "hour", "day"]
OnConflict = Literal["raise", "ignore", "replace"]
Span = timedelta | float | str
When = datetime | Span

GRAVE = "discarded"
DISCARDED = f"{Discard.__module__}.{Discard.__qualname__}"
QUEUE_LENGTH, KEY_LENGTH = 100, 255
SMALLEST, LARGEST = -(2**31) + 1, 2**31 - 1


def twin(
    method: Callable[Concatenate[S, P], R],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, R]]:
    """Return the async twin of a method: it runs what has the method's name in a thread."""

    @wraps(method)
    async def in_thread(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        result: R = await sync_to_async(getattr(self, method.__name__))(*args, **kwargs)
        return result

    in_thread.__name__ = f"a{method.__name__}"
    return in_thread


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
        if not store.submit([submission], using=self.using, now=now):
            if on_conflict == "raise":
                raise AlreadyExistsError(
                    f"Queue '{self.name}' already has a task with the key '{key}'."
                )
            if on_conflict == "ignore":
                return task
            store.replace(submission, using=self.using, now=now)
        store.announce(signals.task_submitted, [submission], using=self.using)
        store.ring(self.name, using=self.using, delay=until(submission, now))
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
        wake = partial(store.answer_alarms, using=self.using)
        terms: dict[str, Any] = {"surroundings": captured(), "now": now}
        submissions = (self._submission(**terms, **task) for task in tasks)
        for given in store.in_chunks(submissions):
            submit = store.submit_all if on_conflict == "raise" else store.submit
            fresh = submit(given, using=self.using, now=now)
            if on_conflict == "raise" and len(fresh) < len(given):
                raise AlreadyExistsError(already(self.name, given, fresh))
            if fresh and (not stored or not connections[self.using].in_atomic_block):
                transaction.on_commit(wake, using=self.using, robust=True)
            if fresh:
                soonest = min(until(task, now) for task in given if (task.queue, task.key) in fresh)
                store.ring(self.name, using=self.using, delay=soonest)
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
        known = store.known_limits(self.using)
        if starts and ends and ends <= starts:
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
            keys=store.keys_of(self.name, type_, user, names, known),
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
        """Take up to so many due tasks, in fair order, each for ``alive_time`` seconds."""
        alive_time = alive_time or options().ALIVE_TIME
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
        self, *, alive_time: float | None = None, now: datetime | None = None
    ) -> AcquiredTask | None:
        """Take the next due task, or None when nothing is due."""
        taken = self.acquire(1, alive_time=alive_time, now=now)
        return taken[0] if taken else None

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
    apoll = twin(poll)
    aclear = twin(clear)
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

        Return whether it is cancelled already. Raise NotFoundError or
        AlreadyFinishedError.
        """
        return store.cancel_request(self.id, using=self.using, now=now)

    def force_finish(self, *, now: datetime | None = None) -> None:
        """
        Close it as finished, even while it runs: its holder is then preempted.

        Raise NotFoundError or AlreadyFinishedError.
        """
        store.force_finish(self.id, using=self.using, now=now)

    def retry(self, *, now: datetime | None = None) -> None:
        """
        Put it back if it has failed, was cancelled or expired; hasten it if it waits for
        its time.

        Raise NotFoundError, AlreadyFinishedError or NotSupportedError.
        """
        store.redrive(self.id, using=self.using, now=now)

    def set_priority(self, priority: int) -> None:
        """
        Give it another priority, and with it another place in its line.

        If it is running it goes on, and the priority holds if it is tried again. Raise
        NotFoundError, AlreadyFinishedError or InvalidTaskError.
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


class Doubt:
    """Whether something that was written in a caller's transaction came to be."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.committed = False
        transaction.on_commit(self, using=connection.alias, robust=True)

    def __call__(self) -> None:
        self.committed = True

    def is_undone(self) -> bool:
        """Tell whether the transaction, or the savepoint that it was in, was rolled back."""
        if self.committed:
            return False
        waiting = list(self.connection.run_on_commit)
        return not any(function is self for _savepoints, function, *_robust in waiting)


@dataclass(slots=True)
class Deferred:
    """
    What an atomic handler has asked for, to be written with its effects when it has returned.

    To write it at once would lock the ticket for as long as the handler runs, and nobody
    could renew its lease.
    """

    acts: list[Callable[[], None]] = field(default_factory=list)
    settles: bool = False

    def now(self) -> Deferred:
        """Return what has been asked for until now."""
        return Deferred(list(self.acts), self.settles)

    def write(self) -> None:
        for act in self.acts:
            act()

    def clear(self) -> None:
        self.acts.clear()
        self.settles = False


def or_deferred(
    verb: Callable[Concatenate[AcquiredTask, P], None],
) -> Callable[Concatenate[AcquiredTask, P], None]:
    """Have a verb that settles a task do so when its handler returns, where that is atomic."""

    @wraps(verb)
    def now_or_then(self: AcquiredTask, /, *args: P.args, **kwargs: P.kwargs) -> None:
        deferred = self.deferred
        if deferred is None:
            return verb(self, *args, **kwargs)
        if deferred.settles:
            raise self._preempted()
        deferred.settles = True
        deferred.acts.append(partial(verb, self, *args, **kwargs))
        return None

    return now_or_then


@dataclass(slots=True)
class AcquiredTask:
    """
    A task in this program's hands, good until its lease runs out.

    One of finish(), retry(), snooze(), release(), fail(), discard() and cancel() settles
    it, once and durably; each raises PreemptedError, and writes nothing, when the lease
    has passed to another. In a transaction of the caller's it is settled with that; in an
    atomic handler they are ``deferred``, and written when it has returned.
    ``django_result`` is what Django's signals are told of one of its tasks. ``notes`` are
    what it has told by progress() and log(), which is written by the worker that runs it,
    or where there is none by the task itself.
    """

    lease: store.Lease
    alive_time: float = 300.0
    worker: str = ""
    started: float = field(default_factory=time.monotonic)
    is_settling: bool = field(default=False, repr=False)
    django_result: Any = field(default=None, repr=False, compare=False)
    deferred: Deferred | None = field(default=None, repr=False, compare=False)
    notes: Notes | None = field(default=None, repr=False, compare=False)
    _writes: bool = field(default=False, repr=False, compare=False)
    _data: Any = field(default=None, repr=False)
    _secrets: tuple[Any, tuple[str, ...]] | None = field(default=None, repr=False, compare=False)
    _settled: str = field(default="", repr=False)
    _doubt: Doubt | None = field(default=None, repr=False, compare=False)

    def __repr__(self) -> str:
        """Name it without its data, which must not get into logs and reports of errors."""
        return f"<{type(self).__name__} {self.key!r} queue={self.lease.queue!r} {self.type!r}>"

    @property
    def queue(self) -> Queue:
        return Queue(self.lease.queue, using=self.lease.using)

    @property
    def key(self) -> str:
        return self.lease.key

    @property
    def type(self) -> str:
        return self.lease.type

    @property
    def user(self) -> str:
        return self.lease.user

    @property
    def attempt(self) -> int:
        """How many attempts have counted, this one among them; a release counts none."""
        return self.lease.tries

    @property
    def created_at(self) -> datetime:
        return self.lease.created_at

    @property
    def data(self) -> Any:
        """
        What was submitted.

        Raise PayloadError when the stored text can't be read.
        """
        if self._data is None:
            self._data = codecs.decode(self.lease.payload)
        return self._data

    @property
    def context(self) -> dict[str, Any]:
        """
        What it has taken along of its submitter's surroundings; see CONTEXT.

        Raise PayloadError when the stored text can't be read.
        """
        if self.lease.context is None:
            return {}
        values = codecs.decode(self.lease.context)
        if not isinstance(values, dict):
            raise PayloadError(f"The context of the task is no JSON object, but {values!r}.")
        return values

    @property
    def seconds(self) -> float:
        """How long this program has had it, in seconds."""
        return time.monotonic() - self.started

    @property
    def settled(self) -> str:
        """What it was settled as; nothing where it was not, or that was rolled back."""
        if self._doubt is not None and self._doubt.is_undone():
            return ""
        return self._settled

    @settled.setter
    def settled(self, word: str) -> None:
        self._settled = word
        self._doubt = None

    @contextmanager
    def settling(self) -> Iterator[None]:
        """
        Settle it in here, and do what belongs to that: both or neither.

        One transaction in the database of the tasks. When that can't be committed, or
        something raises in it, the task is as it was, and held.
        """
        before = None if self.deferred is None else self.deferred.now()
        try:
            with store.together(using=self.lease.using):
                yield
        except BaseException:
            self.deferred = before
            raise

    def heartbeat(self, *, now: datetime | None = None) -> None:
        """
        Renew the lease.

        Raise PreemptedError when it has passed to another, CancelRequestedError when
        someone wants the task to stop. In an atomic handler it only looks.
        """
        # A renewal would lock the ticket as long as the transaction lasts.
        alive_time = self.alive_time if self.deferred is None else None
        terms: dict[str, Any] = {"alive_time": alive_time, "using": self.lease.using}
        [pulse] = store.heartbeat([self.lease], now=now, **terms)
        if not pulse.held:
            raise self._preempted()
        if pulse.cancel_requested:
            raise CancelRequestedError(f"Task '{self.key}' is to be cancelled.")

    def update_data(self, changes: Mapping[str, Any], *, now: datetime | None = None) -> None:
        """Merge into the stored data, and renew the lease."""
        merged = {**self.data, **changes}
        self._secrets_in_data()  # What is sensitive before still is afterwards.
        payload = encoded(merged)

        def write() -> None:
            terms: dict[str, Any] = {"alive_time": self.alive_time, "using": self.lease.using}
            self.lease = store.update_payload(self.lease, payload, now=now, **terms)

        if self.deferred is None:
            write()
        else:
            self.deferred.acts.append(write)
        self._data = merged

    def progress(
        self, part: float | None = None, stage: str | None = None, *, of: float | None = None
    ) -> None:
        """
        Tell how far it is: a part of 1, or so much ``of`` so much, and what is being done.

        What is None stays as it was told before. It may be called as often as you like: it
        is noted in memory, and written at most every JOURNAL_INTERVAL, apart from whatever
        transaction is open here. Raise ValueError when it is no such part.
        """
        done = part_of(part, of)
        self._noted().tell(done, stage if stage is None else self.redacted(str(stage)))
        if self._writes:
            self._write_in_time()

    def log(self, text: object, *, level: str = "INFO") -> None:
        """Add to the log that is kept of this attempt, without what is sensitive."""
        add_line(self, time.time(), level, "task", str(text))
        if self._writes:
            self._write_in_time()

    def write_notes(self) -> None:
        """
        Write at once what has been told; for programs that run it without a worker.

        In a transaction that is open here it has a savepoint of its own. That it can't be
        written is logged, and no more.
        """
        if (note := note_of(self)) is None:
            return
        using = self.lease.using
        apart = connections[using].in_atomic_block
        try:
            with transaction.atomic(using=using) if apart else nullcontext(), store.one_call():
                store.tell([note], using=using)
        except Error as error:
            logger.warning("What a task tells can't be written. key=%s error=%s", self.key, error)

    def redacted(self, text: str) -> str:
        """Return a text with stars for what is sensitive in the task's data."""
        return without(text, self._secrets_in_data())

    @property
    def has_secrets(self) -> bool:
        """Whether anything in its data is sensitive."""
        return bool(self._secrets_in_data())

    def _secrets_in_data(self) -> tuple[str, ...]:
        known = self._secrets
        if known is None or known[0] is not self._data:
            try:
                data = self.data
            except PayloadError:
                data = None
            secrets = {*secrets_of(data), *(known[1] if known else ())}
            known = self._secrets = (self._data, tuple(sorted(secrets, key=len, reverse=True)))
        return known[1]

    def _noted(self) -> Notes:
        if self.notes is None:
            self.notes = Notes(options().LOG_LINES_SIZE)
        return self.notes

    def _write_in_time(self) -> None:
        """Write what has been told unless that was done just now, or an event loop runs here."""
        told = self._noted()
        now = time.monotonic()
        if now >= told.next_write and not in_event_loop():
            told.next_write = now + options().JOURNAL_INTERVAL
            self.write_notes()

    def completion(self, result: Any = None) -> store.Completion:
        """
        Return what finish() would write.

        Raise InvalidResultError when the codec can't write the result, or it is larger than
        MAX_RESULT_SIZE.
        """
        return store.Completion(
            lease=self.lease,
            result=None if result is None else encoded_result(result),
            started=self.started,
            ended=time.monotonic(),
        )

    @or_deferred
    def finish(self, result: Any = None, *, now: datetime | None = None) -> None:
        """
        Close it as finished; on disk when this returns.

        Raise InvalidResultError when the codec can't write the result, or it is larger than
        MAX_RESULT_SIZE.
        """
        done = self.completion(result)
        with self._settling():
            if store.finish([done], using=self.lease.using, worker=self.worker, now=now):
                raise self._preempted()
            self._settle("finished")

    @or_deferred
    def retry(
        self,
        wait: float | None = None,
        *,
        why: store.Failure | None = None,
        now: datetime | None = None,
    ) -> None:
        """Count an error, and let it be tried again after so many seconds (RETRY_WAIT)."""
        why = self._for_all_eyes(why or store.Failure())
        wait = options().RETRY_WAIT if wait is None else wait
        with self._settling():
            going_on = store.retry(self.lease, wait=wait, why=why, **self._terms(now))
            self._settle("retried" if going_on else "cancelled")

    @or_deferred
    def release(self, delay: float = 0.0, *, now: datetime | None = None) -> None:
        """Give it back untried: this counts as no attempt."""
        with self._settling():
            cancelled: list[store.Lease] = []
            terms: dict[str, Any] = {"using": self.lease.using, "now": now}
            if store.release([self.lease], delay=delay, cancelled=cancelled, **terms):
                raise self._preempted()
            self._settle("cancelled" if cancelled else "released")

    @or_deferred
    def snooze(self, after: Span, *, now: datetime | None = None) -> None:
        """
        Put it off for so long: this counts as no attempt and as no error.

        Unlike after release(), its user is charged for the time that it has run.
        """
        wait = Snooze(after).after
        terms: dict[str, Any] = {"seconds": self.seconds, "using": self.lease.using, "now": now}
        with self._settling():
            going_on = store.snooze(self.lease, wait=wait, **terms)
            self._settle("snoozed" if going_on else "cancelled")

    @or_deferred
    def fail(
        self,
        error: str = "failed",
        message: str = "",
        *,
        why: store.Failure | None = None,
        now: datetime | None = None,
    ) -> None:
        """End it as failed, in a group with others of the same error."""
        why = self._for_all_eyes(why or store.Failure(error=error, message=message))
        with self._settling():
            store.fail(self.lease, why=why, **self._terms(now))
            self._settle("failed")

    @or_deferred
    def cancel(self, *, now: datetime | None = None) -> None:
        """End it as cancelled."""
        with self._settling():
            store.cancel(self.lease, **self._terms(now))
            self._settle("cancelled")

    @or_deferred
    def discard(
        self, reason: str = "", *, why: store.Failure | None = None, now: datetime | None = None
    ) -> None:
        """
        End it as cancelled, for a reason of its own: nobody has asked for that.

        ``why`` is what is kept of the attempt; the dead letter has the reason, in the group
        *discarded*.
        """
        why = self._for_all_eyes(why or store.Failure(error=DISCARDED, message=reason))
        told = reason or ": ".join(part for part in (why.error, why.message) if part)
        grave = self._for_all_eyes(store.Failure(error=GRAVE, message=told))
        with self._settling():
            store.cancel(self.lease, why=why, grave=grave, **self._terms(now))
            self._settle("discarded")

    def _for_all_eyes(self, why: store.Failure) -> store.Failure:
        """Return a reason without what is sensitive in the data."""
        return replace(
            why, message=self.redacted(why.message), traceback=self.redacted(why.traceback)
        )

    @contextmanager
    def _settling(self) -> Iterator[None]:
        """Have nobody take the task for lost meanwhile, since it is this that ends it."""
        self.is_settling = True
        try:
            yield
        finally:
            self.is_settling = False
        if self._writes:
            self.write_notes()

    def _settle(self, word: str) -> None:
        """Note what it was settled as, until a transaction of the caller's is rolled back."""
        self._settled = word
        connection = connections[self.lease.using]
        self._doubt = Doubt(connection) if connection.in_atomic_block else None

    def _preempted(self) -> PreemptedError:
        return PreemptedError(f"Task '{self.key}' is no longer held by this attempt.")

    def _terms(self, now: datetime | None) -> dict[str, Any]:
        return {
            "seconds": self.seconds,
            "using": self.lease.using,
            "worker": self.worker,
            "now": now,
        }

    aheartbeat = twin(heartbeat)
    aupdate_data = twin(update_data)
    aprogress = twin(progress)
    alog = twin(log)
    awrite_notes = twin(write_notes)
    afinish = twin(finish)
    aretry = twin(retry)
    arelease = twin(release)
    afail = twin(fail)
    acancel = twin(cancel)
    asnooze = twin(snooze)
    adiscard = twin(discard)


def add_line(task: AcquiredTask, at: float, level: str, source: str, text: str) -> None:
    """Add to a task's log what was logged at a time, in seconds since 1970, by some logger."""
    task._noted().add(entry(at, level, source, task.redacted(text)))


def note_of(task: AcquiredTask) -> store.Note | None:
    """Return what a task has told, if that has changed since this was called last."""
    told = task.notes
    if told is None or not told.changed:
        return None
    # In this order: what is told from here on is taken the next time.
    told.changed = False
    is_first, told.written = not told.written, True
    part, stage = told.standing
    return store.Note(
        task_id=task.lease.task_id,
        attempt=task.lease.attempt,
        progress=part,
        stage=stage,
        lines=told.text(),
        is_first=is_first,
    )


def in_event_loop() -> bool:
    """Tell whether a query here would hold up an event loop, which Django refuses."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def until(submission: store.Submission, now: datetime | None) -> float:
    """Return in how many seconds a task may run."""
    if submission.run_at is None:
        return 0.0
    return max(0.0, (submission.run_at - (now or timezone.now())).total_seconds())


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


def checked(name: str, value: Any, length: int) -> str:
    """
    Return a name as it may be stored.

    Raise InvalidTaskError when it is no text, empty, too long, or has a NUL character or
    half of a surrogate pair.
    """
    if not isinstance(value, str):
        raise InvalidTaskError(f"The {name} must be a string, not {value!r}.")
    if not value:
        raise InvalidTaskError(f"The {name} must not be empty.")
    if len(value) > length:
        raise InvalidTaskError(
            f"The {name} may have at most {length} characters; this one has {len(value)}."
        )
    if "\x00" in value:
        raise InvalidTaskError(f"The {name} must not hold a NUL character.")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidTaskError(f"The {name} can't be written as UTF-8: {error}.") from error
    return value


def checked_user(value: Any) -> str:
    """
    Return a user as it may be stored: an empty text for none.

    Raise InvalidTaskError when it is no name, or that of everyone.
    """
    user = "" if value in (None, "") else checked("user", value, KEY_LENGTH)
    if user == models.EVERYONE:
        raise InvalidTaskError(
            f"No user can be called '{user}': that is the share of all who have none of their own."
        )
    return user


def checked_limits(value: Any) -> tuple[str, ...]:
    """
    Return names of limits as they may be stored: sorted, each once.

    Raise InvalidTaskError when one is no name, has a comma, or all are too long together.
    """
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise InvalidTaskError(f"The limits must be a list of names, not {value!r}.")
    names = sorted({checked("name of a limit", name, models.LIMIT_LENGTH) for name in value})
    for name in names:
        if "," in name:
            raise InvalidTaskError(f"The name of a limit must not hold a comma: {name!r}.")
    if len(",".join(names)) > models.LIMITS_LENGTH:
        raise InvalidTaskError(
            f"The names of a task's limits may have at most {models.LIMITS_LENGTH} characters"
            " together."
        )
    return tuple(names)


def checked_priority(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not SMALLEST <= value <= LARGEST:
        raise InvalidTaskError(
            f"The priority must be a whole number from {SMALLEST} to {LARGEST}, not {value!r}."
        )
    return int(value)


def checked_span(name: str, value: Span | None) -> float | None:
    """
    Return a length of time in seconds.

    Raise InvalidTaskError when it is no timedelta, number or span, or not above 0.
    """
    if value is None:
        return None
    seconds: Any = span(name, value) if isinstance(value, str) else value
    if isinstance(seconds, timedelta):
        seconds = seconds.total_seconds()
    good = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not good or not 0 < seconds <= LONGEST_SPAN:
        raise InvalidTaskError(
            f"{name} must be a timedelta, seconds or a span such as '5m30s', above 0 and at most"
            f" {LONGEST_SPAN:.0f} seconds, not {value!r}."
        )
    return float(seconds)


def checked_keys(value: Iterable[str]) -> Iterable[str]:
    """Return keys; raise ValueError for a single one, whose letters would be taken for keys."""
    if isinstance(value, str):
        raise ValueError(f"keys must be a list of keys, not {value!r}.")
    return value


def checked_timeout(value: Span | None) -> float | None:
    """
    Return for how many seconds to wait.

    Raise ValueError when it is no timedelta, number or span, or below 0.
    """
    if value == 0 or value == timedelta():
        return 0.0
    try:
        return checked_span("timeout", value)
    except InvalidTaskError as error:
        raise ValueError(str(error).replace("above 0", "0 or above")) from None


def encoded(
    value: Any, name: str = "The data", *, limit: int | None = None, by: str = "MAX_PAYLOAD_SIZE"
) -> str:
    """
    Return a value as the text that is stored.

    Raise InvalidTaskError when the codec can't write it, which is JSON by default, or it is
    larger than the limit, which by default is MAX_PAYLOAD_SIZE.
    """
    codec = codecs.writer()
    try:
        text = codec.dumps(value)
    except (TypeError, ValueError, RecursionError) as error:
        what = codec.name if codec.name == codecs.PickleCodec.name else "JSON"
        raise InvalidTaskError(f"{name} can't be written as {what}: {error}.") from error
    limit = options().MAX_PAYLOAD_SIZE if limit is None else limit
    if len(text) > limit:
        raise InvalidTaskError(
            f"{name} may have at most {limit} bytes as JSON, by {by}; this has {len(text)}."
        )
    return codecs.stored(text, codec)


def encoded_result(value: Any) -> str:
    limit = options().MAX_RESULT_SIZE
    by = "MAX_PAYLOAD_SIZE" if limit is None else "MAX_RESULT_SIZE"
    try:
        return encoded(value, "The result", limit=limit, by=by)
    except InvalidTaskError as error:
        raise InvalidResultError(str(error)) from error


def captured() -> str | None:
    """
    Return what a task that is submitted here takes along of its surroundings, to be stored.

    Raise InvalidTaskError when the codec can't write it, or it is too large.
    """
    if not (values := context.captured()):
        return None
    name = f"The context ({', '.join(values)})"
    return encoded(values, name, limit=context.LONGEST, by="django_perfectqueue.context")


def moment(name: str, value: When | None, now: datetime | None = None) -> datetime | None:
    """
    Return a point in time from a datetime, a timedelta, seconds or a span such as "5m30s".

    Raise InvalidTaskError when it is none of these, or a datetime without a time zone.
    """
    if value is None:
        return None
    if isinstance(value, datetime):
        if timezone.is_naive(value):
            raise InvalidTaskError(f"{name} must be an aware datetime: {value} has no time zone.")
        return value
    if isinstance(value, str):
        value = span(name, value)
    if isinstance(value, bool) or not isinstance(value, int | float | timedelta):
        raise InvalidTaskError(
            f"{name} must be a datetime, a timedelta, seconds or a span such as '5m30s',"
            f" not {value!r}."
        )
    try:
        wait = value if isinstance(value, timedelta) else timedelta(seconds=value)
        return (now or timezone.now()) + wait
    except (OverflowError, ValueError) as error:
        raise InvalidTaskError(f"{name} is too far away: {value}.") from error


def span(name: str, text: str) -> float:
    """
    Return the seconds of a text such as "90s", "5m30s" or "1d12h".

    Raise InvalidTaskError when any of it is something else.
    """
    seconds = seconds_in(text)
    if seconds is None:
        raise InvalidTaskError(
            f"{name} must be a span such as '90s', '5m30s' or '1d12h', not {text!r}."
        )
    return seconds
