"""What clients and handlers ask and are answered."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.recorder import Recorder, read_lines

DONE, REFUSED, BROKEN, UNDONE, STUMBLED = "done", "refused", "broken", "undone", "stumbled"
"""
Answers: BROKEN is an error of the connection, after which either may hold; UNDONE a
transaction that the client has rolled back; STUMBLED an error that no verb may raise.
"""

Ref = tuple[str, int, int]
"""A lease: the life of its task, its attempt and its holder."""


@dataclass(frozen=True)
class Call:
    """
    One use of a verb. ``answered`` is infinite and ``answer`` empty where none was written:
    its client has died, or stood still until the end.
    """

    by: str
    verb: str
    asked: float
    answered: float = math.inf
    answer: str = ""
    given: dict[str, Any] = field(default_factory=dict)
    reported: dict[str, Any] = field(default_factory=dict)

    @property
    def may_hold(self) -> bool:
        return self.answer in (DONE, BROKEN, STUMBLED, "")

    @property
    def is_done(self) -> bool:
        return self.answer == DONE

    @property
    def reconnected(self) -> bool:
        """Whether its connection was lost, and what it may have done was tried again."""
        return bool(self.reported.get("reconnected"))

    @property
    def refs(self) -> list[Ref]:
        """The leases that it names."""
        return refs(self.given.get("leases", ()))

    @property
    def refused(self) -> set[Ref]:
        return set(refs(self.reported.get("refused", ())))


def refs(lists: Any) -> list[Ref]:
    return [(life, attempt, holder) for life, attempt, holder in lists]


class CallRecorder(Recorder):
    """Opened by each process for itself."""

    def __init__(self, file: Path, by: str) -> None:
        super().__init__(file, by=by)
        self.numbers = itertools.count(1)

    def ask(self, verb: str, **given: Any) -> int:
        """Write what is asked, before it is; return the number under which it is answered."""
        number = next(self.numbers)
        self.write(number=number, verb=verb, given=given)
        return number

    def answer(self, number: int, answer: str, **reported: Any) -> None:
        self.write(number=number, answer=answer, reported=reported)


def read_calls(file: Path) -> list[Call]:
    """Return all calls, in the order in which they were asked."""
    asked: dict[tuple[str, int], dict[str, Any]] = {}
    found: list[Call] = []
    for line in read_lines(file):
        name = (line["by"], line["number"])
        if "verb" in line:
            asked[name] = line
        elif name in asked:
            found.append(call(asked.pop(name), line["at"], line["answer"], line["reported"]))
    found += [call(line) for line in asked.values()]
    return sorted(found, key=lambda one: one.asked)


def call(
    line: dict[str, Any], at: float = math.inf, answer: str = "", reported: Any = None
) -> Call:
    return Call(line["by"], line["verb"], line["at"], at, answer, line["given"], reported or {})
