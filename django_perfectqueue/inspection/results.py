"""How tasks have ended; waiting for it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Generator, Iterable
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from asgiref.sync import sync_to_async
from django.db import Error

from django_perfectqueue import exceptions, store
from django_perfectqueue.models import Outcome
from django_perfectqueue.payload import codecs

logger = logging.getLogger("django_perfectqueue.ends")

SHARE = 0.1
# In seconds, the shortest and the longest pause.
BOUNDS, BOUNDS_IF_NOTIFIED = (0.02, 0.5), (0.5, 5.0)

# What an End says of a joined task that has not ended.
DELETED, LATE = "deleted", "late"

ERRORS: dict[str, type[exceptions.TaskFailedError]] = {
    Outcome.CANCELLED: exceptions.TaskCancelledError,
    Outcome.EXPIRED: exceptions.TaskExpiredError,
}


@dataclass(frozen=True, slots=True)
class End:
    """
    How a task has ended.

    ``status`` is finished, failed, cancelled or expired; of a task that was joined also
    *deleted*, or *late* where it has not ended in time. Unless it has finished, ``error``
    is the class of the error or a word such as "lost", and ``message`` what that said.
    """

    key: str
    status: str
    error: str = ""
    message: str = ""
    result_text: str | None = field(default=None, repr=False)

    def result(self) -> Any:
        """
        Return what the handler returned, or None.

        Raise TaskFailedError, TaskCancelledError or TaskExpiredError when the task has not
        finished, NotFoundError where it was deleted, WaitTimeoutError where it was late,
        PayloadError when its result can't be read.
        """
        if self.status == DELETED:
            raise exceptions.NotFoundError(f"Task '{self.key}' was deleted, or there was none.")
        if self.status == LATE:
            raise exceptions.WaitTimeoutError(
                f"Task '{self.key}' has not ended in the time that was given to wait for it."
            )
        if self.status != Outcome.FINISHED:
            kind = ERRORS.get(self.status, exceptions.TaskFailedError)
            raise kind(self.key, self.status, self.error, self.message)
        return None if self.result_text is None else codecs.decode(self.result_text)


def results_of(
    queue: str, keys: Iterable[str], *, using: str, timeout: float | None
) -> Generator[End, None, None]:
    """
    Yield how tasks have ended, each once it has.

    Raise NotFoundError where no such task exists, or it was deleted; WaitTimeoutError when
    not all have ended after so many seconds; WaitInTransactionError in a transaction.
    """
    with closing(ResultWaiter(queue, keys, using=using, timeout=timeout)) as waiter:
        while True:
            yield from waiter.look()
            if not waiter.keys:
                return
            waiter.check()
            waiter.wait()


async def results_of_async(
    queue: str, keys: Iterable[str], *, using: str, timeout: float | None
) -> AsyncGenerator[End, None]:
    """
    Do what results_of() does, without holding up the event loop.

    It polls ever less often, in the thread of asgiref that all coroutines share; between two
    looks it holds no thread and no connection.
    """
    waiter = ResultWaiter(queue, keys, using=using, timeout=timeout)
    waiter.listener = None
    while True:
        for found in await sync_to_async(waiter.look)():
            yield found
        if not waiter.keys:
            return
        await sync_to_async(waiter.check)()
        await asyncio.sleep(waiter.pause())


class ResultWaiter:
    """
    Waits for tasks to end, by their keys and ids.

    It polls at one tenth of the time waited so far, within bounds; less often where the
    database sends notifications, as a safety net.
    """

    def __init__(
        self, queue: str, keys: Iterable[str], *, using: str, timeout: float | None
    ) -> None:
        self.queue = queue
        self.using = using
        self.timeout = timeout
        self.since = time.monotonic()
        self.unfound = list(dict.fromkeys(map(str, keys)))
        self.waited_for: dict[int, str] = {}
        self.are_watched = False
        self.listener = store.notify.end_listener(using)

    @property
    def keys(self) -> list[str]:
        """The keys of those that have yet to end."""
        return [*self.waited_for.values(), *self.unfound]

    def look(self) -> list[End]:
        """
        Return the ends of the tasks that have ended since the last look.

        Raise NotFoundError where no such task exists, or it was deleted.
        """
        if self.unfound:
            self.find()
        live = store.notify.live(list(self.waited_for), using=self.using)
        self.are_watched = all(live.values())
        over = [task_id for task_id in self.waited_for if task_id not in live]
        return self.ends(over) if over else []

    def find(self) -> None:
        ids = store.notify.find_all(self.queue, self.unfound, using=self.using)
        if unknown := [key for key in self.unfound if key not in ids]:
            raise missing(self.queue, unknown)
        self.waited_for |= {task_id: key for key, task_id in ids.items()}
        self.unfound = []

    def ends(self, over: list[int]) -> list[End]:
        """Return the ends of tasks without a ticket; search again for the keys of deleted ones."""
        found = store.notify.ends(over, using=self.using)
        self.unfound += [self.waited_for.pop(task_id) for task_id in over if task_id not in found]
        return [
            End(self.waited_for.pop(task_id), *row)
            for task_id, row in found.items()
            if row[0]  # else it was put back between the two looks
        ]

    def check(self) -> None:
        """Raise WaitTimeoutError after the timeout, WaitInTransactionError in a transaction."""
        if self.timeout is not None and time.monotonic() >= self.since + self.timeout:
            raise exceptions.WaitTimeoutError(
                f"Not ended in queue '{self.queue}' after {self.timeout:g} s:"
                f" {list_keys(self.keys)}."
            )
        if store.database.is_callers(self.using):
            raise exceptions.WaitInTransactionError(
                f"A transaction is open, in which the end of {list_keys(self.keys)} may never be"
                " seen; and what was submitted in it does not run before it commits."
                " Wait after the atomic block; with ATOMIC_REQUESTS all of a view is one."
                " In a TestCase run the task before, by drain()."
            )

    def wait(self) -> None:
        """Wait until the next look is due, or a notification arrives."""
        if self.listen():
            return
        if self.listener is not None:
            self.listener.wait(self.pause())
        else:
            time.sleep(self.pause())

    def listen(self) -> bool:
        """Listen for ends, where the database sends them; return whether that has just begun."""
        if self.listener is None or (self.are_watched and self.hears_all()):
            return False
        fresh = not self.hears_all()
        try:
            if fresh:
                self.listener.open(store.notify.end_channels(self.waited_for))
            store.notify.watch(list(self.waited_for), using=self.using)
        except Error as error:
            logger.debug(
                "Notifications of ended tasks are not received. database=%s error=%s",
                self.using,
                error,
            )
            self.close()
            self.listener = None
        return fresh

    def hears_all(self) -> bool:
        """Return whether it listens for the ends of all tasks that it waits for."""
        channels = store.notify.end_channels(self.waited_for)
        return self.listener is not None and self.listener.hears(channels)

    def pause(self) -> float:
        """Return the seconds until the next look."""
        is_notified = self.are_watched and self.hears_all()
        bounds = BOUNDS_IF_NOTIFIED if is_notified else BOUNDS
        return pause_after(time.monotonic() - self.since, self.timeout, bounds)

    def close(self) -> None:
        if self.listener is not None:
            self.listener.close()


def pause_after(waited: float, timeout: float | None, bounds: tuple[float, float]) -> float:
    """Return for how long to pause: a tenth of the time waited so far, up to the timeout."""
    pause = min(bounds[1], max(bounds[0], SHARE * waited))
    return pause if timeout is None else max(0.0, min(pause, timeout - waited))


def missing(queue: str, keys: list[str]) -> exceptions.NotFoundError:
    return exceptions.NotFoundError(
        f"Queue '{queue}' has no task with the key {list_keys(keys)}."
        " If there was one, it has been deleted."
    )


def list_keys(keys: list[str]) -> str:
    more = f" and {len(keys) - 5} more" if len(keys) > 5 else ""
    return ", ".join(f"'{key}'" for key in keys[:5]) + more
