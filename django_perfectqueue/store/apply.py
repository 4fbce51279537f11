"""Let an edited share hold for tasks that wait already."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .alarms import floor
from .bell import ring
from .dialects import Dialect
from .dialects.base import Waking
from .lanes import lane_id
from .policies import rule_of
from .shares import shares_of
from .transaction import repeated, unit

NEXT_QUEUE = 'SELECT MIN("queue") FROM "perfectqueue_lane" WHERE "queue" > %(last)s'
QUEUES = """
SELECT "queue" FROM "perfectqueue_fairshare" WHERE "user" = %(user)s AND "queue" <> ''
"""
APPLY = """
UPDATE "perfectqueue_lane"
SET "virtual_time" = CASE
        WHEN "virtual_time" < %(floor)s AND ("open" = FALSE OR "max_running" IS NOT NULL)
        THEN %(floor)s ELSE "virtual_time"
    END,
    "weight" = %(weight)s, "max_running" = %(max_running)s, "paused" = %(paused)s
WHERE "id" = %(lane)s
"""


@repeated
def apply_shares(user: str, *, using: str) -> None:
    """
    Write a user's shares to its lanes, so that they hold for tasks that wait already.

    A lane that someone is making just now, from the shares as they were, can be waited
    for only by making it, too. A lane that was paused or held back by its cap takes its
    place as one that wakes: it has saved no credit.
    """
    with unit(using) as (cursor, dialect):
        owners = {(queue, user) for queue in queues_of(cursor, dialect, user)}
        shares = shares_of(cursor, dialect, owners)
        lanes = []
        for queue, _user in owners:
            virtual_time, cost = floor(cursor, dialect, queue)
            share = shares[queue, user]
            lanes.append(
                Waking(
                    lane=lane_id(queue, user),
                    account=lane_id(queue, user),
                    gate=0,
                    queue=queue,
                    user=user,
                    virtual_time=virtual_time,
                    cost=cost,
                    weight=share.weight,
                    max_running=share.max_running,
                    paused=share.paused,
                    policy=rule_of(queue).code,
                )
            )
        lanes.sort(key=lambda lane: lane.lane)
        if lanes:
            dialect.wake(cursor, lanes)
            # Now that the lanes are locked, so that of two edits the later one stays.
            shares = shares_of(cursor, dialect, owners)
        for lane in lanes:
            share = shares[lane.queue, user]
            values = {
                "lane": lane.lane,
                "floor": lane.virtual_time,
                "weight": share.weight,
                "max_running": share.max_running,
                "paused": share.paused,
            }
            dialect.execute(cursor, APPLY, values)
        if lanes:
            dialect.copy_accounts(cursor, [lane.lane for lane in lanes])
    for lane in lanes:
        ring(lane.queue, using=using)


def queues_of(cursor: Any, dialect: Dialect, user: str) -> Iterator[str]:
    """
    Yield the queues in which a user may have a lane, some of them twice.

    The index of the lanes is read by jumping from queue to queue: there may be a lane
    for each of millions of users.
    """
    found = dialect.execute(cursor, QUEUES, {"user": user}).fetchall()
    yield from (queue for (queue,) in found)
    queue = ""
    while row := dialect.execute(cursor, NEXT_QUEUE, {"last": queue}).fetchone():
        [queue] = row
        if queue is None:
            return
        yield queue
