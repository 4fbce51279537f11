"""A task that a processor or a program has acquired, its steps, and what settles it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, ParamSpec

from asgiref.sync import iscoroutinefunction, sync_to_async
from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Case, When
from django.db.models.functions import Length
from django.db.models.lookups import LessThanOrEqual

from django_perfectqueue import exceptions, models, store
from django_perfectqueue.conf import options
from django_perfectqueue.lib.async_twins import twin
from django_perfectqueue.lib.imports import path_of
from django_perfectqueue.models.batch import DISCARDED_GROUP
from django_perfectqueue.payload import codecs
from django_perfectqueue.payload.codecs import JSON, STEP_LENGTH
from django_perfectqueue.payload.inputs import Duration, checked, encoded
from django_perfectqueue.verdicts import SHORTEST_WAIT, Discard, Snooze, wait_of

from .batch import Batch, batch_closed_by, batch_of
from .reporting import ReportingTask
from .submission import Parents

if TYPE_CHECKING:
    from .queue import Queue


P = ParamSpec("P")

ENDED = ("finished", "failed", "cancelled", "discarded")

DISCARDED = path_of(Discard)


@dataclass(slots=True)
class AcquiredTask(ReportingTask):
    """
    A task in this program's hands, good until its lease runs out.

    One of finish(), retry(), snooze(), release(), fail(), discard() and cancel() settles
    it, once and durably; each raises PreemptedError, and writes nothing, when the lease
    has passed to another, and AlreadyFinishedError when this object has ended the task. In
    a transaction of the caller's it is settled with that; in an atomic handler they are
    ``deferred``, and written when it has returned. ``django_result`` is what Django's
    signals are sent for one of its tasks. ``others_first`` asks a worker whether it is to
    yield to the tasks of others, None is outside of a worker; it ``yields`` once that was so.
    """

    started: float = field(default_factory=time.monotonic)
    is_settling: bool = field(default=False, repr=False)
    django_result: Any = field(default=None, repr=False, compare=False)
    deferred: Deferred | None = field(default=None, repr=False, compare=False)
    others_first: Callable[[AcquiredTask], bool] | None = field(
        default=None, repr=False, compare=False
    )
    yields: bool = field(default=False, repr=False, compare=False)
    _settled: str = field(default="", repr=False)
    _lost: bool = field(default=False, repr=False)
    _doubt: MaybeCommitted | None = field(default=None, repr=False, compare=False)
    _steps: Steps | None = field(default=None, repr=False, compare=False)

    def __repr__(self) -> str:
        """Name it without its data, which must not get into logs and reports of errors."""
        return f"<{type(self).__name__} {self.key!r} queue={self.lease.queue!r} {self.type!r}>"

    @property
    def queue(self) -> Queue:
        """The queue that it came from."""
        from .queue import Queue

        return Queue(self.lease.queue, using=self.lease.using)

    @property
    def parents(self) -> Parents:
        """How the tasks have ended for which it has waited, by key."""
        return Parents(self.lease.task_id, using=self.lease.using)

    @property
    def batch(self) -> Batch | None:
        """The batch that it is in, to which it may add tasks while it runs; or None."""
        return batch_of(self.queue, self.lease.task_id)

    @property
    def closes(self) -> Batch | None:
        """The batch of which it is a callback, or None."""
        return batch_closed_by(self.queue, self.lease.task_id)

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
        before = self.snapshot()
        try:
            with store.database.together(using=self.lease.using):
                yield
        except BaseException:
            self.restore(before)
            raise

    def snapshot(self) -> tuple[store.Lease, object]:
        """Return what restore() is to be given when its data were not stored after all."""
        return self.lease, self._data

    def restore(self, before: tuple[store.Lease, object]) -> None:
        self.lease, self._data = before

    def heartbeat(self, *, now: datetime | None = None) -> None:
        """
        Renew the lease.

        Raise PreemptedError when it has passed to another, CancelRequestedError when
        someone wants the task to stop. In an atomic handler it only looks.
        """
        # A renewal would lock the ticket as long as the transaction lasts.
        alive_time = self.alive_time if self.deferred is None else None
        using = self.lease.using
        [pulse] = store.heartbeat([self.lease], alive_time=alive_time, using=using, now=now)
        if not pulse.held:
            raise self._preempted()
        if pulse.cancel_requested:
            raise exceptions.CancelRequestedError(f"Task '{self.key}' is to be cancelled.")

    def update_data(self, changes: Mapping[str, object], *, now: datetime | None = None) -> None:
        """
        Merge into the stored data, and renew the lease.

        Raise PreemptedError when the lease has passed to another, AlreadyFinishedError when
        this has ended the task.
        """
        self._refuse_if_settled()
        merged = {**self.data, **changes}
        self._secrets_in_data()  # What is sensitive before still is afterwards.
        payload = encoded(merged)
        if why := store.database.too_long(payload, using=self.lease.using):
            raise exceptions.InvalidTaskError(f"The data can't be stored: {why}.")

        def write() -> None:
            self.lease = store.update_payload(
                self.lease, payload, alive_time=self.alive_time, using=self.lease.using, now=now
            )

        self._write(write)
        self._data = merged

    def step(
        self, name: str, function: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs
    ) -> JSON:
        """
        Return what this step has returned in an earlier attempt; else run it, and keep that.

        What it returns is read back from how it is stored, the first time, too. The record is
        committed when the function has returned; of an atomic handler with its effects. Raise
        InvalidTaskError for a bad name or one that this attempt has used, InvalidResultError
        for what can't be stored, PreemptedError when the lease has passed to another,
        AlreadyFinishedError when this has ended the task; and what the function raises, after
        which nothing is kept. Before it runs one it may yield, as yield_() does; not in a
        transaction.
        """
        return self._opened_steps().run(name, partial(function, *args, **kwargs))

    async def astep(
        self, name: str, function: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs
    ) -> JSON:
        """Do the same; the function may be a coroutine function, else it runs in a thread."""
        steps = await sync_to_async(self._opened_steps)()
        return await steps.run_async(name, partial(function, *args, **kwargs))

    def _opened_steps(self) -> Steps:
        self._refuse_if_settled()
        if self._steps is None:
            self._steps = Steps(self)
        return self._steps

    def yield_(self) -> None:
        """
        Let the tasks of others go first, where some wait that come before: a step does so, too.

        In a worker without a free processor, once the task has run for YIELD_AFTER since it was
        taken, and has kept a step if it has steps. It then goes back to its line, keeps its place
        and its steps, and starts again in its turn; the handler is left by YieldedError. Its user
        is charged for the time, and no attempt is counted. Elsewhere it does nothing. Raise
        WaitInTransactionError in an atomic handler, or in a transaction of the caller's.
        """
        self._refuse_if_settled()
        if self.deferred is not None or (self.others_first and in_transaction()):
            raise exceptions.WaitInTransactionError(
                f"Task '{self.key}' can't yield in a transaction, which would be undone."
                " Yield outside of it, by a handler that is not atomic."
            )
        self._give_way()

    def _give_way(self) -> None:
        """Raise YieldedError where others come first, and nothing would be undone by that."""
        if self.others_first is None or self.deferred is not None:
            return
        # Once one step has raised it, those beside it do.
        if (self.yields or self.others_first(self)) and not in_transaction():
            self.yields = True
            raise exceptions.YieldedError(
                f"Task '{self.key}' goes on later: tasks of others come first."
            )

    @property
    def is_between_steps(self) -> bool:
        """Whether no step of it runs, and this attempt has kept one if it has steps."""
        steps = self._steps
        return steps is None or (steps.progressed and not steps.running)

    def completion(self, result: object = None) -> store.Completion:
        """
        Return what finish() would write.

        Raise InvalidResultError when the codec can't write the result, or it is larger than
        MAX_RESULT_SIZE, or than what the server takes.
        """
        return store.Completion(
            lease=self.lease,
            result=None if result is None else encoded_result(result, using=self.lease.using),
            started=self.started,
            ended=time.monotonic(),
        )

    def finish(self, result: object = None, *, now: datetime | None = None) -> None:
        """
        Close it as finished; on disk when this returns.

        Raise InvalidResultError when the codec can't write the result, or it is larger than
        MAX_RESULT_SIZE.
        """

        def write() -> None:
            done = self.completion(result)
            with self._settling():
                if store.finish([done], using=self.lease.using, worker=self.worker, now=now):
                    raise self._preempted()
                self._settle("finished")

        self._refuse_if_settled()
        self._write(write, "finished")

    def retry(
        self,
        wait: Duration | None = None,
        *,
        why: store.Failure | None = None,
        now: datetime | None = None,
    ) -> None:
        """
        Count an error, and let it be tried again after so long (RETRY_WAIT).

        Raise InvalidTaskError where that is no length of time.
        """
        seconds = options().RETRY_WAIT if wait is None else wait_of("retry()", wait)
        why = self._for_all_eyes(why or store.Failure())
        self._end_once(store.Ending.retry(seconds, why), now)

    def release(self, delay: Duration = 0.0, *, now: datetime | None = None) -> None:
        """
        Give it back: this counts as no attempt, and its user is charged for the time that
        it has run.

        It waits for a second at least, as after snooze(): a handler that gives it back again
        and again would keep the database busy. Raise InvalidTaskError where the delay is no
        length of time.
        """
        wait = max(SHORTEST_WAIT, wait_of("release()", delay))
        self._end_once(store.Ending.release(wait), now)

    def snooze(self, after: Duration, *, now: datetime | None = None) -> None:
        """
        Put it off for so long: this counts as no attempt and as no error.

        Its user is charged for the time that it has run, as after release().
        """
        self._end_once(store.Ending.snooze(Snooze(after).after), now)

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
        self._end_once(store.Ending.fail(why), now)

    def cancel(self, *, now: datetime | None = None) -> None:
        """End it as cancelled."""
        self._end_once(store.Ending.cancel(), now)

    def discard(
        self, reason: str = "", *, why: store.Failure | None = None, now: datetime | None = None
    ) -> None:
        """
        End it as cancelled, for a reason of its own: nobody has asked for that.

        ``why`` is what is kept of the attempt; the dead letter has the reason, in the group
        *discarded*.
        """
        why = self._for_all_eyes(why or store.Failure(error=DISCARDED, message=reason))
        text = reason or ": ".join(part for part in (why.error, why.message) if part)
        letter = self._for_all_eyes(store.Failure(error=DISCARDED_GROUP, message=text))
        self._end_once(store.Ending.discard(why, letter), now)

    def _end(self, ending: store.Ending, *, now: datetime | None = None) -> None:
        """
        End the attempt at once; raise PreemptedError when the lease has passed to another.

        For who runs it. The store cancels what was to be put off where someone has asked for
        that.
        """
        with self._settling():
            words = store.settle(
                [self.lease],
                ending,
                seconds=self.seconds,
                using=self.lease.using,
                worker=self.worker,
                now=now,
            )
            if self.lease not in words:
                raise self._preempted()
            self._settle(words[self.lease])

    def _end_once(self, ending: store.Ending, now: datetime | None) -> None:
        """
        End the attempt; for an atomic handler, when the handler returns.

        Raise AlreadyFinishedError or PreemptedError when it was settled before.
        """
        self._refuse_if_settled()
        self._write(partial(self._end, ending, now=now), ending.word)

    def _write(self, write: Callable[[], None], word: str = "") -> None:
        """Write something of it; for an atomic handler, when the handler returns."""
        if self.deferred is None:
            write()
        else:
            self.deferred.add(write, word=word)

    def _for_all_eyes(self, why: store.Failure) -> store.Failure:
        """Return a reason without what is sensitive in the data."""
        return replace(
            why, message=self.redacted(why.message), traceback=self.redacted(why.traceback)
        )

    @contextmanager
    def _settling(self) -> Iterator[None]:
        """Keep others from taking the task for lost while this call ends it."""
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
        self._doubt = maybe_committed(self.lease.using)

    def _refuse_if_settled(self) -> None:
        """Raise the error for a write to a task that this has settled."""
        word = self.settled or (self.deferred.settled if self.deferred else "")
        # What was to be retried is cancelled where someone has asked for that.
        what = "it was cancelled" if word == "cancelled" else f"you {word} it"
        if word in ENDED:
            raise exceptions.AlreadyFinishedError(f"Task '{self.key}' has ended: {what}.")
        if word:
            raise exceptions.PreemptedError(f"Task '{self.key}' is no longer held: {what}.")

    def _preempted(self) -> exceptions.PreemptedError:
        """Return the error for a lease that the store has refused."""
        return store.refusal(self.lease, using=self.lease.using)

    aheartbeat = twin(heartbeat)
    aupdate_data = twin(update_data)
    afinish = twin(finish)
    aretry = twin(retry)
    arelease = twin(release)
    afail = twin(fail)
    acancel = twin(cancel)
    asnooze = twin(snooze)
    ayield = twin(yield_)
    adiscard = twin(discard)


# Named steps of a task: what one has returned is kept for the attempts after it.


MOST = 1_000
SHORT = 1_000


class Steps:
    """
    The steps of one attempt of a task, and those that are kept of earlier attempts.

    ``running`` is how many run at this moment, and ``progressed`` means that one was kept.
    """

    def __init__(self, task: AcquiredTask) -> None:
        self.task, self.using = task, task.lease.using
        self.rows = models.Step.objects.using(self.using).filter(task_id=task.lease.task_id)
        self.used: dict[str, MaybeCommitted | None] = {}
        self.running, self.progressed = 0, False
        # A first attempt has nothing to read.
        self.kept = {} if task.lease.attempt == 1 else self.read()

    def run(self, name: str, call: Callable[[], object]) -> JSON:
        """Return what is kept of a step, or else call it, and keep what it returns."""
        text = self.begin(name)
        if text is None:
            with self.trying(name):
                text = self.end(name, call())
        return codecs.decode(text)

    async def run_async(self, name: str, call: Callable[[], object]) -> JSON:
        """Do the same; what is no coroutine function is called in a thread."""
        text = await sync_to_async(self.begin)(name)
        if text is None:
            with self.trying(name):
                text = await sync_to_async(self.end)(name, await awaited(call))
        return codecs.decode(text)

    @contextmanager
    def trying(self, name: str) -> Iterator[None]:
        """Let the handler try a step again that has raised."""
        try:
            yield
        except BaseException:
            self.used.pop(name, None)
            raise
        finally:
            self.running -= 1

    def begin(self, name: str) -> str | None:
        """
        Return what is kept of a step, as it is stored, or None where it is to run.

        Raise InvalidTaskError for a bad name, or one that this attempt has used.
        """
        checked("name of a step", name, STEP_LENGTH)
        doubt = self.used.get(name)
        if name in self.used and not (doubt and doubt.is_undone()):
            raise exceptions.InvalidTaskError(
                f"This attempt has run a step '{name}' already: give each step its own name."
            )
        if name not in self.kept and len(self.kept) >= MOST:
            raise exceptions.InvalidTaskError(
                f"A task may have at most {MOST} steps; '{name}' is one more."
            )
        if name not in self.kept:
            self.task._give_way()
        text: str | None = None
        if name in self.kept:
            found = self.rows.filter(name=name).values_list("result_text", flat=True)
            text = self.kept[name] or store.database.with_retries(found.first, using=self.using)
        self.used[name] = None
        self.running += text is None
        return text

    def end(self, name: str, value: object) -> str:
        """Keep what a step has returned; return it as it is stored."""
        text = encoded_result(value, f"The result of step '{name}'", using=self.using)
        self.task._write(lambda: store.keep_step(self.task.lease, name, text, using=self.using))
        self.kept[name] = None
        self.progressed = True
        # What is rolled back may run again in this attempt.
        self.used[name] = maybe_committed(self.using)
        return text

    def read(self) -> dict[str, str | None]:
        """Return what is kept, by name; None for a long result, which is read once it is needed."""
        length = Length("result_text")
        short = Case(When(LessThanOrEqual(length, SHORT), then="result_text"))
        rows = self.rows.values_list("name", short)
        return store.database.with_retries(lambda: dict(rows), using=self.using)


def in_transaction() -> bool:
    """Return whether an exception here may undo a transaction of the caller's."""
    opened = connections.all(initialized_only=True)
    return any(store.notify.in_callers_transaction(one.alias) for one in opened)


