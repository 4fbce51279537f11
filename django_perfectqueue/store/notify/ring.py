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
from .datagrams import Datagrams
from .messages import AT_REST, Call, Ring
from .postgres import Notices

logger = logging.getLogger("django_perfectqueue.notify")

EAGER = "django_perfectqueue.test.eager.rung"
MOST_LANES = 500
"""Of so many lanes the statement that notifies looks whether they are awake."""

Wake = Callable[..., None]


def ring(
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
    that sleep are woken before, by ``wake``. One ring a transaction and queue is sent, and
    none for what is due only after AT_REST times POLL_INTERVAL: by then every worker has
    looked. Nothing is done where the caller has switched autocommit off, and its commit is
    not heard of. Raise nothing; a ring that is lost is made up for by the next poll, and a
    lane that still sleeps is woken by the next sweep.

    With EAGER there is no worker: what is due is run here, once it is committed.
    """
    eager = bool(options().EAGER) and delay <= 0.0 and running.get() is None
    if lanes or not eager:
        notify(queue, using=using, delay=delay, lanes=lanes, wake=wake, silent=eager)
    if eager:
        import_string(EAGER)(using)


def message_of(queue: str, delay: float) -> str:
    """Return the ring that a statement may send itself, or nothing where it is to send none."""
    values = options()
    if values.EAGER or not values.NOTIFY or delay > AT_REST * values.POLL_INTERVAL:
        return ""
    return Ring(queue, delay).message()


def notify(
    queue: str = "",
    *,
    using: str,
    delay: float = 0.0,
    lanes: Mapping[int, int] | None = None,
    wake: Wake | None = None,
    silent: bool = False,
) -> None:
    """Do so where there are workers; with ``silent`` only wake lanes."""
    values = options()
    silent = silent or not values.NOTIFY or delay > AT_REST * values.POLL_INTERVAL
    if lanes or not silent:
        ringing = Ringing(connections[using], queue, time.monotonic() + delay, silent=silent)
        if lanes:
            ringing.lanes, ringing.wake = dict(lanes), wake
        after_commit(ringing)


def call(holder: int, *, using: str) -> None:
    """
    Notify the process with this holder's id, once the caller's transaction has committed,
    that there is news of one: it is to stop, or has been ended.

    As with a ring nothing is raised, and one that is lost costs TASK_HEARTBEAT_INTERVAL.
    """
    if options().NOTIFY:
        after_commit(Ringing(connections[using], "", time.monotonic(), holder))


@dataclass(slots=True, eq=False)
class Ringing:
    """
    A ring to be sent, unless it is ``silent``, once these ``lanes`` are awake; ``due`` is
    when the task may run, on this process's clock. With a ``holder`` it is a call.
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
        if self.holder is not None:
            return Call(self.holder).message()
        return Ring(self.queue, max(0.0, self.due - time.monotonic())).message()

    def __call__(self) -> None:
        try:
            if not (self.lanes and self.is_sent_where_all_are_awake()):
                if self.wake:
                    self.wake(self.lanes, using=self.connection.alias)
                if not self.silent:
                    self.send()
        except Exception as error:
            logger.debug("The notification was not sent. message=%s error=%s", self.message, error)

    def send(self) -> None:
        way = postgres if dialect_for(self.connection).notifies else datagrams
        way.send(self.message, self.connection)

    def is_sent_where_all_are_awake(self) -> bool:
        """Send it in the statement that looks at the lanes, where the database can."""
        if self.silent or len(self.lanes) > MOST_LANES or not dialect_for(self.connection).notifies:
            return False
        return postgres.send_if_awake(self.message, self.lanes, self.connection)

    def add(self, other: Ringing) -> None:
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
    return any(isinstance(hook, Ringing) and hook.lanes for hook in hooks)


def ear(using: str) -> Datagrams | Notices:
    """Return what hears the notifications of this database, not yet open."""
    return Notices(using) if dialect_of(using).notifies else Datagrams(using)


# By connection, and by queue or holder, the ring that was asked for last.
asked: WeakKeyDictionary[BaseDatabaseWrapper, dict[str | int, Ringing]] = WeakKeyDictionary()


def after_commit(ringing: Ringing) -> None:
    """Ring when the caller's transaction commits; at once where there is none."""
    if ringing.connection.in_atomic_block:
        once_committed(ringing)
    elif ringing.connection.autocommit:
        ringing()


def once_committed(new: Ringing) -> None:
    """
    Ring when the transaction commits, once for all who ask for it.

    What was asked for inside a savepoint goes when that is rolled back; so it stands only
    for what is written inside the same one.
    """
    connection = new.connection
    known = asked.setdefault(connection, {})
    whom = new.queue if new.holder is None else new.holder
    ringing = known.get(whom)
    if ringing is not None and ringing.will_come():
        ringing.add(new)
        return
    known[whom] = new
    new.place = len(connection.run_on_commit)
    transaction.on_commit(new, using=connection.alias, robust=True)
