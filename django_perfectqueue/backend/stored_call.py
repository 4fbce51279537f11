"""What a row keeps of one call of a Django task, as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

from django_perfectqueue.backoff.error_rules import RULES
from django_perfectqueue.compat import InvalidTask
from django_perfectqueue.exceptions import PayloadError
from django_perfectqueue.payload.names import JSON

from .definition import DEFAULTS

if TYPE_CHECKING:
    from django_perfectqueue.compat import AnyTask

# What a task waits for and what it belongs to has rows of its own.
WORDS = (
    "run_after",
    "backend",
    "takes_context",
    *(name for name in DEFAULTS if name not in ("after", "if_failed", "tags", "batch")),
)
ONLY_DEFINED = (*RULES, "kill_wait")
AT, FOR = "at", "for"


class StoredCall(NamedTuple):
    """
    Arguments, when it was enqueued by the clock of the host that did so, and in which
    words the task differed from its definition.
    """

    args: list[JSON]
    kwargs: dict[str, JSON]
    enqueued_at: datetime | None
    task_options: Mapping[str, JSON]

    @property
    def data(self) -> dict[str, object]:
        """The task's data in the queue."""
        data: dict[str, object] = {"args": self.args, "kwargs": self.kwargs}
        if self.enqueued_at:
            data["enqueued_at"] = self.enqueued_at.isoformat()
        if self.task_options:
            data["using"] = {name: packed(value) for name, value in self.task_options.items()}
        return data

    @classmethod
    def of(cls, data: JSON) -> StoredCall:
        """
        Read what ``data`` says.

        Raise PayloadError when it is not the data of a Django task.
        """
        try:
            if "args" not in data and "kwargs" not in data:
                raise TypeError("neither args nor kwargs")
            args, kwargs = data.get("args", []), data.get("kwargs", {})
            at, using = data.get("enqueued_at"), data.get("using", {})
            if not (isinstance(args, list) and isinstance(kwargs, dict)):
                raise TypeError("args is no list, or kwargs no dict")
            task_options = {name: unpacked(value) for name, value in using.items()}
            return cls(args, kwargs, datetime.fromisoformat(at) if at else None, task_options)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise PayloadError(
                "The data is not that of a Django task, such as"
                f' {{"args": [], "kwargs": {{}}}}: {type(error).__name__}: {error}.'
            ) from error


def stored_options(task: object, definition: object, names: Mapping[str, str]) -> dict[str, object]:
    """
    Return the words that ``using()`` has changed; ``names`` are what callables have made.

    Raise InvalidTask for a callable that a row can't keep.
    """
    if task is definition:
        return {}
    changed = {}
    for name in WORDS:
        value = getattr(task, name, DEFAULTS.get(name))
        if value == getattr(definition, name, DEFAULTS.get(name)):
            continue
        if name in ONLY_DEFINED or (callable(value) and name not in names):
            raise InvalidTask(f"{name} can't be changed by using(): give it to @task.")
        changed[name] = names[name] if callable(value) else value
    return changed


def variant(definition: AnyTask, call: StoredCall, *, queue: str, priority: int) -> AnyTask:
    """
    Return the task as it was enqueued.

    It is not validated again: what was allowed then may be run, whatever has been changed.
    """
    columns = {"queue_name": queue, "priority": priority}
    task_options = {**call.task_options, **columns}
    if not call.task_options and all(
        getattr(definition, name) == columns[name] for name in columns
    ):
        return definition
    copy = object.__new__(type(definition))
    for field in fields(definition):
        value = task_options.get(field.name, getattr(definition, field.name))
        object.__setattr__(copy, field.name, value)
    return copy


def packed(value: object) -> object:
    if isinstance(value, datetime):
        return {AT: value.isoformat()}
    if isinstance(value, timedelta):
        return {FOR: value.total_seconds()}
    return list(value) if isinstance(value, tuple) else value


def unpacked(value: object) -> object:
    if isinstance(value, dict):
        [(kind, given)] = value.items()
        return datetime.fromisoformat(given) if kind == AT else timedelta(seconds=given)
    return tuple(value) if isinstance(value, list) else value
