"""The few different values of an indexed column, read by jumping from one to the next."""

from __future__ import annotations

from django.db.models import Model, QuerySet

NAMES = 50


def distinct(rows: QuerySet[Model], column: str, *, limit: int | None = NAMES) -> list[str]:
    """Return the first different values in order; each costs one look-up in the index."""
    found: list[str] = []
    while limit is None or len(found) < limit:
        later = rows.filter(**{f"{column}__gt": found[-1]}) if found else rows
        name = later.order_by(column).values_list(column, flat=True).first()
        if name is None:
            break
        found.append(name)
    return found
