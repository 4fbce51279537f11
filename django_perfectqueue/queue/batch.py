"""Batches: tasks that are submitted, watched, cancelled and put back together."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from django.db.models import F

from django_perfectqueue import models, store
from django_perfectqueue.exceptions import (
    AlreadyFinishedError,
    InvalidTaskError,
    NotFoundError,
    NotSupportedError,
    WaitInTransactionError,
    WaitTimeoutError,
)
from django_perfectqueue.inspection.family import members
from django_perfectqueue.inspection.results import BOUNDS, pause_after
from django_perfectqueue.lib.checks import choice
from django_perfectqueue.payload import inputs
from django_perfectqueue.payload.inputs import Duration

from .submission import TaskOptions, store_some, submission_of, submissions_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .queue import Queue
    from .task_handle import TaskHandle

When = Literal["done", "finished", "failed", "first_failure"]
WHENS = {when.name.lower(): when for when in store.dependencies.When}


class CancelCounts(NamedTuple):
    """
    How many tasks are cancelled already, and how many were asked: these run, or are cancelled
    after the commit of the open transaction.
    """

    cancelled: int = 0
    asked: int = 0


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch by its name and id."""

    queue: Queue
    name: str
    id: int
    user: str = ""

    @property
    def using(self) -> str:
        return self.queue.using

    def submit(
        self,
        key: str | None,
        type: str,  # noqa: A002
        data: object = None,
        *,
        on_conflict: str = "raise",
        **options: Unpack[TaskOptions],
    ) -> TaskHandle:
        """
        Submit a task to the batch, by the arguments of Queue.submit(); by default for its user.

        Raise what that does, and BatchEndedError when it has ended or was cancelled.
        """
        if on_conflict != "raise":
            raise InvalidTaskError("on_conflict is not for the tasks of a batch.")
        options.setdefault("user", self.user)
        task = submission_of(self.queue, key, type, data, surroundings=inputs.captured(), **options)
        _fresh, keys = store_some([task], "raise", batch=self.id, using=self.using, now=None)
        return self.queue[keys.get((task.queue, task.key), task.key)]

    def submit_many(self, tasks: Iterable[Mapping[str, Any]]) -> int:
        """
        Submit tasks to the batch, each a dict of submit()'s arguments; return how many.

        Each thousand is stored in one transaction. Raise what submit() does.
        """
        count = 0
        for given in submissions_of(self.queue, ({"user": self.user, **task} for task in tasks)):
            store_some(given, "raise", batch=self.id, using=self.using, now=None)
            count += len(given)
        return count

    def batch(self, name: str, *, user: str | None = None) -> AbstractContextManager[Batch]:
        """Begin a batch that is one task of this one; it ends when that one has ended."""
        return begin(self.queue, name, self.user if user is None else user, self.id)

    def then(
        self,
        key: str | None,
        type: str,  # noqa: A002
        data: object = None,
        *,
        when: When = "done",
        **options: Unpack[TaskOptions],
    ) -> TaskHandle:
        """
        Submit a task that is blocked until all tasks of the batch have ended.

        With ``when`` "finished" it runs once all have finished, those that were put back, too;
        with "failed" once all have ended and some not finished, else it is cancelled; with
        "first_failure" once a task has not finished, while the others go on. Raise what
        Queue.submit() does.
        """
        mode = WHENS[choice(*WHENS).require("when", when, InvalidTaskError)].value
        options.setdefault("user", self.user)
        task = submission_of(self.queue, key, type, data, surroundings=inputs.captured(), **options)
        if task.after:
            raise InvalidTaskError(
                "after and sequence are not for a callback: it waits for its batch."
            )
        task = task._replace(after=(store.Parent.batch(self.id),), if_failed=mode)
        _fresh, keys = store_some([task], "raise", using=self.using, now=None)
        return self.queue[keys.get((task.queue, task.key), task.key)]

    def progress(self) -> store.dependencies.Progress:
        """Return its exact state, by one query; raise NotFoundError when it is gone."""
        return store.dependencies.batch_progress(self.id, using=self.using)

    def wait(self, timeout: Duration | None = None) -> store.dependencies.Progress:
        """
        Wait until all its tasks have ended; return its state.

        Raise WaitTimeoutError after the timeout, WaitInTransactionError in a transaction.
        """
        seconds = inputs.checked_timeout(timeout)
        began = time.monotonic()
        while not (found := self.progress()).ended:
            waited = time.monotonic() - began
            if seconds is not None and waited >= seconds:
                raise WaitTimeoutError(
                    f"Batch '{self.name}' has not ended after {seconds:g} s: {found.open} of"
                    f" {found.total} tasks are open."
                )
            if store.database.is_callers(self.using):
                raise WaitInTransactionError(
                    f"A transaction is open, in which the end of batch '{self.name}' may never be"
                    " seen. Wait after the atomic block."
                )
            time.sleep(pause_after(waited, seconds, BOUNDS))
        return found

    def tasks(self) -> models.TaskQuerySet:
        """Return its tasks, but for those of batches in it, as a QuerySet with their status."""
        return members([self.id], using=self.using).order_by("membership__task_id")

    def results(self) -> Iterator[tuple[str, Any]]:
        """
        Yield key and result of each task that has finished, read a page at a time.

        Those of batches in it are not among them. Raise NotFoundError, before the first if
        that can be, where some are gone.
        """
        expected = self.progress().finished
        inner = models.Batch.objects.using(self.using).filter(parent_id=self.id)
        expected -= inner.filter(ended_at__isnull=False, dead=0, finished=F("total")).count()
        finished = self.tasks().filter(outcome=models.Outcome.FINISHED)
        self.check_results(expected, finished.count())
        count = 0
        for task in finished.iterator(chunk_size=500):
            yield task.key, task.result
            count += 1
        self.check_results(expected, count)

    def check_results(self, expected: int, count: int) -> None:
        if count < expected:
            raise NotFoundError(
                f"Of {expected} results of batch '{self.name}' {expected - count} are gone: their"
                " tasks were deleted."
            )

    def cancel_request(self) -> CancelCounts:
        """
        Take no more tasks, cancel those that have yet to run, and ask the others to stop.

        Batches in it are cancelled, too. Return how many are cancelled, and how many were asked.
        """
        batches = store.dependencies.batches_within(self.id, using=self.using)
        store.dependencies.stop_batches(batches, using=self.using)
        live = members(batches, using=self.using).live().values_list("pk", flat=True)
        done = store.cancel_each(list(live), using=self.using)
        cancelled = sum(done.values())
        return CancelCounts(cancelled, len(done) - cancelled)

    def retry(self) -> int:
        """
        Put its failed, cancelled and expired tasks back, and those of batches in it; count.

        It is open again, and takes tasks, also where it was cancelled.
        """
        batches = store.dependencies.batches_within(self.id, using=self.using)
        store.dependencies.stop_batches(batches, using=self.using, stopped=False)
        dead = members(batches, using=self.using).filter(dead_letter__isnull=False)
        count = 0
        # The last first: a child that is put back after its parent has failed again stays blocked.
        for task_id in dead.order_by("-pk").values_list("pk", flat=True):
            with suppress(AlreadyFinishedError, NotFoundError, NotSupportedError):
                store.steer(store.retry, task_id, using=self.using)
                count += 1
        return count

    def inner(self) -> list[Batch]:
        """Return the batches in it."""
        rows = models.Batch.objects.using(self.using).filter(parent_id=self.id).order_by("id")
        return [batch_in(self.queue, row) for row in rows]


