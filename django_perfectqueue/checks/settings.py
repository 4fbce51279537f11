"""What is wrong with the settings and with what they name, without a look at any database."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping

from django.conf import settings
from django.core import checks, mail
from django.core.checks import CheckMessage

from django_perfectqueue.application import dispatch_at, middleware
from django_perfectqueue.backoff import backoff_at
from django_perfectqueue.conf import SETTING, Options, given, options, problems
from django_perfectqueue.exceptions import ConfigError
from django_perfectqueue.inspection.scope import scope_function
from django_perfectqueue.payload import codecs, context
from django_perfectqueue.tracing import otel

from .messages import TAG, check, error, warning

CLOSE = 0.9


@checks.register(TAG)
def check_settings(app_configs: object = None, **kwargs: object) -> list[CheckMessage]:
    """Check what needs no database: PERFECTQUEUE itself, and USE_TZ."""
    found = list(misspelt())
    values = given()
    if not isinstance(values, Mapping):
        kind = type(values).__name__
        return [error(2, f"{SETTING} must be a dict, not {kind}.", f"Write {SETTING} = {{...}}.")]
    wrong = [setting_error(problem) for problem in problems(values)]
    found += wrong
    if not wrong:
        found += relations(Options().replace(**values))
    found += of_tenants()
    if not settings.USE_TZ:
        found.append(error(3, "USE_TZ is False, but tasks are kept in UTC.", "Set USE_TZ = True."))
    return found


def misspelt() -> Iterator[CheckMessage]:
    """Yield a warning for each setting whose name is nearly that of this package's."""
    plain = {
        name.replace("_", "").removeprefix("DJANGO"): name
        for name in filter(str.isupper, dir(settings))
        if name != SETTING
    }
    for close in difflib.get_close_matches(SETTING, plain, cutoff=CLOSE):
        yield warning(
            18,
            f"The setting {plain[close]} has no effect.",
            f"Did you mean {SETTING}? Rename it, or silence perfectqueue.W018.",
        )


def setting_error(problem: str) -> CheckMessage:
    message, asked, guess = problem.partition(" Did you mean ")
    if asked:
        return error(1, message, f"Did you mean {guess}")
    if message.startswith("Unknown"):
        return error(1, message, f"There is {', '.join(Options())}.")
    return error(1, message, f"Correct it, or take it out of {SETTING} to have the default.")


def relations(values: Options) -> Iterator[CheckMessage]:
    """Yield what is wrong with two settings together."""
    if values.CHILD_HEARTBEAT_INTERVAL >= values.CHILD_HEARTBEAT_LIMIT:
        yield error(
            9,
            "CHILD_HEARTBEAT_LIMIT is not above the interval of heartbeats: healthy processors"
            " would be killed between two of them.",
            f"Set CHILD_HEARTBEAT_LIMIT above {values.CHILD_HEARTBEAT_INTERVAL:g} seconds.",
        )
    if any("PickleCodec" in str(codec) for codec in values.CODECS):
        yield warning(
            20,
            "CODECS has a codec that unpickles: anyone who can write to the database can then"
            " run code in every worker, and in every process that shows a task.",
            "Use JSON, and take the codec out once no task is left that it has written.",
        )
    if values.PROCESSOR_TYPE == "process" and (values.CONCURRENCY or 1) > 1:
        yield warning(
            10,
            "CONCURRENCY does nothing: a processor of the type 'process' runs one task at a time.",
            "Set PROCESSOR_TYPE to 'thread' or 'async', or raise PROCESSORS instead.",
        )
    if values.HEADROOM >= values.PROCESSORS:
        yield warning(
            26,
            f"HEADROOM is {values.HEADROOM}, but one processor at least of each worker takes tasks"
            f" of any length, and PROCESSORS is {values.PROCESSORS}.",
            "Lower HEADROOM, or raise PROCESSORS.",
        )
    if values.EAGER and not settings.DEBUG and not under_test():
        yield warning(
            40,
            "EAGER is on and DEBUG is off: tasks run inside of the requests that submit them, and"
            " retries never run.",
            f"Take EAGER out of {SETTING}, and run pq_worker.",
        )
    if values.RETRY_WAIT > values.RETRY_WAIT_LIMIT:
        yield warning(
            5,
            "RETRY_WAIT is above RETRY_WAIT_LIMIT, the longest wait of a task.",
            "Raise RETRY_WAIT_LIMIT, or lower RETRY_WAIT.",
        )


def of_tenants() -> Iterator[CheckMessage]:
    """Yield a warning where django-tenants makes tables of the queue for each tenant, too."""
    own = {"django_perfectqueue", "django_perfectqueue.apps.PerfectQueueConfig"}
    if all(own & {*getattr(settings, name, ())} for name in ("SHARED_APPS", "TENANT_APPS")):
        yield warning(
            23,
            "django_perfectqueue is in SHARED_APPS and in TENANT_APPS: a task that is submitted for"
            " a tenant is in the tables of that tenant, where no worker looks.",
            "Take it out of TENANT_APPS.",
        )


def under_test() -> bool:
    """Return whether Django's test environment is set up, which switches DEBUG off."""
    return hasattr(mail, "outbox")


# What the settings name: classes, functions and packages.


def dispatch() -> None:
    if path := options().DISPATCH:
        dispatch_at(path, f"{SETTING}['DISPATCH']")


def backoff() -> None:
    if isinstance(path := options().BACKOFF, str):
        try:
            backoff_at(path)
        except ConfigError as error:
            raise ConfigError(f"{SETTING}['BACKOFF'] can't be used: {error}") from error


def tracer() -> None:
    if options().TRACING:
        otel.tracer()


# By the number of the error: what raises ConfigError, and what to do then.
Named = Mapping[int, tuple[Callable[[], object], str]]
NAMED: Named = {
    20: (codecs.codecs, f"Correct {SETTING}['CODECS']."),
    21: (context.providers, f"Correct {SETTING}['CONTEXT']."),
    22: (tracer, f"Or take TRACING out of {SETTING}."),
}
# These may import much.
IMPORTED: Named = {
    11: (dispatch, "Set it to the dotted path of a class, such as 'myapp.tasks.TaskDispatch'."),
    14: (backoff, "Set BACKOFF to a function of the error and the task, or to its dotted path."),
    15: (
        middleware.for_all,
        "Name functions of the handler and perform, or classes with around_perform().",
    ),
    16: (
        scope_function,
        "Set it to the dotted path of a function of the request, such as 'myapp.admin.users_of'.",
    ),
}


@check(TAG)
def check_named(alias: str) -> Iterator[CheckMessage]:
    """Check CODECS with their packages and keys, CONTEXT, and what TRACING needs."""
    yield from config_errors(NAMED)


@check()
def check_imported(alias: str) -> Iterator[CheckMessage]:
    """
    Check DISPATCH, BACKOFF, MIDDLEWARE and ADMIN_SCOPE.

    It has no tag of this package, so commands skip it.
    """
    yield from config_errors(IMPORTED)


def config_errors(named: Named) -> Iterator[CheckMessage]:
    for number, (use, hint) in named.items():
        try:
            use()
        except ConfigError as trouble:
            yield error(number, str(trouble), hint)
