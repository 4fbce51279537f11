"""An attempt in progress."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from django_perfectqueue import logs
from django_perfectqueue.application import Application
from django_perfectqueue.exceptions import PreemptedError
from django_perfectqueue.lib.printable import printable
from django_perfectqueue.queue import AcquiredTask

from .event_loop import Work, is_coroutine
from .surroundings import AttemptEnd

logger = logging.getLogger("django_perfectqueue.runner")
logger.addFilter(logs.Masked())

# In seconds. A task that takes no longer is charged when it ends.
SUDDEN = 0.1
# It is charged again each time it has run so many times as long as it was charged for.
AGAIN = 1.5


class Interrupter(Protocol):
    """Lets another thread raise an exception once inside of a call in this thread."""

    def call(self, token: object, function: Callable[[], Any]) -> object: ...

    def interrupt(self, token: object, reason: BaseException) -> None: ...


@dataclass(slots=True, eq=False)
class Running:
    """
    An attempt in progress, and what its handler has returned or raised; with the ``ending`` of
    one that is settled already.

    ``index`` is its position in the status. ``spawn`` starts a coroutine in the event loop of
    the handler, if it has one; there it is the task ``coroutine``, which was cancelled for a
    ``reason``. It ``is_suspect`` if an interrupt may have hit a statement in
    progress. While it is ``alone``, it holds the only write lock of the database, so no
    other process can take its task. ``charged`` is what its user was charged for it while it
    ran, in seconds; 0.0 where it was not.
    """

    task: AcquiredTask
    index: int = 0
    handler: Application | None = None
    active: bool = True
    result: object = None
    error: BaseException | None = None
    ending: AttemptEnd | None = None
    reasons_sent: set[type[BaseException]] = field(default_factory=set)
    spawn: Callable[[Work], None] | None = None
    coroutine: asyncio.Task[Any] | None = None
    reason: BaseException | None = None
    is_suspect: bool = False
    alone: bool = False
    charged: float = 0.0

    def has_overrun(self, now: float) -> bool:
        """Return whether its user is to be charged more for it than it was, by this time."""
        task = self.task
        due = self.charged * AGAIN or max(2 * task.lease.charge, SUDDEN)
        return now - task.started >= due and not task.settled

    def kill(self, reason: BaseException) -> None:
        """Interrupt the handler, once for each type of reason; called from other threads."""
        handler = self.handler
        if handler is None or not self.active or type(reason) in self.reasons_sent:
            return
        self.reasons_sent.add(type(reason))
        self.is_suspect = True
        # Set before the handler ends: the lease expired, even if no other took the task yet.
        self.task._lost |= isinstance(reason, PreemptedError)
        with logs.about(self.task):
            try:
                outcome: object = handler.kill(reason)
                if is_coroutine(outcome) and self.spawn is not None:
                    self.spawn(outcome)
                elif is_coroutine(outcome):
                    outcome.close()
                    raise TypeError("kill() is a coroutine function, and perform() is none.")
            except Exception:
                logger.exception("A handler's kill() raised. %s", about(self.task))

    def interrupt(
        self, send: Callable[[Running, BaseException], None], reason: BaseException
    ) -> None:
        self.is_suspect = True
        send(self, reason)


def about(task: AcquiredTask) -> str:
    """Return the names of a task for the log, never its data."""
    lease = task.lease
    return printable(
        f"queue={lease.queue} key={lease.key} type={lease.type} user={lease.user}"
        f" attempt={lease.tries}"
    )
