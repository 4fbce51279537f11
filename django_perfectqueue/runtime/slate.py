"""What a processor is doing, where its supervisor can read it even after its death."""

from __future__ import annotations

import mmap

COUNTED = ("finished", "retried", "failed", "cancelled", "released", "preempted", "left")


class Slate:
    """
    A page of memory that one processor writes and its supervisor reads.

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

    def sign_on(self) -> None:
        self.numbers[0] = self.numbers[1] = 0

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
