"""What can be found wrong with a project's settings before anything runs."""

from .backends import check_backends
from .databases import check_database_settings, check_sqlite_options
from .dotted_paths import (
    check_backoff,
    check_codecs,
    check_context,
    check_dispatch,
    check_middleware,
)
from .schedules import check_schedules
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
    "check_schedules",
    "check_server",
    "check_server_settings",
    "check_settings",
    "check_sqlite_options",
]
