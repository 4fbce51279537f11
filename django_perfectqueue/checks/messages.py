"""How a problem is reported, and in which databases it is sought."""

from __future__ import annotations

from django.core import checks
from django.core.checks import CheckMessage

from django_perfectqueue.conf import options
from django_perfectqueue.exceptions import ConfigError
from django_perfectqueue.queue import database

SQLITE_OPTIONS = (
    "'OPTIONS': {'transaction_mode': 'IMMEDIATE', 'timeout': 20,"
    " 'init_command': 'PRAGMA journal_mode=WAL'}"
)


def error(number: int, message: str, hint: str) -> CheckMessage:
    return checks.Error(message, hint=hint, id=f"perfectqueue.E{number:03}")


def warning(number: int, message: str, hint: str) -> CheckMessage:
    return checks.Warning(message, hint=hint, id=f"perfectqueue.W{number:03}")


def alias_in_force() -> str | None:
    """Return the database of the tasks, or None where the settings are wrong anyway."""
    try:
        options()
    except ConfigError:
        return None
    return database()
