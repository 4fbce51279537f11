"""The arguments of a submit: named, documented and checked here, for all that submits tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypedDict

from django_perfectqueue import store
from django_perfectqueue.exceptions import InvalidTaskError
from django_perfectqueue.lib.checks import nearest
from django_perfectqueue.payload.inputs import (
    KEY,
    Duration,
    When,
    captured,
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

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .parents import Waited
    from .queue import Queue


class TaskTerms(TypedDict, total=False):
    """
    What may be given along with a task, and with a schedule for its tasks.

    ``user`` is for whom it runs: a text, or anything with a ``str()``. A larger ``priority``
    goes first among its user's tasks; the default is 0. ``limits`` are the names of limits that
    it keeps to. ``time_limit`` is for how long an attempt may run: a timedelta, seconds or a span
    such as ``"5m30s"``; None leaves it to the handler. ``context`` is what it takes along in
    place of what the setting CONTEXT captures, by the same names.
    """

    user: object
    priority: int
    limits: Iterable[str]
    time_limit: Duration | None
    context: Mapping[str, object] | None


class TaskOptions(TaskTerms, total=False):
    """
    What may be given along with a task.

    It may start at ``run_at``, and not any more at ``expires_at``. Of equal priority the one
    goes first that is due first; ``expected_at`` is then counted as when it is due. Times are an
    aware datetime, a timedelta, seconds from now or a span such as ``"5m30s"``.

    ``after`` are the tasks that must finish before: keys of this queue, tasks, results or ids.
    If one of them ends otherwise, this one with ``if_failed`` waits until that is put back and
    finishes, is cancelled, or runs all the same. ``tags`` are up to 20 names of up to 64
    characters by which it is found.
    """

    run_at: When | None
    expected_at: When | None
    expires_at: When | None
    after: Iterable[Waited]
    if_failed: IfFailed
    tags: Iterable[str]


TIMES = ("run_at", "expected_at", "expires_at")
CHECKS: dict[str, Callable[[Any], object]] = {
    "user": checked_user,
    "priority": checked_priority,
    "limits": checked_limits,
    "time_limit": partial(checked_duration, "time_limit"),
    "context": captured,
    "if_failed": checked_if_failed,
    "tags": checked_tags,
}
"""Each option but TIMES and ``after`` as it is stored; raises InvalidTaskError."""
ARGUMENTS = ("key", "type", "data", *CHECKS, *TIMES, "after")


def submission_of(
    queue: Queue,
    key: str | None = None,
    type: str | None = None,  # noqa: A002
    data: object = None,
    *,
    using: str | None = None,
    surroundings: str | None = None,
    now: datetime | None = None,
    **options: Unpack[TaskOptions],
) -> store.Submission:
    """
    Return a task as it is stored, from the arguments of Queue.submit().

    An option that is None is as one that is not given. ``surroundings`` is what it takes
    along of its submitter's without a ``context``. Raise InvalidTaskError, and TypeError for an
    option that there is not.
    """
    using = using or queue.using
    given: dict[str, Any] = {"context": surroundings}
    values: Mapping[str, Any] = options
    for name, value in values.items():
        if name not in ARGUMENTS:
            raise TypeError(f"A task has no '{name}'.{nearest(name, ARGUMENTS)}")
        if value is None:
            continue
        if name in TIMES:
            given[name] = moment(name, value, now)
        elif name == "after":
            given[name] = checked_after(value, queue.name, using)
        else:
            given[name] = CHECKS[name](value)
    starts, ends = given.get("run_at"), given.get("expires_at")
    if starts is not None and ends is not None and expires_first(starts, ends):
        raise InvalidTaskError(f"The task could never run: it expires at {ends}, before run_at.")
    type_ = KEY.require("The type", type, InvalidTaskError)
    lane = store.lane_behind(
        queue.name, type_, given.get("user", ""), given.get("limits", ()), using=using
    )
    return store.Submission(
        queue=queue.name,
        key=checked_key(key),
        type=type_,
        payload=encoded(data),
        lane=lane,
        **given,
    )


def expires_first(starts: store.Moment, ends: store.Moment) -> bool:
    """
    Return whether a task ends before it begins.

    A time and a duration are only comparable by the server's clock: such a task expires unrun.
    """
    if isinstance(starts, datetime) and isinstance(ends, datetime):
        return ends <= starts
    return isinstance(starts, timedelta) and isinstance(ends, timedelta) and ends <= starts
