"""A task of a queue, by its key: the door for what is asked and steered from outside."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from django_perfectqueue import models, store
from django_perfectqueue.exceptions import AlreadyExistsError, InvalidTaskError, NotFoundError
from django_perfectqueue.inspection.why_waiting import Reason, why_waiting
from django_perfectqueue.lib.async_twins import twin
from django_perfectqueue.lib.checks import choice
from django_perfectqueue.payload import inputs
from django_perfectqueue.payload.codecs import JSON, STEP_LENGTH
from django_perfectqueue.payload.inputs import Duration
from django_perfectqueue.store import dependencies
from django_perfectqueue.store.limits.meters import lane_behind
from django_perfectqueue.store.records.journal import SIGNAL
from django_perfectqueue.store.tasks.steer import find
from django_perfectqueue.store.values import Now

from .submission import IfFailed, Parents, checked_after, checked_if_failed

if TYPE_CHECKING:
    from .queue import Queue
    from .submission import Waited


ON_CONFLICT = choice("raise", "ignore")


@dataclass(frozen=True, slots=True)
class TaskHandle:
    """A task by its name: it may or may not exist."""

    queue: Queue
    key: str

    @property
    def using(self) -> str:
        """The alias of the database that holds the task."""
        return self.queue.using

    @property
    def id(self) -> int:
        """The id of its row; raise NotFoundError when there is none."""
        return find(self.queue.name, self.key, using=self.using)

    def exists(self) -> bool:
        """Return whether it is in the queue, or has ended and is retained."""
        rows = self.queue.list().filter(key=self.key)
        return store.database.with_retries(rows.exists, using=self.using)

    def metadata(self) -> models.Task:
        """
        Return its row with ``status``, times, user, type, data and result.

        Raise NotFoundError when it does not exist.
        """
        rows = self.queue.list().select_related("ticket", "dead_letter").filter(key=self.key)
        row: models.Task | None = store.database.with_retries(rows.first, using=self.using)
        if row is None:
            raise NotFoundError(f"Queue '{self.queue.name}' has no task with the key '{self.key}'.")
        return row

    def why_waiting(self, *, now: Now = None) -> Reason:
        """
        Return the first condition that holds it back, or that it is running or has ended.

        Raise NotFoundError when there is no such task.
        """
        row = self.metadata()
        return store.database.with_retries(
            lambda: why_waiting(row, using=self.using, now=now), using=self.using
        )

    def wait(self, timeout: Duration | None = None) -> Any:
        """
        Wait until it has ended; return what its handler returned.

        ``timeout`` is a timedelta, seconds or a span such as "5m30s"; None is for ever, 0
        looks once. Raise TaskFailedError, or TaskCancelledError or TaskExpiredError, which
        are kinds of it, when it has ended and has not finished; WaitTimeoutError when it
        has not ended in time; NotFoundError where there is no such task, or none any more;
        WaitInTransactionError in an open transaction, unless it has ended already.
        """
        [end] = self.queue.as_completed([self.key], timeout)
        return end.result()

    async def wait_async(self, timeout: Duration | None = None) -> Any:
        """Do what wait() does, without holding up the event loop."""
        [end] = [end async for end in self.queue.as_completed_async([self.key], timeout)]
        return end.result()

    def progress(self) -> models.Journal | None:
        """
        Return the journal of its present or last attempt, or None if that wrote none.

        Raise NotFoundError when there is no such task.
        """
        rows = models.Journal.objects.using(self.using).filter(task_id=self.id)
        return store.database.with_retries(rows.present().first, using=self.using)

    def cancel_request(self, *, together: bool = False, now: Now = None) -> bool:
        """
        Cancel it if it has yet to run; if it is running, ask it to stop.

        Return whether it is cancelled already. In an open transaction it is not: there this
        is done after the commit, and what has ended by then stays as it is. ``together``
        cancels the tasks that wait for it, too. Raise NotFoundError or AlreadyFinishedError,
        and NotSupportedError where tasks wait for it and are not cancelled with it.
        """
        return dependencies.cancel_request(self.id, using=self.using, together=together, now=now)

    def dependents(self, sample: int = 10) -> dependencies.Dependents:
        """
        Return the live tasks that wait for it, directly or not: what ``together`` would cancel.

        ``ids`` are of all of them, ``keys`` of the first so many.
        """
        return dependencies.dependents([self.id], using=self.using, sample=sample)

    @property
    def parents(self) -> Parents:
        """
        How the tasks have ended for which it has waited, by key.

        Raise NotFoundError when there is no such task.
        """
        return Parents(self.id, using=self.using)

    def wait_for(self, after: Iterable[Waited], *, if_failed: IfFailed = "wait") -> None:
        """
        Have it wait for more tasks, while it is blocked.

        Raise NotSupportedError when it is not, NotFoundError where there is no such task, and
        InvalidTaskError where that waits for this one.
        """
        parents = checked_after(after, self.queue.name, self.using)
        dependencies.wait_for(self.id, parents, checked_if_failed(if_failed), using=self.using)

    def wait_no_longer_for(self, after: Iterable[Waited] | None = None) -> None:
        """
        Have it no longer wait for these tasks, or for any, while it is blocked.

        Raise NotSupportedError when it is not, NotFoundError where there is no such task or it
        does not wait for one.
        """
        parents = None if after is None else checked_after(after, self.queue.name, self.using)
        dependencies.wait_no_longer_for(self.id, parents, using=self.using)

    @property
    def tags(self) -> list[str]:
        """Its tags, in the order in which it got them; empty where there is no such task."""
        rows = models.Tag.objects.using(self.using).order_by("pk")
        mine = rows.filter(task__queue=self.queue.name, task__key=self.key)
        tags = mine.values_list("tag", flat=True)
        return store.database.with_retries(lambda: list(tags), using=self.using)

    def tag(self, *tags: str) -> None:
        """Give it tags, each once; raise NotFoundError or InvalidTaskError."""
        store.records.tag_task(self.id, inputs.checked_tags(tags), using=self.using)

    def untag(self, *tags: str) -> None:
        """Take tags off it, if it has them; raise NotFoundError, InvalidTaskError of a sequence."""
        if any(str(tag).startswith(inputs.IN_SEQUENCE) for tag in tags):
            raise InvalidTaskError("A task can't be taken out of its sequence.")
        store.records.untag_task(self.id, tags, using=self.using)

    def force_finish(self, *, now: Now = None) -> None:
        """
        Close it as finished, even while it runs: its holder is then preempted.

        In an open transaction this is done after the commit. Raise NotFoundError or
        AlreadyFinishedError.
        """
        store.steer(store.force_finish, self.id, using=self.using, now=now)

    def retry(self, *, now: Now = None) -> None:
        """
        Put it back if it has failed, was cancelled or expired; hasten it if it waits for
        its time. One that was never tried keeps a ``run_at`` that is still to come.

        In an open transaction this is done after the commit. Raise NotFoundError,
        AlreadyFinishedError or NotSupportedError.
        """
        store.steer(store.retry, self.id, using=self.using, now=now)

    def signal(
        self,
        name: str,
        data: JSON = None,
        on_conflict: Literal["raise", "ignore"] = "raise",
        *,
        by: str = "",
        now: Now = None,
    ) -> bool:
        """
        Send it a signal, for which it waits now or later; return whether it is sent.

        The first one of a name counts, and is kept until the task ends: a second one raises
        AlreadyExistsError, or is ignored. In an open transaction it is sent with the commit. ``by``
        is recorded as the person who sent it. Raise NotFoundError, AlreadyFinishedError where it
        has ended, or InvalidTaskError for a bad name, data that can't be submitted either, or one
        more than 1,000 signals.
        """
        inputs.checked("name of a signal", name, STEP_LENGTH)
        ON_CONFLICT.require("on_conflict", on_conflict, ValueError)
        text = inputs.encoded(data, f"The data of signal '{name}'")
        if why := store.database.too_long(text, using=self.using):
            raise InvalidTaskError(f"The data of signal '{name}' can't be stored: {why}.")
        with store.database.together(using=self.using) if by else nullcontext():
            is_sent = store.steps.signal(self.id, name, text, using=self.using, now=now)
            if is_sent and by:
                named, more = [(self.queue.name, self.key)], {SIGNAL: name}
                store.records.sign(named, "signalled", by=by, more=more, using=self.using)
        if not is_sent and on_conflict == "raise":
            raise AlreadyExistsError(f"Task '{self.key}' has a signal '{name}' already.")
        return is_sent

    def set_priority(self, priority: int) -> None:
        """
        Give it another priority, and with it another place in its line.

        If it is running it goes on, and the priority holds if it is tried again. In an open
        transaction this is done after the commit. Raise NotFoundError, AlreadyFinishedError
        or InvalidTaskError.
        """
        store.steer(
            store.set_priority, self.id, inputs.checked_priority(priority), using=self.using
        )

    def move(self, queue: str, *, by: str = "") -> TaskHandle:
        """
        Move it to another queue while it waits, or after it failed; return it there.

        It keeps its id, counts, records, and what waits for it. ``by`` is recorded as the
        person who did it. In an open transaction this is done after the commit. Raise
        NotFoundError, AlreadyFinishedError, NotSupportedError while it is running or where it
        is there already, AlreadyExistsError where its key is taken there.
        """
        to = inputs.checked("queue", queue, inputs.QUEUE_LENGTH)
        store.steer(store.revise, self.id, store.Revision(queue=to, by=by), using=self.using)
        return type(self.queue)(to, using=self.using)[self.key]

    def edit_data(self, patch: JSON, *, by: str = "") -> None:
        """
        Change its data while it waits, or after it failed, by a JSON merge patch (RFC 7386).

        In it null removes a member. ``by`` is recorded as the person who did it. In an open
        transaction this is done after the commit. Raise NotFoundError, AlreadyFinishedError,
        NotSupportedError while it is running, InvalidTaskError where that can't be stored, and
        PayloadError where the data can't be read.
        """
        revision = store.Revision(rewrite=inputs.rewriter(patch), by=by)
        store.steer(store.revise, self.id, revision, using=self.using)

    def copy(
        self, key: str | None = None, *, from_step: str | None = None, by: str = ""
    ) -> TaskHandle:
        """
        Submit a task like it, due at once, with another key (a new UUID); return that.

        It has the same type, data, user, priority, limits, tags, sequence, time limit and context;
        and no times, parents or batch. It begins anew, or with ``from_step`` at that step: what was
        kept before it is kept in the copy, too. ``by`` is recorded in both as the person who
        did it. Raise NotFoundError, also where it has kept no such step, InvalidTaskError or
        AlreadyExistsError.
        """
        row = self.metadata()
        new = inputs.checked_key(key)
        tags = tuple(self.tags)
        sequences = (tag for tag in tags if tag.startswith(inputs.IN_SEQUENCE))
        submission = store.Submission.like(
            row,
            new,
            lane_behind(
                row.queue, row.type, row.user, filter(None, row.limits.split(",")), using=self.using
            ),
            context=row.context,
            tags=tags,
            after=tuple(
                store.Parent.sequence(tag.removeprefix(inputs.IN_SEQUENCE)) for tag in sequences
            ),
        )
        with store.database.together(using=self.using):
            [copy] = dependencies.submit_linked(
                store.submit_all, [submission], using=self.using
            ).values()
            if from_step is not None:
                store.steps.copy_steps(row, copy, from_step, using=self.using)
            store.records.sign([(row.queue, self.key)], "copied", by=by, using=self.using)
            store.records.sign([(row.queue, new)], "made", by=by, using=self.using)
        return self.queue[new]

    aexists = twin(exists)
    ametadata = twin(metadata)
    awhy_waiting = twin(why_waiting)
    aprogress = twin(progress)
    acancel_request = twin(cancel_request)
    adependents = twin(dependents)
    aforce_finish = twin(force_finish)
    aretry = twin(retry)
    asignal = twin(signal)
    aset_priority = twin(set_priority)
    amove = twin(move)
    aedit_data = twin(edit_data)
    acopy = twin(copy)
    atag = twin(tag)
    auntag = twin(untag)


class MergedTask(TaskHandle):
    """
    The newest task of a name whose submits are merged: it has this submit once that is committed.

    In a transaction its key is that of the task before; then that at the first use.
    """

    __slots__ = ("final", "name")
    final: str
    name: str

    def __init__(self, queue: Queue, name: str) -> None:
        for slot, value in {"queue": queue, "name": name, "final": ""}.items():
            object.__setattr__(self, slot, value)
        object.__setattr__(self, "final", self.key if self.is_committed else "")

    @property
    def is_committed(self) -> bool:
        return not store.database.is_callers(self.using)

    @property
    def key(self) -> str:
        """Its key in the queue."""
        if not self.final:
            found = store.newest_key(self.queue.name, self.name, using=self.using)
            object.__setattr__(self, "final", found if self.is_committed else "")
            return found
        return self.final
