"""Whether anyone hears of the start and the end of a Django task."""

from __future__ import annotations

import logging

from django.conf import settings
from django.dispatch import Signal
from django.utils.log import RequireDebugFalse, RequireDebugTrue

from django_perfectqueue.compat import signals as django_signals
from django_perfectqueue.logs import Masked

SIGNALS: tuple[Signal, ...] = (django_signals.task_started, django_signals.task_finished)
LOGGER: logging.Logger = django_signals.logger
LOGGING = {id(django_signals.log_task_started), id(django_signals.log_task_finished)}


def is_there() -> bool:
    """
    Return whether a signal has a receiver other than Django's own, which logs, or a handler
    takes the records that this one makes of a task that succeeds.
    """
    for signal in SIGNALS:
        for (receiver, _sender), *_rest in signal.receivers:
            if receiver not in LOGGING:
                return True
    return is_logged(logging.INFO)


def is_logged(level: int) -> bool:
    """Return whether a handler takes the records of Django's tasks of this level."""
    logger: logging.Logger | None = LOGGER
    if not LOGGER.isEnabledFor(level):
        return False
    while logger is not None:
        for handler in logger.handlers:
            if handler.level <= level and takes_records(handler):
                return True
        logger = logger.parent if logger.propagate else None
    for each in LOGGER.filters:  # noqa: SIM110, a generator costs more calls
        if not isinstance(each, Masked):
            return True
    return False


def takes_records(handler: logging.Handler) -> bool:
    """Return whether a handler may take a record; one that captures those of tasks does not."""
    if isinstance(handler, logging.NullHandler) or getattr(handler, "leaves_own", False):
        return False
    for each in handler.filters:
        if isinstance(each, RequireDebugTrue) and not settings.DEBUG:
            return False
        if isinstance(each, RequireDebugFalse) and settings.DEBUG:
            return False
    return True
