"""What an auditor finds, and the checks by which it finds it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Violation:
    """``kind`` is the name of a check; ``text`` says what happened, to ``task`` if it was one."""

    kind: str
    task: Any
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


Check = Callable[[Any], Iterator[tuple[Any, str]]]


class Checks(dict[str, Check]):
    """Checks by their kind; each reads what was recorded and yields a task, or None, and a text."""

    def kind(self, name: str) -> Callable[[Check], Check]:
        def put(function: Check) -> Check:
            self[name] = function
            return function

        return put

    def violations(
        self, recorded: Any, named: Callable[[Any, Any], str] = lambda _recorded, task: str(task)
    ) -> list[Violation]:
        """Return all that the checks find; ``named`` returns the name of a task."""
        return [
            Violation(kind, task, text if task is None else f"{named(recorded, task)}: {text}")
            for kind, look in self.items()
            for task, text in look(recorded)
        ]
