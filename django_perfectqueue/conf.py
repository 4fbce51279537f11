"""
The settings: one dict, ``PERFECTQUEUE``, with the ancestor's keys in capitals.

Only this module reads Django's settings.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from django.conf import settings
from django.core.signals import setting_changed

from .backoff import BACKOFF, BackoffFunction
from .exceptions import ConfigError
from .lib.checks import TRUE_OR_FALSE, Check, choice, named, names, nearest, number, whole

R = TypeVar("R")

SETTING = "PERFECTQUEUE"
DAY = 86_400.0
POLICIES = ("fair", "slots", "fifo")
FAIR = "fair"
QUEUE_ORDERS = (FAIR, "ordered", "round_robin", "shuffled")
PROCESSOR_TYPES = ("process", "thread", "async")
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
PLACES = 10
OTHERS = "*"
QUIET = "quiet"
SECRET = ("METRICS_TOKEN",)
SENSITIVE = (
    "password",
    "passwd",
    "passphrase",
    "secret",
    "token",
    "api_key",
    "apikey",
    "access_key",
    "private_key",
    "authorization",
    "credential",
    "cookie",
)

_seconds = number(0, of="seconds")
_positive_seconds = number(0, above=True, of="seconds")
_count = whole(0)
_positive = whole(1)
_name = named(100)
_path = Check(
    "a dotted path, such as 'myapp.tasks.TaskDispatch'",
    lambda value: isinstance(value, str) and "." in value,
)
_eager = Check(f"True, False or '{QUIET}'", lambda value: isinstance(value, bool) or value == QUIET)
_notify = Check(
    "True, False or the absolute path of a folder",
    lambda value: (
        isinstance(value, bool) or (isinstance(value, str | Path) and os.path.isabs(value))
    ),
)
_texts = names("a list of texts, none of them empty")
_paths = names(
    "a list of dotted paths, such as 'myapp.middleware.Timing'", lambda path: "." in path
)
_codecs = Check(
    "a list of dotted paths of codecs, or of codecs such as FernetCodec()",
    lambda value: isinstance(value, list | tuple) and all(value),
)
_words = names(
    "a list of words in lower case, with _ for - and spaces",
    lambda word: word == word.lower() and not {"-", " "} & set(word),
)
_backoff = Check(
    f"{BACKOFF.what}, or a dotted path to one",
    lambda value: "." in value if isinstance(value, str) else BACKOFF.holds(value),
)
RETENTION: Mapping[str, float | None] = {OTHERS: DAY, "failed": None}
STATUSES = (OTHERS, "finished", "failed", "cancelled", "expired")


def _dict_of(what: str, checks: Mapping[str, Check]) -> Check:
    """Return the check of a dict that has some of these keys, or None for one."""
    return Check(
        f"a dict with {what}",
        lambda value: (
            isinstance(value, Mapping)
            and all(name in checks for name in value)
            and all(checks[name].or_none().holds(one) for name, one in value.items())
        ),
    )


_retention = _dict_of(
    f"seconds or None for {', '.join(map(repr, STATUSES))}, and a whole number for 'count'",
    {**dict.fromkeys(STATUSES, _seconds), "count": _count},
)
_recycle = _dict_of(
    "a whole number for 'tasks', seconds for 'age', and whole MiB for 'memory'",
    {"tasks": _positive, "age": _positive_seconds, "memory": _positive},
)
_policy = Check(
    f"{choice(*POLICIES).what}, or a dict from names of queues, or '*' for all others, to these",
    lambda value: (
        all(map(_name.holds, value)) and all(one in POLICIES for one in value.values())
        if isinstance(value, Mapping)
        else value in POLICIES
    ),
    POLICIES,
)


def _setting(default: object, check: Check) -> Any:
    if isinstance(default, dict):
        return field(default_factory=lambda: dict(default), metadata={"check": check})
    return field(default=default, metadata={"check": check})


@dataclass(frozen=True)
class Options:
    """Every setting with its value. Times are in seconds."""

    PROCESSORS: int = _setting(1, _positive)
    PROCESSOR_TYPE: str = _setting("process", choice(*PROCESSOR_TYPES))
    CONCURRENCY: int | None = _setting(None, _positive.or_none())
    TIME_LIMIT: float | None = _setting(None, _positive_seconds.or_none())
    MAX_ATTEMPTS: int = _setting(5, _positive)
    RETRY_WAIT: float = _setting(15.0, _seconds)
    ALIVE_TIME: float = _setting(50.0, _positive_seconds)
    RETENTION: Mapping[str, float | None] = _setting({}, _retention)

    DEFAULT_QUEUE: str = _setting("default", _name)
    DATABASE: str | None = _setting(None, _name.or_none())

    DISPATCH: str | None = _setting(None, _path.or_none())
    MIDDLEWARE: Sequence[str] = _setting((), _paths)
    EAGER: bool | str = _setting(False, _eager)

    RETRY_WAIT_LIMIT: float = _setting(3_600.0, _seconds)
    BACKOFF: BackoffFunction | str | None = _setting(None, _backoff.or_none())  # noqa: RUF009
    MAX_CRASHES: int = _setting(5, _positive)
    TASK_KILL_WAIT: float | None = _setting(10.0, _seconds.or_none())

    USAGE_TIME: float | None = _setting(30 * DAY, _seconds.or_none())

    MAX_PAYLOAD_SIZE: int = _setting(1_048_576, _positive)
    MAX_RESULT_SIZE: int | None = _setting(None, _positive.or_none())
    CODECS: Sequence[object] = _setting((), _codecs)
    SENSITIVE: Sequence[str] = _setting(SENSITIVE, _words)
    CONTEXT: Sequence[str] = _setting((), _texts)
    SCHEDULES_PER_USER: int | None = _setting(None, _count.or_none())

    POLICY: str | Mapping[str, str] = _setting("fair", _policy)
    QUEUE_ORDER: str = _setting(FAIR, choice(*QUEUE_ORDERS))

    ADMIN_SCOPE: str | None = _setting(None, _path.or_none())
    METRICS_TOKEN: str | None = _setting(None, _name.or_none())
    RELEASE: str | None = _setting(None, _name.or_none())
    LATE_AFTER: float | None = _setting(300.0, _seconds.or_none())
    LOG_CAPTURE: str | None = _setting("INFO", choice(*LEVELS).or_none())
    TRACING: bool = _setting(False, TRUE_OR_FALSE)

    POLL_INTERVAL: float = _setting(1.0, _positive_seconds)
    NOTIFY: bool | str | Path = _setting(True, _notify)  # noqa: RUF009
    TASK_PREFETCH: int | None = _setting(None, _count.or_none())

    RECYCLE: Mapping[str, Any] = _setting({}, _recycle)

    DATABASE_TIMEOUT: float | None = _setting(30.0, _positive_seconds.or_none())
    IDLE_TRANSACTION_LIMIT: float | None = _setting(300.0, _positive_seconds.or_none())
    CHILD_HEARTBEAT_LIMIT: float = _setting(60.0, _positive_seconds)
    CHILD_GRACEFUL_KILL_LIMIT: float | None = _setting(None, _seconds.or_none())

    # These are no settings: no project has a reason for another value, but tests have.
    # How many unfinished attempts of a task are kept: the first half of them and the last.
    ATTEMPTS_KEPT: ClassVar[int] = 100
    # How many characters of an attempt's log are kept.
    LOG_LINES_SIZE: ClassVar[int] = 16_384
    # The shortest interval at which a processor writes progress and logs.
    JOURNAL_INTERVAL: ClassVar[float] = 1.0
    # How often a worker looks for tasks to purge.
    PURGE_INTERVAL: ClassVar[float] = 30.0
    # How often a running task is looked at for a lost lease and a cancel request.
    TASK_HEARTBEAT_INTERVAL: ClassVar[float] = 2.0
    # How often a processor reports to its supervisor.
    CHILD_HEARTBEAT_INTERVAL: ClassVar[float] = 2.0
    # How often a processor that is to stop is asked again; the time between TERM and KILL.
    CHILD_KILL_INTERVAL: ClassVar[float] = 2.0
    # A processor that dies younger than this is not replaced at once the second time.
    CHILD_FORK_FREQUENCY_LIMIT: ClassVar[float] = 5.0
    # After INT the launcher leaves within this time, while the supervisor drains.
    DETACH_WAIT: ClassVar[float] = 10.0

    def __iter__(self) -> Iterator[str]:
        return (option.name for option in fields(self))

    def replace(self, **changes: Any) -> Options:
        """
        Return a copy with some values changed.

        Raise ConfigError when a name is unknown or a value will not do.
        """
        if found := problems(changes):
            raise ConfigError(" ".join(found))
        return replace(self, **changes)

    def retention_time(self, status: str) -> float | None:
        """Return how long a task that ended so is kept; None is for ever."""
        times = {**RETENTION, **self.RETENTION}
        return times.get(status, times[OTHERS])

    @property
    def retention_count(self) -> int | None:
        """How many newer ended tasks of its queue a finished task outlives; None is any number."""
        count = self.RETENTION.get("count")
        return None if count is None else int(count)

    @property
    def notify_folder(self) -> str | Path | None:
        """Where the sockets of workers are; None is the temporary folder of the system."""
        return None if isinstance(self.NOTIFY, bool) else self.NOTIFY

    def policy(self, queue: str) -> str:
        """Return the name of the policy by which a queue is served."""
        if isinstance(self.POLICY, str):
            return self.POLICY
        return self.POLICY.get(queue) or self.POLICY.get(OTHERS, POLICIES[0])

    @property
    def places(self) -> int:
        """How many tasks each processor runs at once."""
        if self.PROCESSOR_TYPE == "process":
            return 1
        return PLACES if self.CONCURRENCY is None else self.CONCURRENCY

    def queues_with_policy(self) -> list[str]:
        """Return the queues that have a policy of their own."""
        return [] if isinstance(self.POLICY, str) else sorted(set(self.POLICY) - {OTHERS})


CHECKS: dict[str, Check] = {option.name: option.metadata["check"] for option in fields(Options)}


def problems(values: Mapping[str, object]) -> list[str]:
    """Return what is wrong with these settings, a sentence each."""
    found = []
    for name, value in values.items():
        check = CHECKS.get(name)
        if check is None:
            guess = nearest(str(name).upper(), CHECKS)
            found.append(f"Unknown setting '{name}' in {SETTING}.{guess}")
        elif problem := check.problem(value):
            found.append(
                f"{SETTING}['{name}'] " + (f"must be {check.what}." if name in SECRET else problem)
            )
    return found


def given() -> Any:
    """Return the dict as the project wrote it."""
    return getattr(settings, SETTING, {})


def cached(function: Callable[[], R]) -> functools._lru_cache_wrapper[R]:
    """Return a function that keeps what it makes of the settings, until a test changes them."""
    made = functools.cache(function)

    def forget(*, setting: str, **kwargs: object) -> None:
        if setting in (SETTING, "SECRET_KEY", "SECRET_KEY_FALLBACKS"):
            made.cache_clear()

    setting_changed.connect(forget, weak=False)
    return made


@cached
def options() -> Options:
    """
    Return the settings in force.

    Raise ConfigError when the project's dict has an unknown name or a value that
    will not do.
    """
    values = given()
    if not isinstance(values, Mapping):
        raise ConfigError(f"{SETTING} must be a dict, not {type(values).__name__}.")
    return Options().replace(**values)
