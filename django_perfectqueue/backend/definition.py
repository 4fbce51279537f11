"""A Django task with the words that only a queue knows, and what a row keeps of a call."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from importlib import import_module
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Literal,
    NamedTuple,
    ParamSpec,
    TypeVar,
    cast,
    overload,
)

from asgiref.sync import iscoroutinefunction
from django.apps import apps
from django.utils.module_loading import autodiscover_modules

from django_perfectqueue import backoff, compat
from django_perfectqueue.backoff import error_rules
from django_perfectqueue.backoff.error_rules import RULES, Rule, RuleWithWaits
from django_perfectqueue.compat import InvalidTask, Task
from django_perfectqueue.exceptions import PayloadError
from django_perfectqueue.lib.async_twins import twin
from django_perfectqueue.lib.checks import TRUE_OR_FALSE, Check, choice, names, nearest
from django_perfectqueue.payload.codecs import JSON
from django_perfectqueue.payload.inputs import ON_CONFLICT, SIGNALS, UNIQUE
from django_perfectqueue.payload.limit_names import noted

P = ParamSpec("P")
R = TypeVar("R")

# Of a call's arguments, ``(args, kwargs)``, makes a name.
ByArguments = Callable[[tuple[object, ...], dict[str, object]], str]

if TYPE_CHECKING:
    from django_perfectqueue.compat import AnyResult, AnyTask
    from django_perfectqueue.queue import Batch, Duration, When

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

    # How many attempts may end in an error; None is the backend's ``max_attempts``.
    max_attempts: int | None = None
    # Of the exception and the result makes the seconds until the next try; None gives up.
    backoff: Backoff | None = None
    # Exceptions after which it is tried again: classes, or a dict from classes to waits.
    retry_on: RuleWithWaits = ()
    # Exceptions after which it is discarded.
    discard_on: Rule = ()
    # Exceptions after which it fails, whatever attempts are left. The nearest class wins.
    fail_on: Rule = ()
    # How many seconds an attempt may take.
    time_limit: float | None = None
    # How many seconds later it is ended by force, if it goes on; None is TASK_KILL_WAIT.
    kill_wait: float | None = None
    # Whether what it writes to the tasks' database and the end of its task are one transaction.
    atomic: bool = False
    # The signals for which the admin has buttons: names with labels, or with those of answers.
    signals: Mapping[str, Any] | None = field(default=None, compare=False)
    # For whom it runs: a name, or a function of the arguments.
    user: str | ByArguments | None = None
    # Its name in the queue and the id of its result; None is a random one.
    key: str | ByArguments | None = None
    # What to do when the key is taken: raise, ignore or replace.
    on_conflict: str = "raise"
    # Until when its key is taken: "waiting" until it starts, "live" until it has ended.
    unique: str | None = None
    # For how long after the enqueue the key is taken at most.
    unique_for: Duration | None = None
    # The arguments that make its key; True is all of them.
    unique_by: Iterable[str] | Literal[True] | None = None
    # For how long after an enqueue others of its key are merged with it into one.
    debounce: Duration | None = None
    # How long after the first enqueue that one starts at the latest.
    at_most: Duration | None = None
    # Whether the first starts at once, and others are one more.
    leading: bool = False
    # When it is not to be started any more.
    expires_at: When | None = None
    # When it is expected to start, at the latest.
    expected_at: When | None = None
    # The limits that it keeps to: names, templates, or a mapping from these to terms.
    limits: Iterable[str] | Mapping[str, object] = ()
    # The tasks that must finish before: results, keys of its queue, or ids.
    after: Iterable[object] = ()
    # What it does when one of these ends otherwise: wait, cancel or run.
    if_failed: str = "wait"
    # The names by which it is found.
    tags: Iterable[str] = ()
    # The name of the sequence in which it runs after the one before.
    sequence: str | ByArguments | None = None
    # The batch that it joins, in the same queue; for ``using()``.
    batch: Batch | None = None

    def __new__(cls, *values: object, **task_options: object) -> Any:
        """Raise TypeError for an unknown option, with the nearest known one."""
        known = {field.name for field in fields(cls)}
        for name in task_options:
            if name not in known:
                words = sorted(known - {"func"})
                near = nearest(name, words)
                raise TypeError(f"A task has no '{name}'.{near} There is {', '.join(words)}.")
        return object.__new__(cls)

    def __post_init__(self) -> None:
        limits = self.limits
        for name in ("limits", "tags", "unique_by"):
            if not isinstance(getattr(self, name), str | bool | None):
                object.__setattr__(self, name, tuple(getattr(self, name)))
        for name in error_rules.RULES:
            object.__setattr__(self, name, error_rules.hashable(getattr(self, name)))
        Task.__post_init__(self)
        if add(self) and limits:
            noted[self.module_path] = limits

    def using(self, **task_options: Any) -> QueueTask[P, R]:
        """
        Return the same task with other words.

        Raise TypeError for an unknown option, InvalidTask for a value that will
        not do.
        """
        # None leaves Django's own words as they are.
        kept = {name for name in DJANGOS if task_options.get(name, ...) is None}
        return replace(self, **{name: task_options[name] for name in task_options.keys() - kept})

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
    "signals": SIGNALS,
    "leading": TRUE_OR_FALSE,
    "user": NAME,
    "sequence": NAME,
    "key": NAME,
    "on_conflict": ON_CONFLICT,
    "if_failed": choice("wait", "cancel", "run"),
    "unique": UNIQUE,
    "limits": NAMES,
    "tags": NAMES,
}


# Django's ``@task``, for which type checkers know the words of a queue.


if TYPE_CHECKING:

    @overload
    def task(function: Callable[P, R]) -> QueueTask[P, R]: ...
    @overload
    def task(
        *, takes_context: Literal[True], **task_options: Any
    ) -> Callable[[Callable[Concatenate[compat.TaskContext[Any, Any], P], R]], QueueTask[P, R]]: ...
    @overload
    def task(**task_options: Any) -> Callable[[Callable[P, R]], QueueTask[P, R]]: ...
    def task(function: Any = None, **task_options: Any) -> Any:
        """Do what Django's ``@task`` does, and take a backend's own words, too."""
        return compat.task(function, **task_options)

else:
    task = compat.task


# Which functions may be run for a task's type: those that were defined as Django tasks here.
#
# A type is looked up and never imported: who can write a row would otherwise choose
# what a worker calls.


MODULE = "tasks"

# Each task by its module path, as it was first defined.
definitions: dict[str, AnyTask] = {}


def add(task: AnyTask) -> bool:
    """Note a task; return whether it is new. One that ``using()`` has made of another is not."""
    known = definitions.get(task.module_path)
    if is_new := known is None or known.func is not task.func:
        definitions[task.module_path] = task
    return is_new


def discover_in(modules: Iterable[str] = ()) -> None:
    """
    Import the ``tasks`` module of each installed app, and the modules that are named.

    Raise ImportError when one of those is not there.
    """
    autodiscover_modules(MODULE)
    paths = [f"{app.name}.{MODULE}" for app in apps.get_app_configs()]
    found = [sys.modules[path] for path in paths if path in sys.modules]
    for module in (*found, *map(import_module, modules)):
        for value in list(vars(module).values()):
            if isinstance(value, Task):
                add(value)


# What a row keeps of one call of a Django task, as JSON.


# What a task waits for and what it belongs to has rows of its own.
WORDS = (
    "run_after",
    "backend",
    "takes_context",
    *(name for name in DEFAULTS if name not in ("after", "if_failed", "tags", "batch")),
)
ONLY_DEFINED = (*RULES, "kill_wait", "signals")
AT, FOR, BY = "at", "for", "by"


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
        Read what ``data`` says; None is a call without arguments.

        Raise PayloadError when it is not the data of a Django task.
        """
        data = {"args": []} if data is None else data
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
        is_kept = type(value) in backoff.KEPT.values()
        if name in ONLY_DEFINED or (callable(value) and not is_kept and name not in names):
            raise InvalidTask(f"{name} can't be changed by using(): give it to @task.")
        changed[name] = names[name] if callable(value) and not is_kept else value
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
    for each in fields(definition):
        value = task_options.get(each.name, getattr(definition, each.name))
        object.__setattr__(copy, each.name, value)
    return copy


def packed(value: object) -> object:
    if isinstance(value, datetime):
        return {AT: value.isoformat()}
    if isinstance(value, timedelta):
        return {FOR: value.total_seconds()}
    if isinstance(value, backoff.Backoff):
        return {BY: backoff.kept(value)}
    return list(value) if isinstance(value, tuple) else value


def unpacked(value: object) -> object:
    if isinstance(value, dict):
        [(kind, given)] = value.items()
        if kind == BY:
            return backoff.restored(*given)
        return datetime.fromisoformat(given) if kind == AT else timedelta(seconds=given)
    return tuple(value) if isinstance(value, list) else value
