"""What can be found wrong with a project's settings before anything runs."""

from __future__ import annotations

from django.core import checks

from .backends import check_backends
from .databases import check_database_settings, check_sqlite_options
from .dotted_paths import (
    check_backoff,
    check_codecs,
    check_context,
    check_dispatch,
    check_middleware,
)
from .servers import check_server, check_server_settings
from .settings import check_settings

__all__ = [
    "check_backends",
    "check_backoff",
    "check_codecs",
    "check_context",
    "check_database_settings",
    "check_dispatch",
    "check_middleware",
    "check_server",
    "check_server_settings",
    "check_settings",
    "check_sqlite_options",
    "register",
]

TAG = "perfectqueue"


def register() -> None:
    checks.register(check_settings, TAG)
    checks.register(check_database_settings, TAG)
    checks.register(check_server, checks.Tags.database)
    checks.register(check_server_settings, checks.Tags.database)
    checks.register(check_sqlite_options)
    checks.register(check_dispatch)
    checks.register(check_backoff)
    checks.register(check_middleware)
    checks.register(check_codecs, TAG)
    checks.register(check_context, TAG)
    checks.register(check_backends, TAG)
