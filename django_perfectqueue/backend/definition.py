"""A Django task with the words that only a queue knows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from asgiref.sync import iscoroutinefunction

from django_perfectqueue.backoff import error_rules
from django_perfectqueue.backoff.error_rules import Rule, RuleWithWaits
from django_perfectqueue.compat import InvalidTask, Task
from django_perfectqueue.lib.async_twins import twin
from django_perfectqueue.lib.checks import TRUE_OR_FALSE, Check, choice, names, nearest

from . import registry

P = ParamSpec("P")
R = TypeVar("R")

ByArguments = Callable[[tuple[object, ...], dict[str, object]], str]
"""Of a call's arguments, ``(args, kwargs)``, makes a name."""

if TYPE_CHECKING:
    from django_perfectqueue.compat import AnyResult, AnyTask
    from django_perfectqueue.queue import Batch, When

    from .base import PerfectQueueBackend

    Backoff = Callable[[BaseException, AnyResult], float | None]
    Base = Task
else:
    # Django's Task has these parameters for type checkers alone.
    Backoff, Base = Callable, {(P, R): Task}


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueTask(Base[P, R]):
    """
    What ``@task`` makes of a function for a PerfectQueueBackend.

    Its own words may be given to ``@task(...)`` and to ``using()``, and those that are
    callables to ``@task(...)`` alone.
    """

    max_attempts: int | None = None
    """How many attempts may end in an error; None is the backend's ``max_attempts``."""
    backoff: Backoff | None = None
    """Of the exception and the result makes the seconds until the next try; None gives up."""
    retry_on: RuleWithWaits = ()
    """Exceptions after which it is tried again: classes, or a dict from classes to waits."""
    discard_on: Rule = ()
    """Exceptions after which it is discarded."""
    fail_on: Rule = ()
    """Exceptions after which it fails, whatever attempts are left. The nearest class wins."""
    time_limit: float | None = None
    """How many seconds an attempt may take."""
    kill_wait: float | None = None
    """How many seconds later it is ended by force, if it goes on; None is TASK_KILL_WAIT."""
    atomic: bool = False
    """Whether what it writes to the tasks' database and the end of its task are one transaction."""
    user: str | ByArguments | None = None
    """For whom it runs: a name, or a function of the arguments."""
    key: str | ByArguments | None = None
    """Its name in the queue and the id of its result; None is a random one."""
    on_conflict: str = "raise"
    """What to do when the key is taken: raise, ignore or replace."""
    expires_at: When | None = None
    """When it is not to be started any more."""
    expected_at: When | None = None
    """When it is expected to start, at the latest."""
    limits: Iterable[str] = ()
    """The names of the limits that it keeps to."""
    after: Iterable[object] = ()
    """The tasks that must finish before: results, keys of its queue, or ids."""
    if_failed: str = "wait"
    """What it does when one of these ends otherwise: wait, cancel or run."""
    tags: Iterable[str] = ()
    """The names by which it is found."""
    batch: Batch | None = None
    """The batch that it joins, in the same queue; for ``using()``."""

    def __new__(cls, *values: object, **task_options: object) -> Any:
        """Raise TypeError, with the nearest one, for a word that there is not."""
        known = {field.name for field in fields(cls)}
        for name in task_options:
            if name not in known:
                words = sorted(known - {"func"})
                near = nearest(name, words)
                raise TypeError(f"A task has no '{name}'.{near} There is {', '.join(words)}.")
        return object.__new__(cls)

    def __post_init__(self) -> None:
        for name in ("limits", "tags"):
            if not isinstance(getattr(self, name), str):
                object.__setattr__(self, name, tuple(getattr(self, name)))
        for name in error_rules.RULES:
            object.__setattr__(self, name, error_rules.hashable(getattr(self, name)))
        Task.__post_init__(self)
        registry.add(self)

    def using(
        self,
        *,
        priority: int | None = None,
        queue_name: str | None = None,
        run_after: datetime | None = None,
        backend: str | None = None,
        **task_options: Any,
    ) -> QueueTask[P, R]:
        """
        Return the same task with other words.

        Raise TypeError for a word that there is not, InvalidTask for a value that will
        not do.
        """
        given: dict[str, Any] = {
            "priority": priority,
            "queue_name": queue_name,
            "run_after": run_after,
            "backend": backend,
        }
        changes = {name: value for name, value in given.items() if value is not None}
        return replace(self, **changes, **task_options)

    def enqueue_many(
        self, calls: Iterable[tuple[Iterable[object], Mapping[str, object]]]
    ) -> list[AnyResult]:
        """Enqueue one task for each ``(args, kwargs)``, all or none; return their results."""
        backend = cast("PerfectQueueBackend", self.get_backend())
        return backend.enqueue_many((self, args, kwargs) for args, kwargs in calls)

    aenqueue_many = twin(enqueue_many)


DJANGOS = {field.name for field in fields(Task)}
DEFAULTS = {field.name: field.default for field in fields(QueueTask) if field.name not in DJANGOS}


def option_of(task: AnyTask, name: str) -> Any:
    """Return one of our words of a task, or its default where the task knows none of them."""
    return getattr(task, name, DEFAULTS[name])


def check_options(task: AnyTask) -> None:
    """Raise InvalidTask when one of our words has a value that will not do."""
    for name, check in CHECKS.items():
        value = option_of(task, name)
        if value is not None:
            check.require(name, value, InvalidTask)
    for name, problem in error_rules.problems(task):
        raise InvalidTask(f"{name} {problem}")
    if option_of(task, "atomic") and iscoroutinefunction(task.func):
        raise InvalidTask("A coroutine can't be atomic: Django has no transactions there.")


NAME = Check(
    "a text, or a function of args and kwargs",
    lambda value: callable(value) or (isinstance(value, str) and bool(value)),
)
NAMES = names("a list of names")
CHECKS = {
    "atomic": TRUE_OR_FALSE,
    "user": NAME,
    "key": NAME,
    "on_conflict": choice("raise", "ignore", "replace"),
    "if_failed": choice("wait", "cancel", "run"),
    "limits": NAMES,
    "tags": NAMES,
}
