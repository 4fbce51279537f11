"""A task that a processor or a program has acquired, its steps, and what settles it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NoReturn, ParamSpec

from asgiref.sync import sync_to_async
from django.db.backends.base.base import BaseDatabaseWrapper

from django_perfectqueue import exceptions, store
from django_perfectqueue.conf import options
from django_perfectqueue.lib.async_twins import twin
from django_perfectqueue.lib.imports import path_of
from django_perfectqueue.lib.running import running
from django_perfectqueue.models import PARKED_FROM, Outcome
from django_perfectqueue.models.batch import DISCARDED_GROUP
from django_perfectqueue.payload.codecs import JSON
from django_perfectqueue.payload.inputs import Duration, encoded, moment
from django_perfectqueue.verdicts import SHORTEST_WAIT, Discard, Snooze, wait_of

from .batch import Batch, batch_closed_by, batch_of
from .children import ERRORS, Join, run_child
from .reporting import ReportingTask
from .steps import Kind, MaybeCommitted, Steps, encoded_result, in_transaction, maybe_committed
from .submission import Parents, parent_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .queue import Queue
    from .submission import TaskOptions, Waited
    from .task_handle import TaskHandle


P = ParamSpec("P")

ENDED = ("finished", "failed", "cancelled", "discarded")

DISCARDED = path_of(Discard)


@dataclass(slots=True, repr=False)
class AcquiredTask(ReportingTask):
    """
    A task in this program's hands, good until its lease runs out.

    One of finish(), retry(), snooze(), release(), fail(), discard() and cancel() settles
    it, once and durably; each raises PreemptedError, and writes nothing, when the lease
    has passed to another, and AlreadyFinishedError when this object has ended the task. In
    a transaction of the caller's it is settled with that; in an atomic handler they are
    ``deferred``, and written when it has returned. ``django_result`` is what Django's
    signals are sent for one of its tasks. ``others_first`` asks a worker whether it is to
    yield to the tasks of others, None is outside of a worker; ``parting`` is how it is to end once
    its handler is left, as it has yielded or waits. ``moment`` is the time that a test
    has set, None that of the server.
    """

    started: float = field(default_factory=time.monotonic)
    is_settling: bool = False
    django_result: Any = field(default=None, compare=False)
    deferred: Deferred | None = field(default=None, compare=False)
    others_first: Callable[[AcquiredTask], bool] | None = field(default=None, compare=False)
    parting: store.Ending | None = field(default=None, compare=False)
    moment: datetime | None = field(default=None, compare=False)
    _settled: str = ""
    _doubt: MaybeCommitted | None = field(default=None, compare=False)
    _steps: Steps | None = field(default=None, compare=False)

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

    def heartbeat(self) -> None:
        """
        Renew the lease.

        Raise PreemptedError when it has passed to another, CancelRequestedError when
        someone wants the task to stop. In an atomic handler it only looks.
        """
        # A renewal would lock the ticket as long as the transaction lasts.
        alive_time = self.alive_time if self.deferred is None else None
        terms: Any = {"using": self.lease.using, "now": self.moment}
        [pulse] = store.leases.heartbeat([self.lease], alive_time=alive_time, **terms)
        if not pulse.held:
            raise self._preempted()
        if pulse.cancel_requested:
            raise exceptions.CancelRequestedError(f"Task '{self.key}' is to be cancelled.")

    def update_data(self, changes: Mapping[str, object]) -> None:
        """
        Merge into the stored data, and renew the lease.

        Raise PreemptedError when the lease has passed to another, AlreadyFinishedError when
        this has ended the task.
        """
        self._refuse_if_settled()
        using, now = self.lease.using, self.moment
        merged = {**self.data, **changes}
        self._secrets_in_data()  # What is sensitive before still is afterwards.
        payload = encoded(merged)
        if why := store.database.too_long(payload, using=using):
            raise exceptions.InvalidTaskError(f"The data can't be stored: {why}.")

        def write() -> None:
            self.lease = store.update_payload(
                self.lease, payload, alive_time=self.alive_time, using=using, now=now
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

    def version(self, name: str) -> bool:
        """
        Return whether this task runs the new side of a change of its handler; it is kept.

        It is False, for ever, where an earlier attempt has kept a step that lies beyond this
        call: the task has gone on there with the code before the change. It is True for all
        others: new ones, and those that have yet to come to it. So call it where the changed
        code begins, under a name for each change; before the first step, all that had kept one
        take the old side. Raise what step() does.
        """
        steps = self._opened_steps()
        # What was kept and is not used by now, this attempt has yet to come to. Not so a signal.
        return bool(
            steps.run(
                name, lambda: all(one in steps.used or one[0] == Kind.SIGNAL for one in steps.kept)
            )
        )

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
        ending = self.parting
        if ending is None and self.others_first is not None and self.deferred is None:
            ending = store.Ending.give_way() if self.others_first(self) else None
        # Once one step has raised it, those beside it do.
        if ending is not None and not in_transaction():
            self._leave(ending)

    def _leave(self, ending: store.Ending) -> NoReturn:
        """Raise what leaves the handler; who runs that ends the attempt so."""
        self.parting = ending
        if ending.opens is not None:
            raise exceptions.SuspendedError(
                f"Task '{self.key}' waits, and goes on later: '{ending.opens.name}'."
            )
        raise exceptions.YieldedError(
            f"Task '{self.key}' goes on later: tasks of others come first."
        )

    def sleep(self, name: str, duration: Duration) -> None:
        """
        Wait for so long without a processor: a kept step of this name.

        The first time the handler is left by SuspendedError: let it pass. This counts no attempt,
        and its user is charged for the time that it has run. When the time is over by the server's
        clock, the task starts again in its turn, and this returns. For a program that runs it
        without a worker it is settled when this is raised. Raise InvalidTaskError for a bad name,
        one that this attempt has used, or no length of time, WaitInTransactionError in an atomic
        handler or in a transaction of the caller's.
        """
        wait = timedelta(seconds=wait_of("sleep()", duration))
        self._wait(Kind.SLEEP, name, lambda now: now + wait)

    def sleep_until(self, name: str, when: datetime) -> None:
        """Wait until a time as sleep() does; that of the first call holds."""
        until = moment("when", when)
        if not isinstance(until, datetime) or until >= PARKED_FROM:
            raise exceptions.InvalidTaskError(f"when must be a datetime before 9000, not {when!r}.")
        self._wait(Kind.SLEEP, name, lambda _now: until)

    def wait_for(self, name: str, timeout: Duration | None = None) -> JSON:
        """
        Return the data of the signal of this name: wait for it without a processor, as sleep().

        ``TaskHandle.signal()`` sends it, before or after this is reached; the first one counts.
        Where none has come within the ``timeout``, which begins when this is reached first, this
        is None, and stays so.
        """
        wait = None if timeout is None else timedelta(seconds=wait_of("wait_for()", timeout))
        return self._wait(Kind.WAIT, name, lambda now: None if wait is None else now + wait)

    def run(
        self,
        name: str,
        type: str,  # noqa: A002
        data: object = None,
        *,
        key: str | None = None,
        queue: str | None = None,
        **options: Unpack[TaskOptions],
    ) -> TaskHandle:
        """
        Store a task as a child of this one, once, as a kept step of this name; return it.

        A later attempt gets the same child. It is stored with the record of the step, or in an
        atomic handler or a transaction of yours with that. Its ``queue`` and ``user`` are those of
        this task if nothing else is said, and its ``key`` a new UUID; the ``options`` are those of
        a submit. It is kept until this task has finished, and goes on if this is cancelled. Raise
        what step() and submit() do.
        """
        from .queue import Queue

        if options.get("user") is None:
            options["user"] = self.user
        to = Queue(queue or self.lease.queue, using=self.lease.using)
        submit = partial(to.submit, key, type, data, **options)
        found, key = run_child(self._opened_steps(), name, submit)
        return Queue(found, using=self.lease.using)[key]

    def join(
        self,
        *tasks: Waited,
        timeout: Duration | None = None,
        errors: Literal["raise", "return"] = "raise",
    ) -> list[Any]:
        """
        Return what the handlers of tasks have returned, in order, once all have ended.

        Any tasks of this database: it waits for them without a processor, as sleep() does, and
        tasks that end while it waits start it again. What has come of them is kept: it is the same
        in later attempts, whatever becomes of the tasks. For the first that has not finished raise
        TaskFailedError or one of its kinds, NotFoundError where it was deleted, or WaitTimeoutError
        where it has not ended within the ``timeout``, which begins when this is reached first; or
        with ``errors="return"`` return an End in its place, which says so. Raise InvalidTaskError
        where one of them waits for this task, or for bad terms, and WaitInTransactionError as
        sleep() does.
        """
        ERRORS.require("errors", errors, exceptions.InvalidTaskError)
        wait = None if timeout is None else timedelta(seconds=wait_of("join()", timeout))
        found = [parent_of(one, self.lease.queue, self.lease.using) for one in tasks]
        steps = self._opened_for_wait()
        join = Join(steps, found, lambda now: None if wait is None else now + wait)
        ends = join.ends() if found else []
        if errors == "return":
            return [one.result() if one.status == Outcome.FINISHED else one for one in ends]
        return [one.result() for one in ends]

    def _wait(self, kind: Kind, name: str, end: Callable[[datetime], datetime | None]) -> JSON:
        return self._opened_for_wait().wait(kind, name, end)

    def _opened_for_wait(self) -> Steps:
        self._refuse_if_settled()
        if self.deferred is not None or in_transaction():
            raise exceptions.WaitInTransactionError(
                f"Task '{self.key}' can't wait in a transaction, which would be open for so long."
                " Wait outside of it, by a handler that is not atomic."
            )
        if self.parting is not None:
            self._leave(self.parting)
        return self._opened_steps()

    def _suspend(self, wait: store.Wait) -> NoReturn:
        """Have the attempt end until a wait is over: at once where nobody runs it who would."""
        ending = store.Ending(word="suspended", wait=wait.seconds, opens=wait)
        if running.get() is not self:
            self._end_once(ending)
        self._leave(ending)

    @property
    def is_between_steps(self) -> bool:
        """Whether no step of it runs, and this attempt has kept one if it has steps."""
        steps = self._steps
        return steps is None or (steps.progressed and not steps.running)

    def completion(self, result: object = None) -> store.Completion:
        """
        Return what finish() would write.

        Raise InvalidResultError when the codec can't write the result, or it is larger than
        MAX_RESULT_SIZE, or than what the server takes; NotSupportedError when it has to wait or to
        yield, and the handler has caught what says so.
        """
        if self.parting is not None and not self.settled:
            raise exceptions.NotSupportedError(
                f"Task '{self.key}' can't finish: its handler has caught SuspendedError or"
                " YieldedError. Let these pass: catch Exception, not BaseException."
            )
        return store.Completion(
            lease=self.lease,
            result=None if result is None else encoded_result(result, using=self.lease.using),
            started=self.started,
            ended=time.monotonic(),
        )

    def finish(self, result: object = None) -> None:
        """
        Close it as finished; on disk when this returns.

        Raise InvalidResultError when the codec can't write the result, or it is larger than
        MAX_RESULT_SIZE.
        """

        def write() -> None:
            done = self.completion(result)
            using, worker = self.lease.using, self.worker
            with self._settling():
                if store.finish([done], using=using, worker=worker, now=self.moment):
                    raise self._preempted()
                self._settle("finished")

        self._refuse_if_settled()
        self._write(write, "finished")

    def retry(self, wait: Duration | None = None, *, why: store.Failure | None = None) -> None:
        """
        Count an error, and let it be tried again after so long (RETRY_WAIT).

        Raise InvalidTaskError where that is no length of time.
        """
        seconds = options().RETRY_WAIT if wait is None else wait_of("retry()", wait)
        why = self._for_all_eyes(why or store.Failure())
        self._end_once(store.Ending.retry(seconds, why))

    def release(self, delay: Duration = 0.0) -> None:
        """
        Give it back: this counts as no attempt, and its user is charged for the time that
        it has run.

        It waits for a second at least, as after snooze(): a handler that gives it back again
        and again would keep the database busy. Raise InvalidTaskError where the delay is no
        length of time.
        """
        wait = max(SHORTEST_WAIT, wait_of("release()", delay))
        self._end_once(store.Ending.release(wait))

    def snooze(self, after: Duration) -> None:
        """
        Put it off for so long: this counts as no attempt and as no error.

        Its user is charged for the time that it has run, as after release().
        """
        self._end_once(store.Ending.snooze(Snooze(after).after))

    def fail(
        self,
        error: str = "failed",
        message: str = "",
        *,
        why: store.Failure | None = None,
    ) -> None:
        """End it as failed, in a group with others of the same error."""
        why = self._for_all_eyes(why or store.Failure(error=error, message=message))
        self._end_once(store.Ending.fail(why))

    def cancel(self) -> None:
        """End it as cancelled."""
        self._end_once(store.Ending.cancel())

    def discard(self, reason: str = "", *, why: store.Failure | None = None) -> None:
        """
        End it as cancelled, for a reason of its own: nobody has asked for that.

        ``why`` is what is kept of the attempt; the dead letter has the reason, in the group
        *discarded*.
        """
        why = self._for_all_eyes(why or store.Failure(error=DISCARDED, message=reason))
        text = reason or ": ".join(part for part in (why.error, why.message) if part)
        letter = self._for_all_eyes(store.Failure(error=DISCARDED_GROUP, message=text))
        self._end_once(store.Ending.discard(why, letter))

    def _end(self, ending: store.Ending) -> None:
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
                now=self.moment,
            )
            if self.lease not in words:
                raise self._preempted()
            self._settle(words[self.lease])

    def _end_once(self, ending: store.Ending) -> None:
        """
        End the attempt; for an atomic handler, when the handler returns.

        Raise AlreadyFinishedError or PreemptedError when it was settled before.
        """
        self._refuse_if_settled()
        self._write(partial(self._end, ending), ending.word)

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
        return store.leases.refusal(self.lease, using=self.lease.using)

    aversion = twin(version)
    aheartbeat = twin(heartbeat)
    aupdate_data = twin(update_data)
    afinish = twin(finish)
    aretry = twin(retry)
    arelease = twin(release)
    afail = twin(fail)
    acancel = twin(cancel)
    asnooze = twin(snooze)
    ayield = twin(yield_)
    asleep = twin(sleep)
    asleep_until = twin(sleep_until)
    await_for = twin(wait_for)
    arun = twin(run)
    ajoin = twin(join)
    adiscard = twin(discard)


# What settles a task in a transaction that has yet to be committed.


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
