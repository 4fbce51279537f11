"""A task of a queue, by its key: the door for what is asked and steered from outside."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from django_perfectqueue import models, store
from django_perfectqueue.exceptions import (
    AlreadyFinishedError,
    NotFoundError,
    NotSupportedError,
)
from django_perfectqueue.inspection.changes import Snapshot, changes_of, changes_of_async
from django_perfectqueue.inspection.results import result_of, result_of_async
from django_perfectqueue.inspection.why_waiting import Reason, why_waiting
from django_perfectqueue.payload.inputs import (
    Duration,
    checked_priority,
    checked_tags,
    checked_timeout,
)

from .async_twins import twin
from .parents import IfFailed, Parents, checked_after, checked_if_failed

if TYPE_CHECKING:
    from .parents import Waited
    from .queue import Queue


@dataclass(frozen=True, slots=True)
class TaskHandle:
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
        """Return whether it is in the queue, or has ended and is retained."""
        return store.patiently(self.queue.list().filter(key=self.key).exists, using=self.using)

    def metadata(self) -> models.Task:
        """
        Return its row with ``status``, times, user, type, data and result.

        Raise NotFoundError when it does not exist.
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

    def wait(self, timeout: Duration | None = None) -> Any:
        """
        Wait until it has ended; return what its handler returned.

        ``timeout`` is a timedelta, seconds or a span such as "5m30s"; None is for ever, 0
        looks once. Raise TaskFailedError, or TaskCancelledError or TaskExpiredError, which
        are kinds of it, when it has ended and has not finished; WaitTimeoutError when it
        has not ended in time; NotFoundError where there is no such task, or none any more;
        WaitInTransactionError in an open transaction, unless it has ended already.
        """
        seconds = checked_timeout(timeout)
        return result_of(self.queue.name, self.key, using=self.using, timeout=seconds).result()

    async def wait_async(self, timeout: Duration | None = None) -> Any:
        """Do what wait() does, without holding up the event loop."""
        seconds = checked_timeout(timeout)
        end = await result_of_async(self.queue.name, self.key, using=self.using, timeout=seconds)
        return end.result()

    def watch(self, timeout: Duration | None = None) -> Iterator[Snapshot]:
        """
        Yield what it is, and again whenever that has changed, until it has ended.

        Changes in quick succession may be seen as one. Raise NotFoundError, WaitTimeoutError
        and WaitInTransactionError as wait() does.
        """
        seconds = checked_timeout(timeout)
        return changes_of(self.queue.name, self.key, using=self.using, timeout=seconds)

    def watch_async(self, timeout: Duration | None = None) -> AsyncIterator[Snapshot]:
        """Do what watch() does, without holding up the event loop."""
        seconds = checked_timeout(timeout)
        return changes_of_async(self.queue.name, self.key, using=self.using, timeout=seconds)

    def progress(self) -> models.Journal | None:
        """
        Return the journal of its present or last attempt, or None if that wrote none.

        Raise NotFoundError when there is no such task.
        """
        rows = models.Journal.objects.using(self.using).filter(task_id=self.id)
        return store.patiently(rows.present().first, using=self.using)

    def cancel_request(self, *, together: bool = False, now: datetime | None = None) -> bool:
        """
        Cancel it if it has yet to run; if it is running, ask it to stop.

        Return whether it is cancelled already. In an open transaction it is not: there this
        is done after the commit, and what has ended by then stays as it is. ``together``
        cancels the tasks that wait for it, too. Raise NotFoundError or AlreadyFinishedError,
        and NotSupportedError where tasks wait for it and are not cancelled with it.
        """
        task_id = self.id
        waiting = store.descendants(task_id, using=self.using)
        if waiting and not together:
            raise NotSupportedError(
                f"{len(waiting)} tasks wait for task '{self.key}', directly or not."
                " Cancel them with it: cancel_request(together=True)."
            )
        for child in waiting:
            with suppress(AlreadyFinishedError, NotFoundError):
                store.cancel_request(child, using=self.using, now=now)
        return store.cancel_request(task_id, using=self.using, now=now)

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
        store.wait_for(self.id, parents, checked_if_failed(if_failed), using=self.using)

    def wait_no_longer_for(self, after: Iterable[Waited] | None = None) -> None:
        """
        Have it no longer wait for these tasks, or for any, while it is blocked.

        Raise NotSupportedError when it is not, NotFoundError where there is no such task.
        """
        parents = None if after is None else checked_after(after, self.queue.name, self.using)
        store.wait_no_longer_for(self.id, parents, using=self.using)

    @property
    def tags(self) -> list[str]:
        """Its tags, in the order in which it got them; empty where there is no such task."""
        rows = models.Tag.objects.using(self.using).order_by("pk")
        mine = rows.filter(task__queue=self.queue.name, task__key=self.key)
        return store.patiently(lambda: list(mine.values_list("tag", flat=True)), using=self.using)

    def tag(self, *tags: str) -> None:
        """Give it tags, each once; raise NotFoundError or InvalidTaskError."""
        store.tag_task(self.id, checked_tags(tags), using=self.using)

    def untag(self, *tags: str) -> None:
        """Take tags off it, if it has them; raise NotFoundError."""
        store.untag_task(self.id, tags, using=self.using)

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
    atag = twin(tag)
    auntag = twin(untag)


def expires_first(starts: store.Moment | None, ends: store.Moment | None) -> bool:
    """
    Return whether a task ends before it begins.

    A time and a duration are only comparable by the server's clock: such a task expires unrun.
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
