"""The report of tasks that were run in a test."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from django_perfectqueue.payload.codecs import JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """
    One attempt, and what became of its task by it.

    ``word`` is finished, retried, snoozed, failed, discarded, cancelled, released, preempted
    or left. ``result`` is what the handler has returned, as JSON gives it back, ``error``
    what it has raised. ``wait`` is how many seconds a task that is retried, snoozed or
    released was put off, and ``seconds`` how long the attempt took.
    """

    key: str
    type: str
    queue: str
    user: str
    attempt: int
    word: str
    result: JSON = None
    error: BaseException | None = None
    wait: float | None = None
    seconds: float = 0.0

    def __str__(self) -> str:
        line = f"{self.word} {self.queue}/{self.key} type={self.type} attempt={self.attempt}"
        return f"{line} error={self.error!r}" if self.error is not None else line


class Drained(list[Run]):
    """The attempts that drain() has made, in their order."""

    @property
    def words(self) -> list[str]:
        """What became of the task by each attempt."""
        return [run.word for run in self]

    @property
    def keys(self) -> list[str]:
        """The key of each attempt's task."""
        return [run.key for run in self]

    @property
    def results(self) -> list[JSON]:
        """What each attempt returned."""
        return [run.result for run in self]

    @property
    def errors(self) -> list[BaseException]:
        """What handlers have raised, also where they are tried again."""
        return [run.error for run in self if run.error is not None]

    @property
    def counts(self) -> Counter[str]:
        """How many attempts ended in which word."""
        return Counter(self.words)

    def __str__(self) -> str:
        return "\n".join(map(str, self)) or "Nothing was due."
