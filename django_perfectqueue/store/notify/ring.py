"""Notify workers of work, and programs of tasks that end; send signals after the commit."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from weakref import WeakKeyDictionary

from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.dispatch import Signal
from django.utils.module_loading import import_string

from django_perfectqueue.conf import options
from django_perfectqueue.lib.running import running
from django_perfectqueue.signals import TaskNames, is_heard, send_all

from ..database.dialects import dialect_for, dialect_of
from ..database.dialects.base import Row
from ..database.transaction import Session, reading, retry_transaction, shared_operations
from ..values import ENDED
from . import datagrams, postgres
from .datagrams import AT_REST, Notification, SocketListener
from .postgres import ChannelListener

logger = logging.getLogger("django_perfectqueue.notify")

EAGER = "django_perfectqueue.test.eager.notified"
# Of so many lanes the statement that notifies looks whether they are awake.
MOST_LANES = 500

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


# Watch for tasks that end, by notification or by polling.


FIND = """
SELECT "key", "id" FROM "perfectqueue_task" WHERE "queue" = %(queue)s AND "key" = %({name})s
"""
LIVE = 'SELECT "task_id", "watched" FROM "perfectqueue_ticket" WHERE "task_id" IN ({ids})'
ENDS = """
SELECT "id", "outcome", COALESCE("group", ''), COALESCE("message", ''), "result"
FROM "perfectqueue_task" LEFT JOIN "perfectqueue_deadletter" ON "task_id" = "id"
WHERE "id" IN ({ids})
"""
WATCH = """
UPDATE "perfectqueue_ticket" SET "watched" = TRUE
WHERE "task_id" = ANY(ARRAY(
    SELECT "task_id" FROM "perfectqueue_ticket"
    WHERE "task_id" IN ({ids}) AND NOT "watched" ORDER BY "task_id" FOR UPDATE SKIP LOCKED
)) AND ("task_id"{asynchronous_commit}) IS NOT NULL
"""


@retry_transaction
def find_all(queue: str, keys: Iterable[str], *, using: str) -> dict[str, int]:
    """
    Return the ids of those tasks of a queue that there are, by key.

    Key by key: of a list PostgreSQL may think that it had better read the whole queue.
    """
    values = {f"k{number}": key for number, key in enumerate(keys)}
    queries = [FIND.replace("{name}", name) for name in values]
    with reading(using) as db:
        return dict(db.union(queries, {**values, "queue": queue}))


@retry_transaction
def live(ids: Sequence[int], *, using: str) -> Mapping[int, bool]:
    """Return which tasks have yet to end, each with whether its end will be notified."""
    with reading(using) as db:
        return {task_id: bool(watched) for task_id, watched in db.rows_of(LIVE, "ids", ids)}


@retry_transaction
def ends(ids: Sequence[int], *, using: str) -> dict[int, Row]:
    """
    Return of each task that is there its outcome, empty while it has none, its error, what that
    said, and its result as it is stored.
    """
    with reading(using) as db:
        return {row[0]: row[1:] for row in db.rows_of(ENDS, "ids", ids)}


@retry_transaction
def watch(ids: Sequence[int], *, using: str) -> None:
    """
    Ask for a notification when these tasks end.

    What someone else has locked is passed over: that may be for as long as a handler runs.
    The commit is asynchronous, so that a claim finds the tickets locked for no longer than
    the statement takes; if a crash of the server loses it, the caller still polls.
    """
    with reading(using) as db:
        db.execute(WATCH, ids=ids, asynchronous_commit=db.dialect.asynchronous_commit)


def end_listener(using: str) -> ChannelListener | None:
    """
    Return a listener for ends, not yet open, or None where the database sends none.

    Nothing is heard behind a pooler that lends out connections for one transaction; Django
    needs DISABLE_SERVER_SIDE_CURSORS.
    """
    pooled = connections[using].settings_dict.get("DISABLE_SERVER_SIDE_CURSORS")
    notifies = dialect_of(using).notifies and options().NOTIFY and not pooled
    return ChannelListener(using) if notifies else None


def end_channels(ids: Iterable[int]) -> set[str]:
    """Return the channels on which the ends of these tasks are notified."""
    return {f"{ENDED}{task_id}" for task_id in ids}


# Send signals for tasks that nobody in this process holds.


WHOM = """
SELECT "id", "queue", "key", "type", "user" FROM "perfectqueue_task" WHERE "id" IN ({ids})
"""


def announce(signal: Signal, tasks: Iterable[object], *, using: str) -> None:
    """
    Send a signal for each of these leases or submissions after the caller's transaction has
    committed, or at once where there is none.

    Nothing is sent where the caller has switched autocommit off: Django does not say when
    such a transaction commits.
    """
    if is_heard(signal):
        announce_after_commit(signal, [TaskNames.of(task) for task in tasks], using=using)


def announce_ids(db: Session, steps: Iterable[tuple[Signal, Sequence[int]]]) -> None:
    """Do what announce() does for tasks of which only the ids are known."""
    heard = [(signal, ids) for signal, ids in steps if ids and is_heard(signal)]
    if not heard:
        return
    every = sorted({task_id for _signal, ids in heard for task_id in ids})
    known = {task_id: TaskNames(*names) for task_id, *names in db.rows(WHOM, ids=every)}
    for signal, ids in heard:
        tasks = [known[task_id] for task_id in ids if task_id in known]
        announce_after_commit(signal, tasks, using=db.using)


def announce_after_commit(signal: Signal, tasks: list[TaskNames], *, using: str) -> None:
    connection = connections[using]
    if connection.in_atomic_block or connection.autocommit:
        connection.on_commit(partial(send, signal, tasks), robust=True)


def send(signal: Signal, tasks: list[TaskNames]) -> None:
    with shared_operations():
        send_all(signal, tasks)
