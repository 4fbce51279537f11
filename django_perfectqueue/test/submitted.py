"""What was submitted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from django_perfectqueue import models
from django_perfectqueue.payload.codecs import JSON
from django_perfectqueue.payload.context import masked
from django_perfectqueue.queue import Queue, TaskHandle, database

SHOWN, WIDTH = 20, 300
PARTS = ("data", "args", "kwargs")
COLUMNS = ("data", "user", "queue", "key", "priority", "type")
NAMES = (*PARTS, *COLUMNS[1:-1])


class DjangoTaskRoute(Protocol):
    """What Django's ``@task`` makes of a function."""

    @property
    def module_path(self) -> str: ...


# A type of tasks: its name, or the Django task itself.
Kind = str | DjangoTaskRoute


def type_of(kind: Kind) -> str:
    """Return a type's name."""
    return kind if isinstance(kind, str) else kind.module_path


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmittedTask:
    """One task as it was submitted; ``data`` is as JSON gives it back, ``task`` has the rest."""

    key: str
    type: str
    data: JSON
    queue: str
    user: str
    priority: int
    using: str

    @property
    def task(self) -> TaskHandle:
        """The task itself, to look at or to steer."""
        return Queue(self.queue, using=self.using)[self.key]

    @property
    def args(self) -> JSON:
        """The positional arguments of one of Django's tasks; None of any other."""
        return self.data.get("args") if isinstance(self.data, Mapping) else None

    @property
    def kwargs(self) -> JSON:
        """The arguments by name of one of Django's tasks; None of any other."""
        return self.data.get("kwargs") if isinstance(self.data, Mapping) else None

    def __str__(self) -> str:
        user = f" user={self.user!r}" if self.user else ""
        priority = f" priority={self.priority}" if self.priority else ""
        data = shortened(repr(masked(self.data)))
        return f"{self.queue}/{self.key} type={self.type!r}{user}{priority} data={data}"


def submitted(
    type: Kind | None = None,  # noqa: A002
    *,
    using: str | None = None,
    **wanted: object,
) -> list[SubmittedTask]:
    """
    Return what was submitted and is so, the oldest first: all that is stored, ended or not.

    ``type`` is the name or the Django task, for which there are ``args`` and ``kwargs``. Other
    words are data, user, queue, key and priority; ``mock.ANY`` may stand for any part of what
    is compared. Raise TypeError for an unknown word.
    """
    looked_for = wanting(type, wanted)
    return [one for one in everything(using) if matches(one, looked_for)]


def wanting(type: Kind | None, given: Mapping[str, object]) -> dict[str, object]:  # noqa: A002
    """Return what is looked for, without what may be anything."""
    wanted: dict[str, object] = {} if type is None else {"type": type_of(type)}
    for name, value in given.items():
        if name not in NAMES:
            raise TypeError(f"A task can't be looked for by '{name}', only by {', '.join(NAMES)}.")
        if name in PARTS or value is not None:
            wanted[name] = plain(value)
    return wanted


def matches(one: SubmittedTask, wanted: Mapping[str, object]) -> bool:
    return all(value == getattr(one, name) for name, value in wanted.items())


def everything(using: str | None) -> list[SubmittedTask]:
    using = using or database()
    rows = models.Task.objects.using(using).order_by("pk")
    values = [{name: getattr(row, name) for name in COLUMNS} for row in rows]
    return [SubmittedTask(**one, using=using) for one in values]


def plain(value: JSON) -> JSON:
    """Return a value as JSON would give it back, with what is no JSON left in place."""
    if isinstance(value, Mapping):
        return {str(name): plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    return value


def listed(tasks: list[SubmittedTask]) -> str:
    """Return what was submitted in words, a task on a line."""
    if not tasks:
        return "Nothing was submitted."
    lines = [f"  {task}" for task in tasks[:SHOWN]]
    more = [f"  and {len(tasks) - SHOWN} more"] if len(tasks) > SHOWN else []
    return "\n".join(["Submitted were:", *lines, *more])


def shortened(text: str) -> str:
    return text if len(text) <= WIDTH else f"{text[:WIDTH]}..."
