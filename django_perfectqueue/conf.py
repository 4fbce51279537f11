"""
The settings: one dict, ``PERFECTQUEUE``, with the ancestor's keys in capitals.

Only this module reads Django's settings.
"""

from __future__ import annotations

import difflib
import functools
import math
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.signals import setting_changed
from django.dispatch import receiver

from .backoff import BackoffFunction, backoff_problem
from .exceptions import ConfigError

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
SECRET = ("ENCRYPTION_KEYS", "METRICS_TOKEN")
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

Rule = Callable[[object], str | None]


def _number(least: float, *, whole: bool = False, above: bool = False) -> Rule:
    kind = "a whole number" if whole else "a number"
    accepted = (int,) if whole else (int, float)

    def rule(value: object) -> str | None:
        if isinstance(value, bool) or not isinstance(value, accepted) or not math.isfinite(value):
            return f"must be {kind}"
        if above and value <= least:
            return f"must be {kind} above {least:g}"
        return f"must be {kind} of at least {least:g}" if value < least else None

    return rule


_seconds = _number(0)
_positive_seconds = _number(0, above=True)
_count = _number(0, whole=True)
_positive = _number(1, whole=True)
_two_or_more = _number(2, whole=True)
_characters = _number(1_000, whole=True)


def _must(problem: str, holds: Callable[[Any], bool]) -> Rule:
    return lambda value: None if holds(value) else problem


_name = _must(
    "must be a string of 1 to 100 characters",
    lambda value: isinstance(value, str) and 1 <= len(value) <= 100,
)
_path = _must(
    "must be a dotted path to a class, such as 'myapp.tasks.TaskDispatch'",
    lambda value: isinstance(value, str) and "." in value,
)
_function = _must(
    "must be a dotted path to a function, such as 'myapp.admin.users_of'",
    lambda value: isinstance(value, str) and "." in value,
)
_true_or_false = _must("must be True or False", lambda value: isinstance(value, bool))
_eager = _must(
    f"must be True, False or '{QUIET}'", lambda value: isinstance(value, bool) or value == QUIET
)
_folder = _must(
    "must be the absolute path of a folder",
    lambda value: isinstance(value, str | Path) and os.path.isabs(value),
)
_paths = _must(
    "must be a list of dotted paths, such as 'myapp.middleware.Timing'",
    lambda value: not _texts(value) and all("." in path for path in value),
)


def _backoff(value: object) -> str | None:
    if isinstance(value, str):
        return None if "." in value else "must be a dotted path, such as 'myapp.tasks.backoff'"
    return backoff_problem(value) or None


def _texts(value: object) -> str | None:
    if isinstance(value, str) or not isinstance(value, list | tuple):
        return "must be a list of strings"
    if not all(isinstance(text, str) and text for text in value):
        return "must be a list of strings, none of them empty"
    return None


def _words(value: Any) -> str | None:
    if problem := _texts(value):
        return problem
    if any(word != word.lower() or {"-", " "} & set(word) for word in value):
        return "must be a list of words in lower case, with _ for - and spaces"
    return None


def _retention_times(value: object) -> str | None:
    statuses = {"finished", "failed", "cancelled", "expired"}
    if not isinstance(value, Mapping) or not set(value) <= statuses:
        return f"must be a dict with keys from {', '.join(sorted(statuses))}"
    for status, seconds in value.items():
        if seconds is not None and (problem := _seconds(seconds)):
            return f"['{status}'] {problem}, or None"
    return None


def _one_of(*choices: str) -> Rule:
    return _must(f"must be one of {', '.join(map(repr, choices))}", choices.__contains__)


def _policy(value: object) -> str | None:
    names = ", ".join(map(repr, POLICIES))
    if isinstance(value, str):
        return None if value in POLICIES else f"must be one of {names}, or a dict"
    if not isinstance(value, Mapping):
        return f"must be one of {names}, or a dict from queues to these"
    for queue, policy in value.items():
        if _name(queue):
            return "must have names of queues as its keys, or '*' for all others"
        if policy not in POLICIES:
            return f"must have one of {names} for the queue '{queue}'"
    return None


