"""A task as a program gives it, checked, and as the store takes it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING

from django_perfectqueue import store
from django_perfectqueue.exceptions import InvalidTaskError
from django_perfectqueue.payload.inputs import (
    KEY_LENGTH,
    Duration,
    When,
    captured,
    checked,
    checked_duration,
    checked_key,
    checked_limits,
    checked_priority,
    checked_tags,
    checked_user,
    encoded,
    moment,
)

from .parents import IfFailed, checked_after, checked_if_failed
from .task_handle import expires_first

if TYPE_CHECKING:
    from .parents import Waited
    from .queue import Queue


def submission_of(
    queue: Queue,
    key: str | None = None,
    type: str | None = None,  # noqa: A002
    data: object = None,
    *,
    using: str | None = None,
    user: object = None,
    run_at: When | None = None,
    priority: int = 0,
    expected_at: When | None = None,
    expires_at: When | None = None,
    limits: Iterable[str] = (),
    time_limit: Duration | None = None,
    after: Iterable[Waited] = (),
    if_failed: IfFailed = "wait",
    tags: Iterable[str] = (),
    surroundings: str | None = None,
    context: Mapping[str, object] | None = None,
    now: datetime | None = None,
) -> store.Submission:
    """
    Return a task as it is stored, from the arguments of Queue.submit().

    ``surroundings`` is what it takes along of its submitter's without a ``context``. Raise
    what that does.
    """
    using = using or queue.using
    starts = run_at if run_at is None else moment("run_at", run_at, now)
    ends = expires_at if expires_at is None else moment("expires_at", expires_at, now)
    due = expected_at if expected_at is None else moment("expected_at", expected_at, now)
    names = checked_limits(limits) if limits else ()
    type_ = checked("type", type, KEY_LENGTH)
    owner = "" if user is None else checked_user(user)
    parents = checked_after(after, queue.name, using) if after else ()
    keys = store.limits_of(queue.name, type_, owner, names, using=using)
    if starts is not None and ends is not None and expires_first(starts, ends):
        raise InvalidTaskError(f"The task could never run: it expires at {ends}, before run_at.")
    return store.Submission(
        queue=queue.name,
        key=checked_key(key),
        type=type_,
        user=owner,
        payload=encoded(data),
        priority=checked_priority(priority),
        run_at=starts,
        expected_at=due,
        expires_at=ends,
        limits=names,
        lane=store.lane_of(queue.name, owner, keys),
        time_limit=None if time_limit is None else checked_duration("time_limit", time_limit),
        context=surroundings if context is None else captured(context),
        after=parents,
        if_failed=0 if if_failed == "wait" else checked_if_failed(if_failed),
        tags=checked_tags(tags) if tags else (),
    )
