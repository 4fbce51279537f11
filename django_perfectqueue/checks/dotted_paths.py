"""What is wrong with what the settings name: classes, functions and packages."""

from __future__ import annotations

from collections.abc import Callable

from django.core.checks import CheckMessage

from django_perfectqueue.application.middleware import for_all
from django_perfectqueue.backoff import backoff_at
from django_perfectqueue.conf import SETTING, options
from django_perfectqueue.exceptions import ConfigError
from django_perfectqueue.inspection.scope import scope_function
from django_perfectqueue.lib.imports import imported
from django_perfectqueue.payload import codecs, context
from django_perfectqueue.tracing import otel

from .messages import TAG, check, error


@check(TAG)
def check_codecs(alias: str) -> list[CheckMessage]:
    """Check that CODECS can be used: their classes, packages and keys."""
    return config_errors(codecs.codecs, 20, f"Correct {SETTING}['CODECS'].")


@check(TAG)
def check_context(alias: str) -> list[CheckMessage]:
    """Check that what CONTEXT names is there, and what TRACING needs."""
    found = config_errors(context.providers, 21, f"Correct {SETTING}['CONTEXT'].")
    if otel.is_on():
        found += config_errors(otel.tracer, 22, f"Or take TRACING out of {SETTING}.")
    return found


@check()
def check_dispatch(alias: str) -> list[CheckMessage]:
    """
    Check that DISPATCH can be imported.

    It may import much; so it has no tag of this package, and pq_submit skips it.
    """
    if (path := options().DISPATCH) is None:
        return []
    return config_errors(
        lambda: imported(path, f"{SETTING}['DISPATCH']"),
        11,
        "Set it to the dotted path of a class, such as 'myapp.tasks.TaskDispatch'.",
    )


@check()
def check_backoff(alias: str) -> list[CheckMessage]:
    """
    Check that BACKOFF can be imported.

    As with DISPATCH, that may import much.
    """
    if not isinstance(path := options().BACKOFF, str):
        return []
    return config_errors(
        lambda: backoff_at(path),
        14,
        "Set it to a function of the error and the task, or to its dotted path.",
        f"{SETTING}['BACKOFF'] can't be used: ",
    )


@check()
def check_admin_scope(alias: str) -> list[CheckMessage]:
    """
    Check that ADMIN_SCOPE is a function.

    As with DISPATCH, that may import much.
    """
    hint = "Set it to the dotted path of a function of the request, such as 'myapp.admin.users_of'."
    return config_errors(scope_function, 16, hint)


@check()
def check_middleware(alias: str) -> list[CheckMessage]:
    """
    Check that MIDDLEWARE names middleware.

    It may import much; so it has no tag of this package, and pq_submit skips it.
    """
    hint = "Name functions of the handler and perform, or classes with around_perform()."
    return config_errors(for_all, 15, hint)


def config_errors(
    check: Callable[[], object], number: int, hint: str, before: str = ""
) -> list[CheckMessage]:
    """Return the ConfigError that a check raises, as a message."""
    try:
        check()
    except ConfigError as trouble:
        return [error(number, f"{before}{trouble}", hint)]
    return []