def _or_none(rule: Rule) -> Rule:
    def optional(value: object) -> str | None:
        problem = None if value is None else rule(value)
        return f"{problem}, or None" if problem else None

    return optional


def _setting(default: object, rule: Rule) -> Any:
    if isinstance(default, dict):
        return field(default_factory=lambda: dict(default), metadata={"rule": rule})
    return field(default=default, metadata={"rule": rule})


@dataclass(frozen=True)
class Options:
    """Every setting with its value. Times are in seconds."""

    DEFAULT_QUEUE: str = _setting("default", _name)
    DATABASE: str | None = _setting(None, _or_none(_name))
    DATABASE_TIMEOUT: float | None = _setting(30.0, _or_none(_positive_seconds))
    EAGER: bool | str = _setting(False, _eager)
    DISPATCH: str | None = _setting(None, _or_none(_path))
    MIDDLEWARE: Sequence[str] = _setting((), _paths)
    POLICY: str | Mapping[str, str] = _setting("fair", _policy)
    MAX_PAYLOAD_SIZE: int = _setting(1_048_576, _positive)
    MAX_RESULT_SIZE: int | None = _setting(None, _or_none(_positive))
    COMPRESS_ABOVE: int | None = _setting(None, _or_none(_count))
    CODECS: Sequence[str] = _setting((), _texts)
    ENCRYPTION_KEYS: Sequence[str] | None = _setting(None, _or_none(_texts))
    READ_PLAIN: bool = _setting(True, _true_or_false)
    SENSITIVE: Sequence[str] = _setting(SENSITIVE, _words)
    CONTEXT: Sequence[str] = _setting((), _texts)
    SCHEDULES_PER_USER: int | None = _setting(None, _or_none(_count))
    TRACING: bool = _setting(False, _true_or_false)

    ALIVE_TIME: float = _setting(50.0, _positive_seconds)
    MAX_ATTEMPTS: int = _setting(5, _positive)
    BACKOFF: BackoffFunction | str | None = _setting(None, _or_none(_backoff))  # noqa: RUF009
    MAX_CRASHES: int = _setting(5, _positive)
    RETRY_WAIT: float = _setting(15.0, _seconds)
    RETRY_WAIT_LIMIT: float = _setting(3_600.0, _seconds)
    TIME_LIMIT: float | None = _setting(None, _or_none(_positive_seconds))
    TASK_KILL_WAIT: float | None = _setting(10.0, _or_none(_seconds))
    RETENTION_TIME: float | None = _setting(DAY, _or_none(_seconds))
    RETENTION_TIMES: Mapping[str, float | None] = _setting({"failed": None}, _retention_times)
    RETENTION_COUNT: int | None = _setting(None, _or_none(_count))
    ATTEMPTS_KEPT: int = _setting(100, _two_or_more)
    PURGE_INTERVAL: float = _setting(30.0, _positive_seconds)
    IDLE_TRANSACTION_LIMIT: float | None = _setting(300.0, _or_none(_positive_seconds))
    USAGE_TIME: float | None = _setting(30 * DAY, _or_none(_seconds))

    ADMIN_SCOPE: str | None = _setting(None, _or_none(_function))
    METRICS_TOKEN: str | None = _setting(None, _or_none(_name))
    LATE_AFTER: float | None = _setting(300.0, _or_none(_seconds))

    JOURNAL_INTERVAL: float = _setting(1.0, _positive_seconds)
    LOG_CAPTURE: str | None = _setting("INFO", _or_none(_one_of(*LEVELS)))
    LOG_LINES_SIZE: int = _setting(16_384, _characters)

    PROCESSORS: int = _setting(1, _positive)
    PROCESSOR_TYPE: str = _setting("process", _one_of(*PROCESSOR_TYPES))
    CONCURRENCY: int | None = _setting(None, _or_none(_positive))
    QUEUE_ORDER: str = _setting(FAIR, _one_of(*QUEUE_ORDERS))
    TASK_PREFETCH: int | None = _setting(None, _or_none(_count))
    POLL_INTERVAL: float = _setting(1.0, _positive_seconds)
    BELL: bool = _setting(True, _true_or_false)
    BELL_FOLDER: str | Path | None = _setting(None, _or_none(_folder))  # noqa: RUF009
    TASK_HEARTBEAT_INTERVAL: float = _setting(2.0, _positive_seconds)
    MAX_REQUEST_PER_CHILD: int | None = _setting(None, _or_none(_positive))
    MAX_AGE_PER_CHILD: float | None = _setting(None, _or_none(_positive_seconds))
    MAX_MEMORY_PER_CHILD: int | None = _setting(None, _or_none(_positive))

    CHILD_HEARTBEAT_INTERVAL: float = _setting(2.0, _positive_seconds)
    CHILD_HEARTBEAT_LIMIT: float = _setting(60.0, _positive_seconds)
    CHILD_KILL_INTERVAL: float = _setting(2.0, _positive_seconds)
    CHILD_GRACEFUL_KILL_LIMIT: float | None = _setting(None, _or_none(_seconds))
    CHILD_FORK_FREQUENCY_LIMIT: float = _setting(5.0, _seconds)
    DETACH_WAIT: float = _setting(10.0, _seconds)

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
        return self.RETENTION_TIMES.get(status, self.RETENTION_TIME)

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


