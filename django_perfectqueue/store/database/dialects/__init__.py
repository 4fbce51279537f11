"""All that differs from one database to another."""

from __future__ import annotations

from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from .base import Dialect
from .mysql import MySQL
from .postgresql import PostgreSQL
from .sqlite import SQLite

DIALECTS: dict[str, Dialect] = {"postgresql": PostgreSQL(), "mysql": MySQL(), "sqlite": SQLite()}

__all__ = ["Dialect", "dialect_for", "dialect_of"]


def dialect_of(using: str) -> Dialect:
    """
    Return the dialect that this database speaks.

    Raise ImproperlyConfigured for a database that is not supported.
    """
    return dialect_for(connections[using])


def dialect_for(connection: BaseDatabaseWrapper) -> Dialect:
    """Return the dialect of a connection."""
    vendor = connection.vendor
    try:
        return DIALECTS[vendor]
    except KeyError:
        raise ImproperlyConfigured(
            f"django-perfectqueue runs on PostgreSQL, MySQL, MariaDB and SQLite, not on {vendor}."
        ) from None
