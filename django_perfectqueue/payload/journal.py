"""What the handler of one attempt reports, until that is written: its progress and its log."""

from __future__ import annotations

import math
import re
import time
from collections import deque
from collections.abc import Iterator
from datetime import datetime
from typing import Any, NamedTuple

LONGEST_LINE = 2_000
FIRST_PART = 4
MARK_LENGTH = 60
INDENT = "\n    "
LINE = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z) (\S+) (.*?): (.*)", re.DOTALL)


class Notes:
    """
    The progress and the log of one attempt.

    Taking one costs a few assignments and no lock, from whatever thread: what is atomic in
    Python is enough. The first lines and the last ones are kept, ``size`` characters in all.
    """

    def __init__(self, size: int) -> None:
        self.progress: tuple[float | None, str] = (None, "")
        self.first: list[str] = []
        self.last: deque[str] = deque()
        self.room = size // FIRST_PART
        self.most = size - self.room - MARK_LENGTH
        self.size = 0
        self.left_out = 0
        self.changed = False
        self.written = False
        self.next_write = 0.0

    def set_progress(self, part: float | None, stage: str | None) -> None:
        """Set the progress; None leaves a value unchanged."""
        known, doing = self.progress
        self.progress = (known if part is None else part, doing if stage is None else stage)
        self.changed = True

    def add(self, line: str) -> None:
        """Add a line of the log."""
        length = len(line) + 1
        if self.room >= length:
            self.room -= length
            self.first.append(line)
        else:
            self.room = 0
            self.last.append(line)
            self.size += length
            while self.size > self.most and self.last:
                self.size -= len(self.last.popleft()) + 1
                self.left_out += 1
        self.changed = True

    def text(self) -> str:
        """Return the lines that are kept, and between them how many are not."""
        last = tuple(self.last)
        # Two threads may have counted at once.
        self.size = sum(len(line) + 1 for line in last)
        mark = [f"… {self.left_out} lines are left out here …"] if self.left_out else []
        return "\n".join([*self.first, *mark, *last])


def part_of(part: Any, of: Any = None) -> float | None:
    """
    Return how much is done as a part of 1; more than all is all.

    Raise ValueError when it is no number, below 0, or above 1 with nothing that it is a
    part of.
    """
    if part is None:
        return None
    for value in (part, of):
        if value is not None and not is_amount(value):
            raise ValueError(f"Progress must be a number of at least 0, not {value!r}.")
    if of is not None:
        return min(1.0, float(part) / float(of)) if of else 1.0
    if part > 1:
        raise ValueError(
            f"Progress is a part of 1, such as 0.4, not {part!r}."
            f" Or say of how much: progress({part!r}, of=100)."
        )
    return float(part)


def is_amount(value: Any) -> bool:
    try:
        return not isinstance(value, bool) and math.isfinite(value) and value >= 0
    except (TypeError, OverflowError):
        return False


def entry(at: float, level: str, source: str, text: str) -> str:
    """Return a line of the log; further lines of the text are indented."""
    moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at))
    if len(text) > LONGEST_LINE:
        text = text[: LONGEST_LINE - 1] + "…"
    entry_text = INDENT.join(text.splitlines())
    # A level is one word, and neither it nor a name makes lines of its own.
    level, source = "-".join(str(level).split()) or "NOTSET", " ".join(source.split())
    return f"{moment}.{int(at % 1 * 1000):03}Z {level} {source}: {entry_text}"


class Line(NamedTuple):
    """A line of a stored log; a line of another form has only its text."""

    text: str
    at: datetime | None = None
    level: str = ""
    source: str = ""

    def facts(self) -> dict[str, object]:
        """Return it for programs."""
        at = self.at.isoformat() if self.at else None
        return {"at": at, "level": self.level, "logger": self.source, "message": self.text}


def read(text: str) -> Iterator[Line]:
    """Yield the lines of a log as it is stored."""
    for entry_text in re.split(r"\n(?!    )", text) if text else ():
        if found := LINE.fullmatch(entry_text):
            at, level, source, said = found.groups()
            moment = datetime.fromisoformat(at.replace("Z", "+00:00"))
            yield Line(said.replace(INDENT, "\n"), moment, level, source)
        else:
            yield Line(entry_text)
