"""
What of its submitter's surroundings a task takes along, for its handler to find again.

The setting CONTEXT names it: context variables, and providers such as those below.
"""

from __future__ import annotations

import functools
import logging
import zoneinfo
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import NamedTuple

from django.core.signals import setting_changed
from django.dispatch import receiver
from django.utils import timezone as zones
from django.utils import translation

from django_perfectqueue import tracing
from django_perfectqueue.conf import SETTING, options
from django_perfectqueue.exceptions import ConfigError
from django_perfectqueue.lib.imports import imported

from .names import JSON

logger = logging.getLogger("django_perfectqueue.context")

LONGEST = 8_192
"""How long the context of a task may be, in bytes as JSON."""


OF_SCHEDULES = ("schedule", "scheduled_for")
"""What it has of a task that a schedule has submitted: the name of that, and the tick."""


class Provider(NamedTuple):
    """
    Two functions: what ``capture`` returns at a submit, ``restore`` is given at each attempt.

    It is a value that JSON can hold; None is not taken along. ``restore`` runs in the
    context of the task: what it sets in context variables is gone with that. If it raises,
    the handler does not run, and the attempt ends in that error.
    """

    capture: Callable[[], object]
    restore: Callable[[JSON], object]


def zone_name() -> str | None:
    """Return the name of the time zone that is active, where it has one."""
    zone = zones.get_current_timezone()
    return zone.key if isinstance(zone, zoneinfo.ZoneInfo) else None


language = Provider(translation.get_language, translation.activate)
"""The language that is active."""

timezone = Provider(zone_name, zones.activate)
"""The time zone that is active, if it is one of the IANA database."""


@functools.cache
def providers() -> dict[str, Provider]:
    """
    Return what CONTEXT names, by its dotted path.

    Raise ConfigError when an entry is no provider.
    """
    return {path: provider_at(path) for path in options().CONTEXT}


def provider_at(path: str) -> Provider:
    found = imported(path, f"{SETTING}['CONTEXT']")
    if isinstance(found, ContextVar):
        return Provider(functools.partial(found.get, None), found.set)
    pair = tuple(found) if isinstance(found, tuple | list) else ()
    if len(pair) == 2 and all(map(callable, pair)):
        return Provider(*pair)
    raise ConfigError(
        f"'{path}' in {SETTING}['CONTEXT'] is no ContextVar and no pair of functions, such as"
        " Provider(capture, restore)."
    )


def captured() -> dict[str, object]:
    """Return what a task that is submitted here takes along, by name."""
    values = tracing.captured()
    for path, provider in providers().items():
        if (value := provider.capture()) is not None:
            values[path] = value
    return values


def restore(values: Mapping[str, object]) -> None:
    """
    Set in this context what a task has taken along.

    What this process has no provider for is left out: another release may have sent it.
    """
    tracing.restore(values)
    known = providers()
    for name, value in values.items():
        if name in known:
            known[name].restore(value)
        elif name not in (tracing.PARENT, tracing.STATE, *OF_SCHEDULES):
            logger.debug("Nothing here takes this from the context of a task. name=%s", name)


@receiver(setting_changed)
def _forget(*, setting: str, **kwargs: object) -> None:
    if setting == SETTING:
        providers.cache_clear()
