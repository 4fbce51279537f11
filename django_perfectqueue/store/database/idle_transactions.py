"""End transactions that stand still and hold locks that others need."""

from __future__ import annotations

from django.db.backends.base.base import BaseDatabaseWrapper

from .dialects import dialect_of


def end_idle_transactions(connection: BaseDatabaseWrapper, *, after: float) -> None:
    """
    Make the server end a transaction that stands still for so many seconds.

    A process that is frozen, or whose host is cut off without a word, keeps the locks of
    the transaction that it is in: else until TCP gives the connection up, which may take
    hours. PostgreSQL and MariaDB can end it; a limit that the project has set stays.
    """
    with connection.cursor() as cursor:
        dialect_of(connection.alias).end_idle_transactions(cursor, after)
