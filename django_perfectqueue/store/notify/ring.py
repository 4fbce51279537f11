"""Notify the workers that there is work."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils.module_loading import import_string

from django_perfectqueue.conf import options
from django_perfectqueue.lib.running import running

from ..database.dialects import dialect_for, dialect_of
from . import datagrams, postgres
from .datagrams import SocketListener
from .messages import AT_REST, Notification
from .postgres import ChannelListener

logger = logging.getLogger("django_perfectqueue.notify")

EAGER = "django_perfectqueue.test.eager.notified"
MOST_LANES = 500
"""Of so many lanes the statement that notifies looks whether they are awake."""

Wake = Callable[..., None]


def notify_workers(
    queue: str = "",
    *,
    using: str,
    delay: float = 0.0,
    lanes: Mapping[int, int] | None = None,
    wake: Wake | None = None,
) -> None:
    """
    Notify the workers of a queue, once the caller's transaction has committed, that a
    task of it may run, or may in so many seconds; without a name, the workers of any.

    ``lanes`` are those in which a task waits from then on, each with such a task: those
    that sleep are woken before, by ``wake``. One notification a transaction and queue is sent, and
    none for what is due only after AT_REST times POLL_INTERVAL: by then every worker has
    looked. Nothing is done where the caller has switched autocommit off, and its commit is
    not heard of. Raise nothing; one that is lost is made up for by the next poll, and a
    lane that still sleeps is woken by the next sweep.

    With EAGER there is no worker: what is due is run here, once it is committed.
    """
    values = options()
    silent = bool(values.EAGER) or not values.NOTIFY or delay > AT_REST * values.POLL_INTERVAL
    if lanes or not silent:
        due, lanes = time.monotonic() + delay, dict(lanes or {})
        after_commit(PendingNotification(connections[using], queue, due, None, lanes, wake, silent))
    if values.EAGER and delay <= 0.0 and running.get() is None:
        import_string(EAGER)(using)


def message_of(queue: str, delay: float) -> str:
    """Return the message that a statement may send itself, or nothing where none is to be sent."""
    values = options()
    if values.EAGER or not values.NOTIFY or delay > AT_REST * values.POLL_INTERVAL:
        return ""
    return Notification(queue, delay).message


def notify_holder(holder: int, *, using: str) -> None:
    """
    Notify the process with this holder's id, once the caller's transaction has committed,
    that there is news of one: it is to stop, or has been ended.

    Nothing is raised, and a notification that is lost costs TASK_HEARTBEAT_INTERVAL.
    """
    if options().NOTIFY:
        after_commit(PendingNotification(connections[using], "", time.monotonic(), holder))


@dataclass(slots=True, eq=False)
class PendingNotification:
    """
    A notification to be sent, unless it is ``silent``, once these ``lanes`` are awake; ``due`` is
    when the task may run, on this process's clock. With a ``holder`` it is for that one.
    """

    connection: BaseDatabaseWrapper
    queue: str
    due: float
    holder: int | None = None
    lanes: dict[int, int] = field(default_factory=dict)
    wake: Wake | None = None
    silent: bool = False
    place: int = 0

    @property
    def message(self) -> str:
        delay = max(0.0, self.due - time.monotonic())
        return Notification(self.queue, delay, self.holder).message

    def __call__(self) -> None:
        try:
            notifies = dialect_for(self.connection).notifies
            if self.lanes:
                # Where the database can, the statement that notifies looks at the lanes, too.
                looks = notifies and not self.silent and len(self.lanes) <= MOST_LANES
                if looks and postgres.send_if_awake(self.message, self.lanes, self.connection):
                    return
                if self.wake:
                    self.wake(self.lanes, using=self.connection.alias)
            if not self.silent:
                way = postgres if notifies else datagrams
                way.send(self.message, self.connection)
        except Exception as error:
            logger.debug("The notification was not sent. message=%s error=%s", self.message, error)

    def add(self, other: PendingNotification) -> None:
        """Be this one as well; of a lane the first task stays, which is due first."""
        self.due = min(self.due, other.due)
        self.silent = self.silent and other.silent
        self.wake = self.wake or other.wake
        for lane, task_id in other.lanes.items():
            self.lanes.setdefault(lane, task_id)

    def will_come(self) -> bool:
        """Return whether it is sent when what its connection does now is committed."""
        connection = self.connection
        if self.place >= len(connection.run_on_commit):
            return False
        savepoints, function = connection.run_on_commit[self.place][:2]
        return function is self and savepoints <= set(connection.savepoint_ids)


def will_wake(*, using: str) -> bool:
    """Return whether the caller's transaction has submitted what wakes lanes after its commit."""
    hooks = (hook[1] for hook in connections[using].run_on_commit)
    return any(isinstance(hook, PendingNotification) and hook.lanes for hook in hooks)


def listener_of(using: str) -> SocketListener | ChannelListener:
    """
    Return what reads the notifications of this database, not yet open.

    On PostgreSQL it gives this thread a connection of its own.
    """
    if not dialect_of(using).notifies:
        return SocketListener(using)
    connections[using] = postgres.apart(using)
    return ChannelListener(using)


# By connection, and by queue or holder, the notification that was asked for last.
asked: WeakKeyDictionary[BaseDatabaseWrapper, dict[str | int, PendingNotification]] = (
    WeakKeyDictionary()
)


def after_commit(new: PendingNotification) -> None:
    """
    Notify when the caller's transaction commits, once for all who ask for it; at once where
    there is none.

    What was asked for inside a savepoint goes when that is rolled back; so it stands only
    for what is written inside the same one.
    """
    connection = new.connection
    if not connection.in_atomic_block:
        if connection.autocommit:
            new()
        return
    known = asked.setdefault(connection, {})
    whom = new.queue if new.holder is None else new.holder
    if whom in known and known[whom].will_come():
        known[whom].add(new)
        return
    known[whom] = new
    new.place = len(connection.run_on_commit)
    transaction.on_commit(new, using=connection.alias, robust=True)
