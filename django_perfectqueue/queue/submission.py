"""The arguments of a submit: named, documented and checked here, for all that submits tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

from django_perfectqueue import store
from django_perfectqueue.exceptions import InvalidTaskError
from django_perfectqueue.lib.checks import nearest
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


class Target(NamedTuple):
    """Where a task is submitted, and when, if that is given."""

    queue: str
    using: str
    now: datetime | None


TIMES = ("run_at", "expected_at", "expires_at")


def time(name: str) -> Callable[[Any, Target], store.Moment | None]:
    return lambda value, to: moment(name, value, to.now)


CHECKS: dict[str, Callable[[Any, Target], object]] = {
    "user": lambda value, to: checked_user(value),
    "priority": lambda value, to: checked_priority(value),
    "limits": lambda value, to: checked_limits(value or ()),
    "time_limit": lambda value, to: checked_duration("time_limit", value),
    "context": lambda value, to: captured(value),
    **{name: time(name) for name in TIMES},
    "after": lambda value, to: checked_after(value or (), to.queue, to.using),
    "if_failed": lambda value, to: checked_if_failed(value),
    "tags": lambda value, to: checked_tags(value or ()),
}
"""Each option of TaskOptions as it is stored; raises InvalidTaskError."""
ARGUMENTS = ("key", "type", "data", *CHECKS)


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

    ``surroundings`` is what it takes along of its submitter's without a ``context``. Raise
    InvalidTaskError, and TypeError for an option that there is not.
    """
    to = Target(queue.name, using or queue.using, now)
    given: dict[str, Any] = {"context": surroundings}
    for name, value in options.items():
        if name not in CHECKS:
            raise TypeError(f"A task has no '{name}'.{nearest(name, ARGUMENTS)}")
        if name != "context" or value is not None:
            given[name] = CHECKS[name](value, to)
    starts, ends = given.get("run_at"), given.get("expires_at")
    if expires_first(starts, ends):
        raise InvalidTaskError(f"The task could never run: it expires at {ends}, before run_at.")
    type_ = checked("type", type, KEY_LENGTH)
    lane = store.lane_behind(
        queue.name, type_, given.get("user", ""), given.get("limits", ()), using=to.using
    )
    return store.Submission(
        queue=queue.name,
        key=checked_key(key),
        type=type_,
        payload=encoded(data),
        lane=lane,
        **given,
    )


def expires_first(starts: store.Moment | None, ends: store.Moment | None) -> bool:
    """
    Return whether a task ends before it begins.

    A time and a duration are only comparable by the server's clock: such a task expires unrun.
    """
    if isinstance(starts, datetime) and isinstance(ends, datetime):
        return ends <= starts
    return isinstance(starts, timedelta) and isinstance(ends, timedelta) and ends <= starts
