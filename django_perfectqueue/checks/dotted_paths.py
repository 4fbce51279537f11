"""What is wrong with what the settings name: classes, functions and packages."""

from __future__ import annotations

from collections.abc import Callable

from django.core.checks import CheckMessage

from django_perfectqueue.application.middleware.chain import for_all
from django_perfectqueue.backoff import backoff_at
from django_perfectqueue.conf import SETTING, options
from django_perfectqueue.exceptions import ConfigError
from django_perfectqueue.lib.imports import imported
from django_perfectqueue.payload import codecs, context
from django_perfectqueue.tracing import otel

from .messages import alias_in_force, error


def check_codecs(app_configs: object = None, **kwargs: object) -> list[CheckMessage]:
    """Check that CODECS can be used: their classes, packages and keys."""
    if alias_in_force() is None:
        return []
    return config_errors(codecs.codecs, 20, f"Correct {SETTING}['CODECS'].")


def check_context(app_configs: object = None, **kwargs: object) -> list[CheckMessage]:
    """Check that what CONTEXT names is there, and what TRACING needs."""
    if alias_in_force() is None:
        return []
    found = config_errors(context.providers, 21, f"Correct {SETTING}['CONTEXT'].")
    if otel.is_on():
        found += config_errors(otel.tracer, 22, f"Or take TRACING out of {SETTING}.")
    return found


def check_dispatch(app_configs: object = None, **kwargs: object) -> list[CheckMessage]:
    """
    Check that DISPATCH can be imported.

    It may import much; so it has no tag of this package, and pq_submit skips it.
    """
    if alias_in_force() is None or (path := options().DISPATCH) is None:
        return []
    return config_errors(
        lambda: imported(path, f"{SETTING}['DISPATCH']"),
        11,
        "Set it to the dotted path of a class, such as 'myapp.tasks.TaskDispatch'.",
    )


def check_backoff(app_configs: object = None, **kwargs: object) -> list[CheckMessage]:
    """
    Check that BACKOFF can be imported.

    As with DISPATCH, that may import much.
    """
    if alias_in_force() is None or not isinstance(path := options().BACKOFF, str):
        return []
    return config_errors(
        lambda: backoff_at(path),
        14,
        "Set it to a function of the error and the task, or to its dotted path.",
        f"{SETTING}['BACKOFF'] can't be used: ",
    )


def check_middleware(app_configs: object = None, **kwargs: object) -> list[CheckMessage]:
    """
    Check that MIDDLEWARE names middleware.

    It may import much; so it has no tag of this package, and pq_submit skips it.
    """
    hint = "Name functions of the handler and perform, or classes with around_perform()."
    return [] if alias_in_force() is None else config_errors(for_all, 15, hint)


def config_errors(
    check: Callable[[], object], number: int, hint: str, before: str = ""
) -> list[CheckMessage]:
    """Return the ConfigError that a check raises, as a message."""
    try:
        check()
    except ConfigError as trouble:
        return [error(number, f"{before}{trouble}", hint)]
    return []
