"""PostgreSQL's text of an array, as one parameter carries a column of a batch."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from ...values import Moment


def array(values: Iterable[object]) -> str:
    """
    Return values that need no quotes as PostgreSQL's text of an array.

    One text costs the driver and the server a tenth of a list of parameters.
    """
    return f"{{{','.join(['NULL' if value is None else str(value) for value in values])}}}"


def texts(values: Iterable[str | None]) -> str:
    """Return texts as PostgreSQL's text of an array, each in quotes."""
    items = [
        "NULL" if text is None else '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
        for text in values
    ]
    return f"{{{','.join(items)}}}"


def time_of(moment: Moment | None) -> str | None:
    """Return a time as an item of an array."""
    text = time_text(moment)
    return text and f'"{text}"'


def time_text(moment: Moment | None) -> str | None:
    """Return a time as a text; a span as its seconds behind a plus."""
    if isinstance(moment, timedelta):
        return f"+{moment.total_seconds()}"
    return None if moment is None else moment.isoformat()
