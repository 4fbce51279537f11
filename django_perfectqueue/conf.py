"""
The settings: one dict, ``PERFECTQUEUE``, with the ancestor's keys in capitals.

Only this module reads Django's settings.
"""

from __future__ import annotations

import functools
import math
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
_headroom = Check(
    "a whole number, at least 0, or a part of the processors below 1",
    lambda value: _count.holds(value) or (_seconds.holds(value) and 0 < value < 1),
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

    #: Whole number, at least 1.
    #: The number of processors of a worker; each is a process.
    PROCESSORS: int = _setting(1, _positive)
    #: `'process'`, `'thread'` or `'async'`.
    #: A processor runs its tasks one by one, several at once in threads, or several at once as
    #: coroutines of one event loop.
    PROCESSOR_TYPE: str = _setting("process", choice(*PROCESSOR_TYPES))
    #: Whole number, at least 1, or `None`, which is 10 for `'thread'` and `'async'`.
    #: The number of tasks that a processor runs at once; a `'process'` processor always runs one.
    CONCURRENCY: int | None = _setting(None, _positive.or_none())
    #: Whole number, at least 0, or a part of the processors below 1, rounded up.
    #: How many processors of a worker are kept for tasks that are expected to be
    #: [short](../explanation/fairness.md#headroom), so that light users need not wait for the end
    #: of long tasks. One processor at least is not kept.
    HEADROOM: float = _setting(0, _headroom)
    #: Seconds, above 0.
    #: Tasks are short while those of their user are expected to take less, by what they took so
    #: far: see HEADROOM.
    SHORT_TASK: float = _setting(1.0, _positive_seconds)
    #: Seconds, above 0, or `None` for no limit.
    #: The longest time that an attempt may run; then its handler gets `TimeLimitError`. A
    #: handler's own `time_limit` goes before it, and a task's before both.
    TIME_LIMIT: float | None = _setting(None, _positive_seconds.or_none())
    #: Whole number, at least 1.
    #: A task fails when its handler has raised this many times. A handler may set its own
    #: `max_attempts`. A Django task is tried once unless it says otherwise.
    MAX_ATTEMPTS: int = _setting(5, _positive)
    #: Seconds, at least 0.
    #: The wait after the first error. It doubles with each further error, up to RETRY_WAIT_LIMIT,
    #: and varies by a quarter. A handler may set its own `retry_wait`.
    RETRY_WAIT: float = _setting(15.0, _seconds)
    #: Seconds, above 0.
    #: The length of a lease. A worker renews leases after a third of it, so tasks may run much
    #: longer. When a host dies, its tasks run elsewhere after this time. They run again at once
    #: when only a processor dies, when a worker starts again on the same host, and by pq_status
    #: give-back.
    ALIVE_TIME: float = _setting(50.0, _positive_seconds)
    #: Dict with seconds, or `None` for ever, for `'finished'`, `'failed'`, `'cancelled'`,
    #: `'expired'` and `'*'`, which stands for those that are not named; and with a whole number,
    #: or `None`, for `'count'`. The default is `{'*': 86400.0, 'failed': None}`: one day, and
    #: failed tasks for ever.
    #: How long an ended task is kept. Until then its key is refused. With a `count` a finished
    #: task is deleted early when this many ended tasks of its queue are newer. Tasks that failed,
    #: were cancelled or expired count, but are kept for their time.
    RETENTION: Mapping[str, float | None] = _setting({}, _retention)

    #: String of 1 to 100 characters.
    #: The queue of `Queue()` and of commands without `--queue`.
    DEFAULT_QUEUE: str = _setting("default", _name)
    #: An alias of `DATABASES`, or `None`.
    #: The database of the tasks. `None` asks the database router where `perfectqueue.Task` is
    #: written; without a router that is `default`. A submit is part of your transaction only if
    #: your rows are in the same database.
    DATABASE: str | None = _setting(None, _name.or_none())

    #: Dotted path of a `Dispatch`, or `None`.
    #: The handlers of the worker. `None` imports the `tasks` module of each installed app and uses
    #: what `@handler` registered.
    DISPATCH: str | None = _setting(None, _path.or_none())
    #: List of dotted paths.
    #: Middleware for all handlers, Django's tasks too, outermost first: functions of `(handler,
    #: perform)`, objects, or classes without arguments.
    MIDDLEWARE: Sequence[str] = _setting((), _paths)
    #: `True`, `False` or `'quiet'`.
    #: Runs tasks without a worker, in the submitting process, as soon as the submit has committed:
    #: for development and tests. Errors are raised there; with `'quiet'` they are only stored.
    #: Scheduled tasks and retries wait. `pq_worker` refuses to run.
    EAGER: bool | str = _setting(False, _eager)

    #: Seconds, at least 0; by default one hour.
    #: The longest wait between two attempts.
    RETRY_WAIT_LIMIT: float = _setting(3_600.0, _seconds)
    #: A function of the error and the task, an instance such as `Exponential(5)`, the dotted path
    #: of one, or `None`.
    #: The wait in seconds before the next attempt, or `None` to give up. It is for handlers
    #: without `backoff` or `retry_wait`, and Django's tasks without `backoff`. If it raises or
    #: returns something else, that is logged and the usual wait holds.
    BACKOFF: BackoffFunction | str | None = _setting(None, _backoff.or_none())  # noqa: RUF009
    #: Whole number, at least 1.
    #: A task that has lost its processor this many times fails. After the first crash it is tried
    #: again at once; from the second on it waits as after an error.
    MAX_CRASHES: int = _setting(5, _positive)
    #: Seconds, at least 0, or `None` for no limit.
    #: How long a handler may take to end after a time limit, a cancel request or a lost lease.
    #: Then `TERM` is sent to the processes that it started, and two seconds later its processor is
    #: killed with all of them. `None` never ends a handler by force; a handler may set its own
    #: `kill_wait`.
    TASK_KILL_WAIT: float | None = _setting(10.0, _seconds.or_none())

    #: Seconds, at least 0, or `None` for never.
    #: How long a task runs before it may yield between two steps to the tasks of others.
    YIELD_AFTER: float | None = _setting(1.0, _seconds.or_none())

    #: Seconds, at least 0, or `None` for ever; by default 30 days.
    #: How long it is kept, by the hour, what each user received and how attempts ended; minutes
    #: are kept for an hour, totals for ever. `0` gathers nothing.
    USAGE_TIME: float | None = _setting(30 * DAY, _seconds.or_none())

    #: Whole number of bytes, at least 1; by default 1 MiB.
    #: The largest data of a task, as JSON; larger data raises `InvalidTaskError`.
    MAX_PAYLOAD_SIZE: int = _setting(1_048_576, _positive)
    #: Whole number of bytes, at least 1, or `None`, which is MAX_PAYLOAD_SIZE.
    #: The largest result of a task, as JSON. A larger one fails the task with InvalidResultError,
    #: without another attempt; so does one beyond the server's `max_allowed_packet` on MySQL and
    #: MariaDB.
    MAX_RESULT_SIZE: int | None = _setting(None, _positive.or_none())
    #: List of subclasses of `django_perfectqueue.payload.Codec`: dotted paths, or objects with
    #: arguments; by default plain JSON.
    #: The first one writes data and results; each reads what has its name. Plain and compressed
    #: JSON is always readable, unless the first is made with `reads_plain=False`.
    CODECS: Sequence[object] = _setting((), _codecs)
    #: List of words in lower case, with `_` for hyphens and spaces.
    #: Values in data and results whose name contains one of these words are shown as `********` in
    #: the admin, and are masked in errors and logs that are kept.
    SENSITIVE: Sequence[str] = _setting(SENSITIVE, _words)
    #: List of dotted paths to context variables, or to pairs of functions.
    #: The values that a task carries from its submitter to its handler. Programs that submit and
    #: workers should have the same list; a worker skips what it does not know.
    CONTEXT: Sequence[str] = _setting((), _texts)
    #: Whole number, or `None`.
    #: How many schedules each user may have; those without a user are not counted. `put()` refuses
    #: one more.
    SCHEDULES_PER_USER: int | None = _setting(None, _count.or_none())

    #: `'fair'`, `'slots'` or `'fifo'`, or a dict from names of queues to these.
    #: The policy: `fair` shares processor time, `slots` shares running tasks, and `fifo` serves
    #: all users in one line. In a dict, `'*'` stands for all queues that it does not name.
    POLICY: str | Mapping[str, str] = _setting("fair", _policy)
    #: `'fair'`, `'ordered'`, `'round_robin'` or `'shuffled'`.
    #: The order in which a processor tries several queues at each acquire. `fair` begins with the
    #: queue that received the least time for its weight. `ordered` serves the first queue until it
    #: has nothing due; `round_robin` begins with the next queue each time; `shuffled` with a
    #: random one; these three do not balance time.
    QUEUE_ORDER: str = _setting(FAIR, choice(*QUEUE_ORDERS))

    #: Dotted path of a function, or `None`.
    #: The function takes the request of an admin page and returns the users whose tasks this
    #: member of staff may see, or `None` for all.
    ADMIN_SCOPE: str | None = _setting(None, _path.or_none())
    #: Text, or `None`.
    #: A request with the header `Authorization: Bearer TOKEN` may read the metrics. Without a
    #: token, only logins with the permission *view overview* may.
    METRICS_TOKEN: str | None = _setting(None, _name.or_none())
    #: Text of up to 100 characters, or `None`: the environment variable `SENTRY_RELEASE`, if there
    #: is one.
    #: The release of your site. *Workers* in the admin shows it, and the chart of the overview
    #: marks where its workers started.
    RELEASE: str | None = _setting(None, _name.or_none())
    #: Seconds, at least 0, or `None`.
    #: A queue is *late* in the overview once its oldest due task has waited for longer. With `None`
    #: no queue is late.
    LATE_AFTER: float | None = _setting(300.0, _seconds.or_none())
    #: `'DEBUG'`, `'INFO'`, `'WARNING'`, `'ERROR'`, `'CRITICAL'`, or `None`.
    #: The lowest level of log records that are kept with an attempt, if your `LOGGING` passes them
    #: to the root logger. `None` keeps only what `task.log()` writes.
    LOG_CAPTURE: str | None = _setting("INFO", choice(*LEVELS).or_none())
    #: `True` or `False`.
    #: Makes submits, waits and attempts spans of OpenTelemetry. Needs `pip install
    #: "django-perfectqueue[otel]"`. A `traceparent` that the project has set goes along either
    #: way.
    TRACING: bool = _setting(False, TRUE_OR_FALSE)

    #: Seconds, above 0.
    #: The longest time between two polls of an idle worker. A lost notification costs
    #: at most this time. A worker without a running task looks less often: a fifth as often on
    #: PostgreSQL, which loses no notification, and a third as often elsewhere. After a poll
    #: that finds a task without a notification, as of another host, it polls at the full rate for
    #: an hour.
    POLL_INTERVAL: float = _setting(1.0, _positive_seconds)
    #: `True`, `False` or the absolute path of a folder, as a string or `Path`.
    #: Whether a submit notifies the workers. With `False` workers poll every `POLL_INTERVAL`.
    NOTIFY: bool | str | Path = _setting(True, _notify)  # noqa: RUF009
    #: Whole number, at least 0, or `None`.
    #: How many tasks a processor takes in advance. `None` takes what runs in about a quarter of a
    #: second, as measured, at most 1,000 tasks with together 4 million characters of data; what
    #: has not begun after 0.4 seconds is given back.
    TASK_PREFETCH: int | None = _setting(None, _count.or_none())

    #: Dict from `'tasks'`, `'age'` or `'memory'` to a number, or `None` for no limit.
    #: A processor is replaced after exactly this many `tasks`; or between two tasks once it has
    #: this `age` in seconds, or this resident `memory` in MiB. For age and memory each processor
    #: has its own limit from nine tenths of this on. A new processor must fit well below the
    #: memory.
    RECYCLE: Mapping[str, Any] = _setting({}, _recycle)

    #: Seconds, above 0, or `None` for no limit.
    #: How long a worker waits for an answer of its database before it cuts the connection. A
    #: handler's own queries are never cancelled.
    DATABASE_TIMEOUT: float | None = _setting(30.0, _positive_seconds.or_none())
    #: Seconds, above 0, or `None`.
    #: PostgreSQL and MariaDB end a worker's transaction that is idle for this long, also that of a
    #: handler that computes longer inside of `atomic()`. An atomic handler has its time limit
    #: and `kill_wait` instead. A value that the project has set is left as it is.
    IDLE_TRANSACTION_LIMIT: float | None = _setting(300.0, _positive_seconds.or_none())
    #: Seconds, above 0.
    #: A processor that is silent this long is killed, with all that it started, and replaced. A
    #: busy processor sends heartbeats from a thread, so it is left alone until its time limit. C
    #: code that never releases Python's lock stops this thread. Where such code takes longer than
    #: ALIVE_TIME, raise both settings, or run it as a program.
    CHILD_HEARTBEAT_LIMIT: float = _setting(60.0, _positive_seconds)
    #: Seconds, at least 0, or `None` for never.
    #: A processor that has not stopped this long after it was asked is killed; its task is
    #: released and counts no attempt.
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

    @property
    def kept(self) -> int:
        """How many processors are kept for short tasks; one at least is not."""
        part = self.HEADROOM * self.PROCESSORS if self.HEADROOM < 1 else self.HEADROOM
        return min(math.ceil(part), self.PROCESSORS - 1)


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
