from __future__ import annotations

from django.core.exceptions import ImproperlyConfigured
from django.db import OperationalError


class TourError(Exception):
    """The tour can't go on; the message says why."""


def advice(error: Exception) -> str:
    """Return what is wrong with the database, and what may help."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    shown = lines[0] if lines else type(error).__name__
    if isinstance(error, OperationalError):
        return f"the database did not answer: {shown}\nIs it up, and is DATABASE_URL right?"
    if isinstance(error, ImproperlyConfigured):
        return f"the settings will not do: {' '.join(lines)}"
    return f"the database refused: {shown}"
