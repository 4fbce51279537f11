"""The statements that store one task; columns that it leaves empty are left out."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import NamedTuple

from ...values import Moment, Submission

OPTIONAL = ("run_at", "expected_at", "expires_at", "time_limit", "context")
SPAN = "+"
"""What marks a column that is given as a span from now."""

Form = tuple[str, ...]
Value = str | int | float | datetime | None
Convert = Callable[[Moment], Value]

TASK = """
INSERT INTO "perfectqueue_task" (
    "queue", "key", "type", "user", "data", "priority", "limits", "created_at", "run_at",
    "outcome", "attempt", "worker"{columns}
) VALUES (
    %(queue)s, %(key)s, %(type)s, %(user)s, %(data)s, %(priority)s, %(limits)s, {now}, {run_at},
    '', 0, ''{values}
)
"""
TICKET = """
INSERT INTO "perfectqueue_ticket" (
    "task_id", "lane", "state", "rank", "attempt", "errors", "crashes", "token",
    "cancel_requested", "run_at", "alarm_at"
)
"""
WAITING = "%(lane)s, 0, %(rank)s, 0, 0, 0, %(token)s, FALSE"
SCHEDULED = WAITING.replace("0", "1", 1)


class Stored(NamedTuple):
    """
    What became of a task: its id, or None where its key is taken.

    ``awake``: nobody can have put its lane to sleep before the task was committed.
    ``notified``: the workers have been notified, and the lane is awake if the task is due.
    """

    id: int | None
    awake: bool = False
    notified: bool = False


def form_of(task: Submission) -> Form:
    """Return which of the optional columns a task has; of times, whether they are spans."""
    return tuple(
        [
            SPAN + name if isinstance(value, timedelta) else name
            for name in OPTIONAL
            if (value := getattr(task, name)) is not None
        ]
    )


def statements_of(form: Form, sql: Callable[[str], str]) -> tuple[str, dict[str, str], str]:
    """
    Return the INSERT of the task, the SQL of each optional column, and a ticket's values.

    ``sql`` returns the SQL of a time by its name in the form.
    """
    given = {name.removeprefix(SPAN): sql(name) for name in form}
    others = [name for name in given if name != "run_at"]
    task = TASK.replace("{run_at}", given.get("run_at", "{now}"))
    task = task.replace("{columns}", "".join(f', "{name}"' for name in others))
    task = task.replace("{values}", "".join(f", {given[name]}" for name in others))
    return task, given, SCHEDULED if "run_at" in given else WAITING


def values_of(
    task: Submission, form: Form, token: int | None, now: datetime | None, convert: Convert
) -> dict[str, Value]:
    """Return the parameters; ``convert`` makes of times what the driver takes."""
    values: dict[str, Value] = {
        "queue": task.queue,
        "key": task.key,
        "type": task.type,
        "user": task.user,
        "data": task.payload,
        "priority": task.priority,
        "limits": ",".join(task.limits) if task.limits else "",
        "lane": task.lane,
        "rank": -task.priority,
        "token": token,
    }
    if now is not None:
        values["now"] = convert(now)
    for mark in form:
        name = mark.removeprefix(SPAN)
        value = getattr(task, name)
        values[name] = convert(value) if isinstance(value, datetime | timedelta) else value
    return values
