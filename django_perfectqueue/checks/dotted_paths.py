"""What is wrong with what the settings name: classes, functions and packages."""

from __future__ import annotations

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
    try:
        codecs.codecs()
    except ConfigError as trouble:
        return [error(20, str(trouble), f"Mend {SETTING}['CODECS'].")]
    return []


def check_context(app_configs: object = None, **kwargs: object) -> list[CheckMessage]:
    """Check that what CONTEXT names is there, and what TRACING needs."""
    if alias_in_force() is None:
        return []
    found = []
    try:
        context.providers()
    except ConfigError as trouble:
        found.append(error(21, str(trouble), f"Mend {SETTING}['CONTEXT']."))
    try:
        if otel.is_on():
            otel.tracer()
    except ConfigError as trouble:
        found.append(error(22, str(trouble), f"Or take TRACING out of {SETTING}."))
    return found


def check_dispatch(app_configs: object = None, **kwargs: object) -> list[CheckMessage]:
    """
    Check that DISPATCH can be imported.

    It may import much; so it has no tag of ours, and pq_submit does without.
    """
    if alias_in_force() is None or (path := options().DISPATCH) is None:
        return []
    try:
        imported(path, f"{SETTING}['DISPATCH']")
    except ConfigError as trouble:
        return [
            error(
                11,
                str(trouble),
                "Set it to the dotted path of a class, such as 'myapp.tasks.TaskDispatch'.",
            )
        ]
    return []


def check_backoff(app_configs: object = None, **kwargs: object) -> list[CheckMessage]:
    """
    Check that BACKOFF can be imported.

    As with DISPATCH, that may import much.
    """
    if alias_in_force() is None or not isinstance(path := options().BACKOFF, str):
        return []
    try:
        backoff_at(path)
    except ConfigError as trouble:
        return [
            error(
                14,
                f"{SETTING}['BACKOFF'] can't be used: {trouble}",
                "Set it to a function of the error and the task, or to its dotted path.",
            )
        ]
    return []


def check_middleware(app_configs: object = None, **kwargs: object) -> list[CheckMessage]:
    """
    Check that MIDDLEWARE names middleware.

    It may import much; so it has no tag of ours, and pq_submit does without.
    """
    if alias_in_force() is None:
        return []
    try:
        for_all()
    except ConfigError as trouble:
        hint = "Name functions of the handler and perform, or classes with around_perform()."
        return [error(15, str(trouble), hint)]
    return []
