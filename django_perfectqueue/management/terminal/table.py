"""Rows under aligned columns, printed as they come."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Generic, TextIO, TypeVar

from django.core.management.base import OutputWrapper

from django_perfectqueue.lib.printable import printable

from .text import columns_of, cut, padded

R = TypeVar("R")
SAMPLE = 200
NARROWEST = 8
GAP = "  "


# Without slots: a frozen generic that has them can't be made on Python before 3.13.
@dataclass(frozen=True)
class Column(Generic[R]):
    """
    A column: its title, and what it shows of a row. Numbers go to the ``right``.

    Where the terminal is narrow the ``spare`` ones are left out first, and then the
    ``elastic`` ones give way. ``paint`` colours a padded cell.
    """

    title: str
    cell: Callable[[R], str]
    elastic: bool = False
    right: bool = False
    spare: bool = False
    paint: Callable[[str], str] = str


def lines(columns: Sequence[Column[R]], rows: Iterable[R], *, width: int | None) -> Iterator[str]:
    """
    Yield the header and each row as a line; nothing where there are no rows.

    The first rows decide how wide the columns are. ``width`` is the terminal's, and None
    where nothing is to be cut.
    """
    cells = ([printable(column.cell(row)) for column in columns] for row in rows)
    sample = list(islice(cells, SAMPLE))
    titles = [column.title for column in columns]
    widths = fitting(columns, widest([titles, *sample]), width)
    for row in chain([titles], sample, cells) if sample else ():
        parts = [
            column.paint(padded(cell if width is None else cut(cell, room), room, column.right))
            for column, cell, room in zip(columns, row, widths, strict=True)
            if room
        ]
        yield GAP.join(parts).rstrip()


def widest(rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(columns_of, cells)) for cells in zip(*rows, strict=True)]


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