async def awaited(call: Callable[[], object]) -> JSON:
    value = await (call if iscoroutinefunction(call) else sync_to_async(call))()
    return await value if isawaitable(value) else value


def encoded_result(value: object, name: str = "The result", *, using: str) -> str:
    """Return a result as it is stored; raise InvalidResultError where it can't be."""
    limit = options().MAX_RESULT_SIZE
    by = "MAX_PAYLOAD_SIZE" if limit is None else "MAX_RESULT_SIZE"
    try:
        text = encoded(value, name, limit=limit, by=by)
    except exceptions.InvalidTaskError as error:
        raise exceptions.InvalidResultError(str(error)) from error
    if why := store.database.too_long(text, using=using):
        raise exceptions.InvalidResultError(
            f"{name} can't be stored: {why}. Raise that, or return less."
        )
    return text


# What settles a task in a transaction that has yet to be committed.


class MaybeCommitted:
    """Whether something that was written in a caller's transaction came to be."""

    def __init__(self, connection: BaseDatabaseWrapper) -> None:
        self.connection = connection
        self.committed = False
        transaction.on_commit(self, using=connection.alias, robust=True)

    def __call__(self) -> None:
        self.committed = True

    def is_undone(self) -> bool:
        """Return whether the transaction, or the savepoint that it was in, was rolled back."""
        if self.committed:
            return False
        return not any(hook[1] is self for hook in list(self.connection.run_on_commit))


def maybe_committed(using: str) -> MaybeCommitted | None:
    """Return whether what was just written comes to be; None where it is committed already."""
    connection = connections[using]
    return MaybeCommitted(connection) if connection.in_atomic_block else None


@dataclass(slots=True)
class Deferred:
    """
    What an atomic handler has asked for, to be written with its effects when it has returned.

    To write it at once would lock the ticket for as long as the handler runs, and nobody
    could renew its lease. What was asked for in a savepoint goes back with that.
    """

    connection: BaseDatabaseWrapper
    acts: list[tuple[MaybeCommitted, Callable[[], None], str]] = field(default_factory=list)

    @property
    def settled(self) -> str:
        """What it settles the task as; nothing where it does not."""
        return next((word for _do, word in self.pending() if word), "")

    def add(self, do: Callable[[], None], *, word: str = "") -> None:
        """Have something done, as long as the transaction stands; ``word`` is as ``settled``."""
        self.acts.append((MaybeCommitted(self.connection), do, word))

    def pending(self) -> list[tuple[Callable[[], None], str]]:
        """Return what was not rolled back."""
        return [(do, word) for doubt, do, word in self.acts if not doubt.is_undone()]

    def write(self) -> None:
        for do, _word in self.pending():
            do()
