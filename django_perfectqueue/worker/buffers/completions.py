"""Buffer of completions that are not written yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from django_perfectqueue import store

from ..attempt.ending import AttemptEnd

LATE = 0.05
MOST_CHARACTERS = 1_000_000

OnWritten = Callable[[Sequence[AttemptEnd]], None]


class Completions:
    """
    Completions that one transaction writes together; they are late ``after`` seconds.

    One thread writes them. After an error the batch goes first the next time. Writing a
    completion twice does no harm.
    """

    def __init__(self, on_written: OnWritten, *, after: float = LATE) -> None:
        self.on_written = on_written
        self.after = after
        self.waiting: deque[AttemptEnd] = deque()
        self.being_written: list[AttemptEnd] = []
        self.characters = 0

    def put(self, ending: AttemptEnd, completion: store.Completion) -> None:
        self.waiting.append(ending)
        if completion.result is not None:
            self.characters += len(completion.result)

    def is_late(self, now: float) -> bool:
        """Return whether to write them without an acquire: the oldest waits, or they are large."""
        late_at = self.late_at()
        return self.characters >= MOST_CHARACTERS or (late_at is not None and now >= late_at)

    def late_at(self) -> float | None:
        """Return when the oldest is late, by the monotonic clock."""
        try:
            oldest = self.waiting[0].completion
        except IndexError:
            return None
        return None if oldest is None else oldest.ended + self.after

    def fences(self) -> set[tuple[int, int]]:
        """Return the fences of the leases of all unwritten completions."""
        return {ending.task.lease.fence for ending in (*self.being_written, *self.waiting)}

    @contextmanager
    def batch(self) -> Iterator[tuple[list[store.Completion], list[store.Completion]]]:
        """
        Hand all completions to a transaction, which adds those that it refuses to the second
        list; keep them when it raises.
        """
        endings, refused = self.take(), list[store.Completion]()
        try:
            yield [done.completion for done in endings if done.completion is not None], refused
        except BaseException:
            self.waiting.extendleft(reversed(endings))
            raise
        finally:
            self.being_written = []
        if endings:
            for ending in endings:
                if refused and ending.completion in refused:
                    ending.word = "preempted"
                else:
                    ending.task.settled = ending.word
            self.on_written(endings)

    def take(self) -> list[AttemptEnd]:
        taken = self.being_written = []
        while self.waiting:
            # Append before popleft: who begins a task looks at both, and must miss none.
            taken.append(self.waiting[0])
            self.waiting.popleft()
        self.characters = 0
        return taken