@contextmanager
def begin(queue: Queue, name: str, user: str | None, parent: int | None) -> Iterator[Batch]:
    """Store a batch with what is added in the block, all or none."""
    name = inputs.checked("name of a batch", name, inputs.KEY_LENGTH)
    user = inputs.checked_user(user)
    with store.database.together(using=queue.using):
        id_ = store.dependencies.create_batch(queue.name, name, user, parent, using=queue.using)
        yield Batch(queue, name, id_, user)


def batch_in(queue: Queue, row: models.Batch) -> Batch:
    """Return the batch of a row in the database of this queue."""
    return Batch(type(queue)(row.queue, using=queue.using), row.name, row.pk, row.user)


def batch_of(queue: Queue, task_id: int) -> Batch | None:
    """Return the batch in which a task is, or None."""
    rows = models.BatchMember.objects.filter(pk=task_id)
    return batch_among(queue, rows.values("batch_id"))


def batch_closed_by(queue: Queue, task_id: int) -> Batch | None:
    """Return the batch of which a task is a callback, or None."""
    rows = models.Dependency.objects.filter(child_id=task_id, parent_id__lt=0)
    return batch_among(queue, rows.order_by().values(batch_id=-F("parent_id")))


def batch_among(queue: Queue, ids: Any) -> Batch | None:
    row = models.Batch.objects.using(queue.using).filter(pk__in=ids).first()
    return None if row is None else batch_in(queue, row)
