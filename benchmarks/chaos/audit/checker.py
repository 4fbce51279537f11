"""
Reads a history and reports what must not have happened. It reads nothing else and writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from . import attempts, operations, plays, promises
from .history import History
from .operations import Finding

CHECKS: dict[str, Callable[[History], Iterable[Finding]]] = {
    "lost": promises.lost,
    "from nowhere": promises.from_nowhere,
    "refused as known": promises.refused_as_known,
    "no tasks": promises.no_tasks,
    "ticks": promises.ticks,
    "half-stored": promises.half_stored,
    "never ended": attempts.never_ended,
    "ended wrongly": attempts.ended_wrongly,
    "errors miscounted": attempts.miscounted,
    "out of order": attempts.out_of_order,
    "circle": operations.circles,
    "batch": operations.batches,
    "bulk": operations.bulk,
    "ended twice": attempts.ended_twice,
    "taken after its end": attempts.taken_after_end,
    "taken twice": attempts.taken_twice,
    "overlap": attempts.overlap,
    "without a lease": attempts.without_a_lease,
    "delivered after its end": attempts.delivered_after_end,
    "cut short": attempts.cut_short,
    "fence": attempts.fence,
    "refused though held": promises.refused_though_held,
    "end not kept": promises.end_not_kept,
    "ended by another": attempts.ended_by_another,
    "cap exceeded": attempts.cap_exceeded,
    "rate passed": promises.rate_passed,
    "ran while paused": promises.ran_while_paused,
    "at the wrong time": promises.at_the_wrong_time,
    "edit lost": promises.edit_lost,
    "workflow": plays.workflows,
    "signal": plays.signals,
    "child": plays.children,
    "sequence": plays.sequences,
    "debounce": plays.debounces,
    "unique": plays.uniques,
    "stumbled": promises.stumbled,
    "drift": lambda history: ((None, text) for text in history.drift),
    "did not stop": lambda history: ((None, text) for text in history.leftovers),
}
"""Checks by the kind of what they find; each yields a task, or None, and a text."""


@dataclass(frozen=True)
class Violation:
    """``kind`` is the name of a check; ``text`` says what happened, to ``task`` if it was one."""

    kind: str
    task: int | None
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


def violations(history: History) -> list[Violation]:
    """Return all that a history has of what must not be."""
    return [
        Violation(kind, task, text if task is None else f"{name(history, task)}: {text}")
        for kind, look in CHECKS.items()
        for task, text in look(history)
    ]


def name(history: History, task: int) -> str:
    born = history.born_of.get(task)
    return f"task {task}" if born is None else f"{born.key} ({task})"
