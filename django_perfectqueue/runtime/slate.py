"""What a processor is doing, where its supervisor can read it even after its death."""

from __future__ import annotations

import mmap
from typing import NamedTuple

COUNTED = ("finished", "retried", "failed", "cancelled", "released", "preempted", "left")
SIGNED_OFF, SEEKING, RUNG = range(3)
FIRST_COUNT = 3
FIRST_SEAT = FIRST_COUNT + len(COUNTED)
TASK, SINCE, KILL_AT = range(3)
WIDTH = 3
NUMBER = 8
MICROSECONDS = 1_000_000


class Begun(NamedTuple):
    """
    A task whose handler is running.

    ``since`` is when it began, and ``kill_at`` when it is to be ended by force or 0.0, by
    the monotonic clock, which all processes of a host share.
    """

    task_id: int
    since: float
    kill_at: float


class Slate:
    """
    Memory that one processor writes, and that its supervisor, the listener and the other
    processors read; these write only that they have rung for it.

    It costs no system call to write; so it can be written for every task. ``seats`` is how
    many tasks may run at once; each is written by its seat, from 0.
    """

    def __init__(self, seats: int = 1) -> None:
        self.seats = range(FIRST_SEAT, FIRST_SEAT + seats * WIDTH, WIDTH)
        self.page = mmap.mmap(-1, self.seats.stop * NUMBER)
        self.numbers = memoryview(self.page).cast("q")
        self.places = {word: place for place, word in enumerate(COUNTED, start=FIRST_COUNT)}

    @property
    def begun(self) -> list[Begun]:
        """The tasks whose handlers are running."""
        rows = (self.numbers[place : place + WIDTH] for place in self.seats)
        return [
            Begun(row[TASK], row[SINCE] / MICROSECONDS, row[KILL_AT] / MICROSECONDS)
            for row in rows
            if row[TASK]
        ]

    @property
    def signed_off(self) -> bool:
        """Whether the processor has left nothing behind; else it was ended by what it ran."""
        return bool(self.numbers[SIGNED_OFF])

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

    def mark_rung(self) -> None:
        self.numbers[RUNG] = 1

    def sign_on(self) -> None:
        for place in (SIGNED_OFF, SEEKING, RUNG):
            self.numbers[place] = 0
        self.clear()

    def sign_off(self) -> None:
        self.numbers[SIGNED_OFF] = 1

    def begin(self, task_id: int, *, since: float, kill_at: float = 0.0, seat: int = 0) -> None:
        """Tell that a handler begins; the id goes last, for it makes the rest count."""
        place = self.seats[seat]
        self.numbers[place + SINCE] = int(since * MICROSECONDS)
        self.numbers[place + KILL_AT] = int(kill_at * MICROSECONDS)
        self.numbers[place + TASK] = task_id

    def end(self, *, seat: int = 0) -> None:
        self.numbers[self.seats[seat] + TASK] = 0

    def clear(self) -> None:
        """Forget what was begun."""
        for seat in range(len(self.seats)):
            self.end(seat=seat)

    def count(self, word: str, number: int = 1) -> None:
        self.numbers[self.places[word]] += number

    def counts(self) -> dict[str, int]:
        return {word: self.numbers[place] for word, place in self.places.items()}

    def close(self) -> None:
        self.numbers.release()
        self.page.close()
