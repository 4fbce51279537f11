"""
The door to fair shares: see and change what users are entitled to, and what queues are.

A user of None is that of the tasks without a user, and EVERYONE all who have no share of
their own. An empty queue is every queue. A change is recorded, with who made it where
``by`` says so, and holds once it is committed, for tasks that wait already, too.
"""

from __future__ import annotations

from datetime import datetime
from types import EllipsisType

from asgiref.sync import sync_to_async

from django_perfectqueue.exceptions import ConfigError
from django_perfectqueue.lib.checks import named
from django_perfectqueue.models import FairShare, QueueShare
from django_perfectqueue.payload.inputs import KEY_LENGTH, QUEUE_LENGTH
from django_perfectqueue.store.database.transaction import database

from . import edit


def share(user: str | None, *, queue: str = "", using: str | None = None) -> FairShare:
    """
    Return the share that holds for a user: its own, or that of everyone, or the default.

    Raise ConfigError for names that can't be.
    """
    return edit.share_in_force(*names(user, queue), using=using or database())


def set_share(
    user: str | None,
    *,
    queue: str = "",
    weight: float | EllipsisType = ...,
    max_running: int | EllipsisType | None = ...,
    paused: bool | EllipsisType = ...,
    until: datetime | EllipsisType | None = ...,
    note: str | EllipsisType = ...,
    by: str = "",
    using: str | None = None,
) -> FairShare:
    """
    Give a user a share of its own, or change the one it has; only what is given is changed.

    One that is paused goes on at the time ``until``, or without one when it is unpaused;
    ``note`` says why it is. Raise ConfigError when a value can't be.
    """
    given = {"weight": weight, "max_running": max_running, **edit.pause(paused, until, note)}
    return edit.change_share(*names(user, queue), given, by=by, using=using or database())


def reset_share(
    user: str | None, *, queue: str = "", by: str = "", using: str | None = None
) -> bool:
    """Take away a user's own share; return whether there was one."""
    user, queue = names(user, queue)
    owner = {"user": user, "queue": queue}
    return edit.remove(FairShare, owner, by=by, using=using or database())


def queue_weight(queue: str, *, using: str | None = None) -> float:
    """
    Return the weight of a queue among those that one worker serves.

    Raise ConfigError for a name that can't be.
    """
    row = QueueShare.objects.using(using or database()).filter(queue=queue_name(queue)).first()
    return row.weight if row else 1.0


def set_queue_weight(
    queue: str, weight: float, *, by: str = "", using: str | None = None
) -> QueueShare:
    """
    Give a queue this weight; workers follow within seconds.

    Raise ConfigError when a value can't be.
    """
    owner, given = {"queue": queue_name(queue)}, {"weight": weight}
    return edit.change(QueueShare, owner, given, by=by, using=using or database())


def reset_queue_weight(queue: str, *, by: str = "", using: str | None = None) -> bool:
    """Give a queue the weight 1 again; return whether it had a weight of its own."""
    owner = {"queue": queue_name(queue)}
    return edit.remove(QueueShare, owner, by=by, using=using or database())


def queue_name(queue: str) -> str:
    text: str = named(QUEUE_LENGTH).require("The queue", queue, ConfigError)
    return text


def names(user: str | None, queue: str) -> tuple[str, str]:
    """Return user and queue as a row has them; raise ConfigError."""
    return (
        "" if user in (None, "") else named(KEY_LENGTH).require("The user", user, ConfigError),
        "" if queue == "" else queue_name(queue),
    )


ashare = sync_to_async(share)
aset_share = sync_to_async(set_share)
areset_share = sync_to_async(reset_share)
aqueue_weight = sync_to_async(queue_weight)
aset_queue_weight = sync_to_async(set_queue_weight)
areset_queue_weight = sync_to_async(reset_queue_weight)
