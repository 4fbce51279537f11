"""Which database the tasks are in."""

from __future__ import annotations

from django.db import router

from django_perfectqueue import models
from django_perfectqueue.conf import options


def database() -> str:
    """Return the alias of the database that holds the tasks: DATABASE, or else the router's."""
    return options().DATABASE or router.db_for_write(models.Task)
