"""What a test may assert of a queue."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any
from unittest import TestCase as UnittestCase

from django.db import DEFAULT_DB_ALIAS
from django.test import TestCase
from django.utils.functional import classproperty

from django_perfectqueue.lib.async_twins import twin
from django_perfectqueue.models import Status, Task
from django_perfectqueue.queue import Queue, TaskHandle, database

from .drain import drain
from .submitted import Kind, SubmittedTask, everything, listed, matches, wanting


class QueueAssertions(UnittestCase):
    """
    Assertions of what was submitted, and of what became of it.

    What they say when they fail lists what was submitted instead, without what is sensitive
    in it.
    """

    def assertSubmitted(  # noqa: N802
        self,
        /,
        type: Kind | None = None,  # noqa: A002
        *,
        count: int | None = None,
        using: str | None = None,
        **wanted: object,
    ) -> list[SubmittedTask]:
        """
        Assert that tasks like this were submitted, and as many as ``count`` if it is given.

        Other words are those of submitted(): data, args, kwargs, user, queue, key, priority.
        Return those that are so.
        """
        return self._check(everything(using), wanting(type, wanted), count)

    def assertNotSubmitted(  # noqa: N802
        self,
        /,
        type: Kind | None = None,  # noqa: A002
        *,
        using: str | None = None,
        **wanted: object,
    ) -> None:
        """Assert that no task like this was submitted."""
        self.assertSubmitted(type, count=0, using=using, **wanted)

    aassertSubmitted = twin(assertSubmitted)  # noqa: N815
    aassertNotSubmitted = twin(assertNotSubmitted)  # noqa: N815

    @contextmanager
    def assertSubmits(  # noqa: N802
        self,
        type: Kind | None = None,  # noqa: A002
        *,
        count: int | None = None,
        using: str | None = None,
        **wanted: object,
    ) -> Iterator[list[SubmittedTask]]:
        """
        Assert the same of what is submitted in here; yield a list of what was, to be filled.
        """
        looked_for, found = wanting(type, wanted), list[SubmittedTask]()
        before = everything(using)
        yield found
        new = [one for one in everything(using) if one not in before]
        found += self._check(new, looked_for, count)

    def assertTaskStatus(  # noqa: N802
        self,
        task: object,
        status: str,
        *,
        queue: Queue | str | None = None,
        using: str | None = None,
    ) -> None:
        """
        Assert in which status a task is: waiting, finished, failed and so on.

        ``task`` is the task, its key in ``queue``, or the result of one of Django's tasks.
        """
        self.assertIn(status, Status.values, "There is no such status.")
        row = reference(task, queue, using).metadata()
        if row.status != status:
            self.fail(f"Task '{row.key}' is {row.status}, not {status}.{why(row)}")

    aassertTaskStatus = twin(assertTaskStatus)  # noqa: N815

    def _check(
        self,
        found: list[SubmittedTask],
        wanted: dict[str, object],
        count: int | None,
    ) -> list[SubmittedTask]:
        same = [one for one in found if matches(one, wanted)]
        if (count is None and same) or len(same) == count:
            return same
        what = " and ".join(f"{name}={value!r}" for name, value in wanted.items()) or "at all"
        tasks = "task" if count == 1 else "tasks"
        expected = "No task" if count is None else f"{len(same)} instead of {count} {tasks}"
        verb = "was" if count is None or len(same) == 1 else "were"
        raise self.failureException(f"{expected} with {what} {verb} submitted. {listed(found)}")


class QueueTestCase(QueueAssertions, TestCase):
    """Django's TestCase with these assertions, a ``queue`` and ``drain()``."""

    drain = staticmethod(drain)

    @classproperty
    def databases(cls) -> set[str]:  # noqa: N805
        """Django's default, and that of the tasks."""
        return {DEFAULT_DB_ALIAS, database()}

    @cached_property
    def queue(self) -> Queue:
        """The default queue."""
        return Queue()


def reference(task: Any, queue: Queue | str | None, using: str | None) -> TaskHandle:
    if isinstance(task, TaskHandle):
        return task
    if isinstance(task, SubmittedTask):
        return task.task
    if not isinstance(task, str):
        backend = task.task.get_backend()
        return Queue(task.task.queue_name, using=using or backend.using)[task.id]
    queue = queue if isinstance(queue, Queue) else Queue(queue, using=using)
    return queue[task]


def why(row: Task) -> str:
    """Return why a task is as it is, where that is known."""
    if row.status in ("failed", "cancelled", "expired"):
        return f" {row.dead_letter.group}: {row.dead_letter.message}".rstrip(": ")
    last = row.attempts.order_by("-id").first()
    return f" Its last attempt: {last.error}: {last.message}".rstrip(": ") if last else ""
