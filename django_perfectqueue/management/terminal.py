"""What commands print: times, spans and texts, tables, progress."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from itertools import chain, islice
from typing import Any, Generic, TextIO, TypeVar

from django.core.management.base import OutputWrapper
from django.utils.dateparse import parse_datetime
from django.utils.timezone import is_aware, localtime

from django_perfectqueue.exceptions import InvalidTaskError
from django_perfectqueue.lib.durations import is_number, seconds_in, short_duration
from django_perfectqueue.lib.printable import printable

NUMBER = re.compile(r"-?\d+(\.\d+)?")
LONGEST_ID = 19
EXCERPT = 40


def point(name: str, value: Any) -> datetime | str | None:
    """
    Return a time that was written as unix seconds, ISO 8601 or a duration such as "5m30s".

    A duration is returned as it is. Raise InvalidTaskError for anything else.
    """
    if value is None or (isinstance(value, str) and seconds_in(value) is not None):
        return value
    with contextlib.suppress(ValueError, TypeError, OverflowError, OSError):
        if is_number(value) or NUMBER.fullmatch(value):
            return datetime.fromtimestamp(float(value), tz=timezone.utc)
        if (moment := parse_datetime(value)) and is_aware(moment):
            return moment
    raise InvalidTaskError(
        f"{name} must be unix seconds from year 1 to 9999, ISO 8601 with an offset such as Z, or a"
        f" span such as '5m30s', not {value!r}."
    )


def local(moment: datetime) -> str:
    return localtime(moment).isoformat(" ", "milliseconds")


def ago(moment: datetime, now: datetime) -> str:
    return f"{short_duration((now - moment).total_seconds())} ago"


def duration(seconds: float | None) -> str:
    return "-" if seconds is None else short_duration(seconds)


def or_more(count: int, *, more: bool) -> str:
    """Return a count; with ``more`` there may be more, so of none nothing is known."""
    if more:
        return f"{count:,}+" if count else "-"
    return f"{count:,}"


def bounded(count: int, most: int) -> str:
    """Return a count; of more than ``most``, that there are more."""
    return or_more(min(count, most), more=count > most)


def plural(count: int, noun: str) -> str:
    """Return "1 task" or "2,000 tasks"."""
    return f"{count:,} {noun if count == 1 else noun + 's'}"


def are(count: int, noun: str) -> str:
    """Return "1 task is" or "2,000 tasks are"."""
    return f"{plural(count, noun)} {'is' if count == 1 else 'are'}"


def is_id(text: str) -> bool:
    """Return whether a text may be the id of a task."""
    return text.isascii() and text.isdecimal() and len(text) < LONGEST_ID


def columns_of(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    return sum(column_count(character) for character in text)


def column_count(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def cut(text: str, width: int) -> str:
    """Return a text that takes no more than so many columns, with … where it was cut."""
    if columns_of(text) <= width:
        return text
    kept, room = "", width - 1
    for character in text:
        room -= column_count(character)
        if room < 0:
            break
        kept += character
    return kept + "…"


def padded(text: str, width: int, right: bool = False) -> str:
    blanks = " " * (width - columns_of(text))
    return blanks + text if right else text + blanks


R = TypeVar("R")
Facts = dict[str, object]
SAMPLE = 200
NARROWEST = 8
GAP = "  "


# Without slots: a frozen generic that has them can't be made on Python before 3.13.
@dataclass(frozen=True)
class Column(Generic[R]):
    """
    A fact of rows: by its ``title`` in tables, and by its ``name`` in JSON; without one not there.

    Its value is ``of`` a row, by default the attribute of that name. A table has what is
    ``shown`` instead, if that differs. Numbers go to the ``right``.

    Where the terminal is narrow the ``spare`` ones are left out first, and then the
    ``elastic`` ones give way. ``paint`` colours a padded cell.
    """

    title: str | None
    name: str = ""
    of: Callable[[R], object] | None = None
    shown: Callable[[R], object] | None = None
    elastic: bool = False
    right: bool = False
    spare: bool = False
    paint: Callable[[str], str] = str

    def value(self, row: R) -> object:
        return self.of(row) if self.of else getattr(row, self.name)

    def seen(self, row: R) -> object:
        return self.shown(row) if self.shown else self.value(row)

    def cell(self, row: R) -> str:
        value = self.seen(row)
        if self.right and isinstance(value, int):
            return f"{value:,}"
        return in_text(value) or ("" if self.shown else "-")


def for_programs(columns: Iterable[Column[R]], row: R) -> Facts:
    """Return a row for JSON."""
    return {column.name: known(column.value(row)) for column in columns if column.name}


def unseen(*names: str) -> list[Column[Any]]:
    """Return columns that only JSON has."""
    return [Column(None, name) for name in names]


def picked(row: object, *names: str) -> Facts:
    """Return these values of a row by their names, as JSON has them."""
    return for_programs(unseen(*names), row)


def known(value: object) -> object:
    """Return a value, and None for an empty text."""
    return None if value == "" else value


def plain(value: Any) -> object:
    """Return as JSON has it what JSON has not: times as ISO 8601, spans as seconds."""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, set):
        return sorted(value)
    return value.total_seconds() if isinstance(value, timedelta) else value.facts()


def in_text(value: object) -> str:
    """Return a value as a terminal shows it."""
    if value is None:
        return ""
    if isinstance(value, datetime):
        return local(value)
    if isinstance(value, timedelta):
        return short_duration(value.total_seconds())
    if isinstance(value, float):
        return f"{value:g}"
    return ", ".join(value) if isinstance(value, list | tuple) else str(value)


def lines(columns: Sequence[Column[R]], rows: Iterable[R], *, width: int | None) -> Iterator[str]:
    """
    Yield the header and each row as a line; nothing where there are no rows.

    The first rows decide how wide the columns are. ``width`` is the terminal's, and None
    where nothing is to be cut.
    """
    columns = [column for column in columns if column.title is not None]
    cells = ([printable(column.cell(row)) for column in columns] for row in rows)
    sample = list(islice(cells, SAMPLE))
    titles = [column.title or "" for column in columns]
    widest = [max(map(columns_of, cells)) for cells in zip(titles, *sample, strict=True)]
    widths = fitting(columns, widest, width)
    for row in chain([titles], sample, cells) if sample else ():
        parts = [
            column.paint(padded(cell if width is None else cut(cell, room), room, column.right))
            for column, cell, room in zip(columns, row, widths, strict=True)
            if room
        ]
        yield GAP.join(parts).rstrip()


def fitting(columns: Sequence[Column[R]], widths: list[int], width: int | None) -> list[int]:
    """
    Return widths whose sum fits; 0 is for a column that is left out.

    The spare columns are left out from the left, then the widest elastic one is narrowed.
    """
    widths = list(widths)
    elastic = [place for place, column in enumerate(columns) if column.elastic]
    over = 0 if width is None else sum(widths) + len(GAP) * (len(widths) - 1) - width
    for place, column in enumerate(columns):
        if over > 0 and column.spare:
            over -= widths[place] + len(GAP)
            widths[place] = 0
    while over > 0 and elastic:
        place = max(elastic, key=lambda place: widths[place])
        if widths[place] <= NARROWEST:
            break
        widths[place] -= 1
        over -= 1
    return widths


def terminal_width(stream: TextIO | OutputWrapper) -> int | None:
    """Return the columns of the terminal that a stream writes to; None when it is no terminal."""
    if not stream.isatty():
        return None
    if "COLUMNS" in os.environ:
        return shutil.get_terminal_size().columns
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError, AttributeError):
        return 80


def parsed(text: bytes | str) -> object:
    """
    Return what a JSON text says.

    Raise InvalidTaskError when it is malformed.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise InvalidTaskError(f"This is nested too deeply: {excerpt(text)}.") from error
    except ValueError as error:  # Also for a number of too many digits, and what is not UTF-8.
        if not text.strip():
            raise InvalidTaskError("This is empty, and not JSON.") from error
        raise InvalidTaskError(f"This is not JSON: {excerpt(text)} ({error}).") from error


