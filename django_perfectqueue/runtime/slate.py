"""What a processor is doing, where its supervisor can read it even after its death."""

from __future__ import annotations

import mmap

COUNTED = ("finished", "retried", "failed", "cancelled", "released", "preempted", "left")
SEEKING = 2 + len(COUNTED)
RUNG = SEEKING + 1
SERVES = RUNG + 1


class Slate:
    """
    A page of memory that one processor writes, and that its supervisor, the listener and
    the other processors read; these write only that they have rung for it.

    It costs no system call to write; so it can be written for every task.
    """

    def __init__(self) -> None:
        self.page = mmap.mmap(-1, mmap.PAGESIZE)
        self.numbers = memoryview(self.page).cast("q")
        self.places = {word: place for place, word in enumerate(COUNTED, start=2)}

    @property
    def running(self) -> int:
        """The id of the task whose handler is running, or 0."""
        return self.numbers[0]

    @property
    def signed_off(self) -> bool:
        """Whether the processor has left nothing behind; else it was ended by what it ran."""
        return bool(self.numbers[1])

    @property
    def is_free(self) -> bool:
        """Whether it would wake for a task, or is looking for one, and has not been rung."""
        return bool(self.numbers[SEEKING]) and not self.numbers[RUNG]

    @property
    def was_rung(self) -> bool:
        return bool(self.numbers[RUNG])

    def seek(self) -> None:
        """Begin to look for tasks: a ring that comes from now on must not be lost."""
        self.numbers[RUNG] = 0
        self.numbers[SEEKING] = 1

    def rest(self) -> None:
        """Look no more; ``was_rung`` tells whether someone has counted on it."""
        self.numbers[SEEKING] = 0

    @property
    def serves(self) -> bool:
        """Whether the processor has looked for tasks for the first time."""
        return bool(self.numbers[SERVES])

    def serve(self) -> None:
        self.numbers[SERVES] = 1

    def mark_rung(self) -> None:
        self.numbers[RUNG] = 1

    def sign_on(self) -> None:
        for place in (0, 1, SEEKING, RUNG, SERVES):
            self.numbers[place] = 0

    def sign_off(self) -> None:
        self.numbers[1] = 1

    def begin(self, task_id: int) -> None:
        self.numbers[0] = task_id

    def end(self) -> None:
        self.numbers[0] = 0

    def count(self, word: str, number: int = 1) -> None:
        self.numbers[self.places[word]] += number

    def counts(self) -> dict[str, int]:
        return {word: self.numbers[place] for word, place in self.places.items()}

    def close(self) -> None:
        self.numbers.release()
        self.page.close()
