"""What a server takes: how long a statement, and how long a transaction that stands still."""

from __future__ import annotations

import logging

from django.db import Error
from django.db.backends.base.base import BaseDatabaseWrapper

from .dialects import dialect_of
from .transaction import reading

LONG = 256 * 1024
"""In characters: below it no server is asked."""

logger = logging.getLogger("django_perfectqueue.database")


def too_long(text: str, *, using: str) -> str:
    """
    Say why the server would take no statement with this text, or nothing where it would.

    MySQL and MariaDB close the connection at it, which looks as if they were away: it would
    be tried again and again.
    """
    if len(text) <= LONG:
        return ""
    try:
        with reading(using) as db:
            return db.dialect.too_long(db.cursor, text)
    except Error as error:
        logger.debug("The server can't be asked for its largest statement. error=%s", error)
        return ""


def end_idle_transactions(connection: BaseDatabaseWrapper, *, after: float) -> None:
    """
    Make the server end a transaction that stands still for so many seconds.

    A process that is frozen, or whose host is cut off without a word, keeps the locks of
    the transaction that it is in: else until TCP gives the connection up, which may take
    hours. PostgreSQL and MariaDB can end it; a limit that the project has set stays.
    """
    with connection.cursor() as cursor:
        dialect_of(connection.alias).end_idle_transactions(cursor, after)