WORDS: dict[str, tuple[str, ...]] = {
    "POLICY": POLICIES,
    "QUEUE_ORDER": QUEUE_ORDERS,
    "PROCESSOR_TYPE": PROCESSOR_TYPES,
    "LOG_CAPTURE": LEVELS,
}
RULES: dict[str, Rule] = {option.name: option.metadata["rule"] for option in fields(Options)}


ALIASES = {
    "max_retries": "max_attempts",
    "retries": "max_attempts",
    "countdown": "run_after",
    "eta": "run_after",
    "rate_limit": "limits",
    "task_id": "key",
    "bind": "takes_context",
}
"""What other queues call it."""


def nearest(word: str, words: Iterable[str]) -> str:
    """Return `` Did you mean 'x'?``, or an empty text when no word is near."""
    close = difflib.get_close_matches(ALIASES.get(word, word), list(words), n=1)
    return f" Did you mean '{close[0]}'?" if close else ""


def problems(values: Mapping[str, object]) -> list[str]:
    """Return what is wrong with these settings, a sentence each."""
    found = []
    for name, value in values.items():
        if name not in RULES:
            found.append(
                f"Unknown setting '{name}' in {SETTING}.{nearest(str(name).upper(), RULES)}"
            )
        elif problem := RULES[name](value):
            guess = nearest_value(name, value)
            given = "" if name in SECRET else f", not {value!r}"
            found.append(f"{SETTING}['{name}'] {problem}{given}.{guess}")
    return found


def nearest_value(name: str, value: object) -> str:
    """Return the nearest right word for a wrong one in a setting that takes certain words."""
    words = WORDS.get(name, ())
    given = value.values() if isinstance(value, Mapping) else [value]
    wrong = (word for word in given if isinstance(word, str) and word not in words)
    in_case = str.upper if words and words[0].isupper() else str.lower
    guesses = (nearest(in_case(word), words) for word in wrong)
    return next(filter(None, guesses), "")


def given() -> Any:
    """Return the dict as the project wrote it."""
    return getattr(settings, SETTING, {})


@functools.cache
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


def scratch_folder() -> str:
    """Return BELL_FOLDER or the system's; raise ConfigError where neither can be written to."""
    try:
        return os.fspath(options().BELL_FOLDER or tempfile.gettempdir())
    except OSError as error:
        raise ConfigError(
            f"There is no folder for temporary files: {error.strerror}."
            f" Set {SETTING}['BELL_FOLDER'] or the environment variable TMPDIR to one."
        ) from error


@receiver(setting_changed)
def _forget(*, setting: str, **kwargs: object) -> None:
    if setting == SETTING:
        options.cache_clear()
