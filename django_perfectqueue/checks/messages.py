"""How a check is registered, and a problem reported."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import wraps

from django.core import checks
from django.core.checks import CheckMessage
from django.db import connections

from django_perfectqueue.conf import options
from django_perfectqueue.exceptions import ConfigError
from django_perfectqueue.queue import database

Check = Callable[..., list[CheckMessage]]
# The checks that the commands run; one without it may import much.
TAG = "perfectqueue"
# The check that only a worker runs: it imports the modules of tasks.
SCHEDULES = "perfectqueue-schedules"

SQLITE_OPTIONS = (
    "'OPTIONS': {'transaction_mode': 'IMMEDIATE', 'timeout': 20,"
    " 'init_command': 'PRAGMA journal_mode=WAL'}"
)


def check(*tags: str) -> Callable[[Callable[[str], Iterable[CheckMessage]]], Check]:
    """
    Register a function that yields what is wrong with the database that holds the tasks.

    It is not called where the settings are wrong anyway; with the tag ``database`` only
    where that database is to be checked. Information is for who checks the whole project:
    ``migrate``, which names a database, leaves it out.
    """

    def registered(problems: Callable[[str], Iterable[CheckMessage]]) -> Check:
        @wraps(problems)
        def found(
            app_configs: object = None, databases: Sequence[str] | None = None, **kwargs: object
        ) -> list[CheckMessage]:
            try:
                options()
            except ConfigError:
                return []
            alias = database()
            if checks.Tags.database in tags and alias not in {*(databases or ())} & {*connections}:
                return []
            return [one for one in problems(alias) if databases is None or one.level > checks.INFO]

        del found.__wrapped__  # Django looks at the signature for ``**kwargs``.
        return checks.register(found, *tags)

    return registered


def error(number: int, message: str, hint: str) -> CheckMessage:
    return checks.Error(message, hint=hint, id=f"perfectqueue.E{number:03}")


def warning(number: int, message: str, hint: str) -> CheckMessage:
    return checks.Warning(message, hint=hint, id=f"perfectqueue.W{number:03}")


def slow_isolation(where: str, hint: str) -> CheckMessage:
    return warning(
        4,
        f"{where}, at which the server refuses one of two processors that meet, again and again:"
        " nothing goes wrong, but it is slow.",
        hint,
    )
