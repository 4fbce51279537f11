"""What is written to the terminal, and how."""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence

say = functools.partial(print, flush=True)

UP_AND_CLEAR = "\x1b[{}A\x1b[J"


class Panel:
    """A few lines that are written over where that can be done."""

    def __init__(self) -> None:
        self.live = sys.stdout.isatty()
        self.height = 0

    def show(self, lines: Sequence[str]) -> None:
        if self.live and self.height:
            sys.stdout.write(UP_AND_CLEAR.format(self.height))
        self.height = len(lines)
        say("\n".join(lines))


def table(rows: Sequence[Sequence[str]]) -> str:
    """Align the first column to the left and the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  " + in_columns(row, widths) for row in rows)


def in_columns(row: Sequence[str], widths: Sequence[int]) -> str:
    first, *others = (cell for cell in row)
    cells = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
    return "   ".join([first.ljust(widths[0]), *cells])


def bar(done: int, of: int, width: int = 30) -> str:
    filled = width * done // of if of else width
    return "█" * filled + "░" * (width - filled)