def excerpt(text: bytes | str) -> str:
    shown = text.decode(errors="replace") if isinstance(text, bytes) else text
    shown = printable(shown.strip())
    return shown if len(shown) <= EXCERPT else shown[:EXCERPT] + "…"


EVERY_SECONDS = 0.1
BAR = 24


class ProgressLine:
    """A line that is rewritten on a terminal; elsewhere there is none."""

    def __init__(self, stream: OutputWrapper, text: str) -> None:
        self.stream = stream
        self.text = text
        self.lively = stream.isatty()
        self.began = time.monotonic()
        self.drawn = self.began
        self.shown = 0

    def show(self, count: int) -> None:
        if self.lively and time.monotonic() - self.drawn >= EVERY_SECONDS:
            rate = count / max(time.monotonic() - self.began, 1e-6)
            text = f"{self.text % f'{count:,}'}, {rate:,.0f} a second"
            self.drawn = time.monotonic()
            self.stream.write("\r" + text.ljust(self.shown), str, "")
            self.stream.flush()
            self.shown = len(text)

    def clear(self) -> None:
        """Wipe the line, so that what is said next stands alone."""
        if self.shown:
            self.stream.write("\r" + " " * self.shown + "\r", str, "")
            self.stream.flush()
            self.shown = 0


def bar(share: float) -> str:
    """Return a part of 1 as a bar and in words."""
    full = round(BAR * share)
    return f"[{'#' * full}{'.' * (BAR - full)}] {share:4.0%}"
