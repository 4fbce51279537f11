"""Tell those who wait for work that there is some."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from django.db import connections, transaction
from django.utils.module_loading import import_string

from django_perfectqueue.conf import options
from django_perfectqueue.lib.running import running

from ..database.dialects import dialect_for, dialect_of
from . import datagrams, postgres
from .datagrams import Datagrams, QueueDatagrams
from .messages import Call, Ring
from .postgres import Notices, QueueNotices

logger = logging.getLogger("django_perfectqueue.bell")

EAGER = "django_perfectqueue.test.eager.rung"


def ring(queue: str = "", *, using: str, delay: float = 0.0) -> None:
    """
    Let the workers of a queue know, once the caller's transaction has committed, that a
    task of it may run, or may in so many seconds; without a name, the workers of any.

    One ring a transaction and queue is sent, and none for what is due only after
    POLL_INTERVAL: by then every worker has looked. None either where the caller has
    switched autocommit off, and its commit is not heard of. Raise nothing; a ring that is
    lost costs at most POLL_INTERVAL.

    With EAGER there is no worker: what is due is run here, once it is committed.
    """
    values = options()
    if values.EAGER and delay <= 0.0 and running.get() is None:
        import_string(EAGER)(using)
    elif values.BELL and delay <= values.POLL_INTERVAL:
        after_commit(Ringing(connections[using], queue, time.monotonic() + delay))


def call(holder: int, *, using: str) -> None:
    """
    Let who holds tasks as this holder know, once the caller's transaction has committed,
    that there is news of one: it is to stop, or has been ended.

    As with a ring nothing is raised, and one that is lost costs TASK_HEARTBEAT_INTERVAL.
    """
    if options().BELL:
        after_commit(Ringing(connections[using], "", time.monotonic(), holder))


@dataclass(slots=True, eq=False)
class Ringing:
    """
    A ring to be sent; ``due`` is when the task may run, on this process's clock. With a
    ``holder`` it is a call.
    """

    connection: Any
    queue: str
    due: float
    holder: int | None = None
    place: int = 0

    @property
    def message(self) -> str:
        if self.holder is not None:
            return Call(self.holder).message()
        return Ring(self.queue, max(0.0, self.due - time.monotonic())).message()

    def __call__(self) -> None:
        message = self.message
        try:
            bell = postgres if dialect_for(self.connection).notifies else datagrams
            bell.send(message, self.connection)
        except Exception as error:
            logger.debug("The bell was not rung. message=%s error=%s", message, error)

    def will_come(self) -> bool:
        """Tell whether it is sent when what its connection does now is committed."""
        connection = self.connection
        if self.place >= len(connection.run_on_commit):
            return False
        savepoints, function, *_robust = connection.run_on_commit[self.place]
        return function is self and savepoints <= set(connection.savepoint_ids)


def ear(using: str) -> Datagrams | Notices:
    """Return what hears the bell of this database, not yet open."""
    return Notices(using) if dialect_of(using).notifies else Datagrams(using)


def doorbell(queue: str, *, using: str) -> QueueDatagrams | QueueNotices | None:
    """
    Return what hears the bell of a queue in a program, not yet open, or None where none is rung.

    It takes no connection of its own. Behind a pooler that lends out connections for one
    transaction nothing is heard; Django has to be told of those by
    DISABLE_SERVER_SIDE_CURSORS.
    """
    if not options().BELL:
        return None
    if not dialect_of(using).notifies:
        return QueueDatagrams(queue, using)
    pooled = connections[using].settings_dict.get("DISABLE_SERVER_SIDE_CURSORS")
    return None if pooled else QueueNotices(queue, using)


# By connection, and by queue or holder, the ring that was asked for last.
asked: WeakKeyDictionary[Any, dict[str | int, Ringing]] = WeakKeyDictionary()


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
        ringing.due = min(ringing.due, new.due)
        return
    known[whom] = new
    new.place = len(connection.run_on_commit)
    transaction.on_commit(new, using=connection.alias, robust=True)
