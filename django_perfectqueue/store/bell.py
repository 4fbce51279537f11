"""Tell those who wait for work that there is some."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from django.db import connections, transaction

from ..conf import options
from . import datagrams, notices
from .datagrams import Datagrams
from .dialects import dialect_of
from .notices import Notices
from .rings import Ring

logger = logging.getLogger("django_perfectqueue.bell")


def ring(queue: str = "", *, using: str, delay: float = 0.0) -> None:
    """
    Let the workers of a queue know, once the caller's transaction has committed, that a
    task of it may run, or may in so many seconds; without a name, the workers of any.

    One ring a transaction and queue is sent, and none for what is due only after
    POLL_INTERVAL: by then every worker has looked. None either where the caller has
    switched autocommit off, and its commit is not heard of. Raise nothing; a ring that is
    lost costs at most POLL_INTERVAL.
    """
    if not options().BELL or delay > options().POLL_INTERVAL:
        return
    connection = connections[using]
    due = time.monotonic() + delay
    if connection.in_atomic_block:
        after_commit(connection, queue, due)
    elif connection.autocommit:
        Ringing(using, queue, due)()


@dataclass(slots=True, eq=False)
class Ringing:
    """A ring to be sent; ``due`` is when the task may run, on this process's clock."""

    using: str
    queue: str
    due: float
    place: int = 0

    def __call__(self) -> None:
        message = Ring(self.queue, max(0.0, self.due - time.monotonic())).message()
        try:
            if dialect_of(self.using).notifies:
                notices.send(message, using=self.using)
            else:
                datagrams.send(message, using=self.using)
        except Exception as error:
            logger.debug("The bell was not rung. queue=%s error=%s", self.queue, error)

    def will_come(self, connection: Any) -> bool:
        """Tell whether it is sent when what this connection does now is committed."""
        if self.place >= len(connection.run_on_commit):
            return False
        savepoints, function, *_robust = connection.run_on_commit[self.place]
        return function is self and savepoints <= set(connection.savepoint_ids)


def ear(using: str) -> Datagrams | Notices:
    """Return what hears the bell of this database, not yet open."""
    return Notices(using) if dialect_of(using).notifies else Datagrams(using)


# By connection and queue, the ring that was asked for last.
asked: WeakKeyDictionary[Any, dict[str, Ringing]] = WeakKeyDictionary()


def after_commit(connection: Any, queue: str, due: float) -> None:
    """
    Ring when the transaction commits, once for all who ask for it.

    What was asked for inside a savepoint goes when that is rolled back; so it stands only
    for what is written inside the same one.
    """
    known = asked.setdefault(connection, {})
    ringing = known.get(queue)
    if ringing is not None and ringing.will_come(connection):
        ringing.due = min(ringing.due, due)
        return
    place = len(connection.run_on_commit)
    ringing = known[queue] = Ringing(connection.alias, queue, due, place)
    transaction.on_commit(ringing, using=connection.alias, robust=True)
