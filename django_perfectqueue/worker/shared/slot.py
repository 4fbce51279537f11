"""What a processor is doing, where its supervisor can read it even after its death."""

from __future__ import annotations

import mmap
import threading
from typing import NamedTuple

from django_perfectqueue.application.time_limits import TimeLimits

COUNTED = (
    "finished",
    "retried",
    "snoozed",
    "failed",
    "discarded",
    "cancelled",
    "released",
    "preempted",
    "left",
    "crashed",
)
SIGNED_OFF, SEEKING, RUNG, SERVES, CALLED, HOLDER, PID, BEAT, RENEWED = range(9)
FIRST_COUNT = 9
FIRST_SEAT = FIRST_COUNT + len(COUNTED)
TASK, SINCE, KILL_AT, KILL_WAIT, TOLD, TOLD_AT, RETURNED = range(7)
WIDTH = 7
NUMBER = 8
MICROSECONDS = 1_000_000
LONGEST = 1e9
NEVER = 0
NO_LIMITS = TimeLimits()


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
    Memory that one processor writes, and that its supervisor, its helpers and the other
    processors read; these write only that they have rung or called for it, and what the
    janitor does in its stead.

    It costs no system call to write; so it can be written for every task. ``seats`` is how
    many tasks may run at once; each is written by its seat, from 0.
    """

    def __init__(self, seats: int = 1) -> None:
        self.seats = range(FIRST_SEAT, FIRST_SEAT + seats * WIDTH, WIDTH)
        self.page = mmap.mmap(-1, self.seats.stop * NUMBER)
        self.numbers = memoryview(self.page).cast("q")
        self.lock = threading.Lock()
        self.places = {word: place for place, word in enumerate(COUNTED, start=FIRST_COUNT)}

    @property
    def begun(self) -> list[Begun]:
        """The tasks whose handlers are running."""
        rows = (self.numbers[place : place + WIDTH].tolist() for place in self.seats)
        return [
            Begun(row[TASK], row[SINCE] / MICROSECONDS, kill_at(row) / MICROSECONDS)
            for row in rows
            if row[TASK]
        ]

    def overdue(self, now: float) -> list[Begun]:
        """Return the tasks that are to be ended by force by now."""
        return [begun for begun in self.begun if 0.0 < begun.kill_at <= now]

    @property
    def pid(self) -> int:
        """The processor that sits here, or 0."""
        return self.numbers[PID]

    @pid.setter
    def pid(self, pid: int) -> None:
        self.numbers[PID] = pid

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

    @property
    def was_called(self) -> bool:
        """Whether there is news of what it holds."""
        return bool(self.numbers[CALLED])

    @property
    def holder(self) -> int:
        return self.numbers[HOLDER]

    @property
    def beat_at(self) -> float:
        """When its keeper was last at work; while a task runs that is some 20 times a second."""
        return self.numbers[BEAT] / MICROSECONDS

    @property
    def renewed_at(self) -> float:
        """When its leases were last renewed, by whomever; 0.0 for never."""
        return self.numbers[RENEWED] / MICROSECONDS

    @renewed_at.setter
    def renewed_at(self, moment: float) -> None:
        self.numbers[RENEWED] = int(moment * MICROSECONDS)

    def beat(self, now: float) -> None:
        self.numbers[BEAT] = int(now * MICROSECONDS)

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

    def call(self) -> None:
        """Ask it to look what has become of what it holds."""
        self.numbers[CALLED] = 1

    def answer(self) -> None:
        """Begin to look: a call that comes from now on must not be lost."""
        self.numbers[CALLED] = 0

    def sign_on(self, holder: int = 0) -> None:
        for place in range(FIRST_COUNT):
            self.numbers[place] = 0
        self.numbers[HOLDER] = holder
        self.clear()

    def sign_off(self) -> None:
        self.numbers[SIGNED_OFF] = 1

    def begin(
        self, task_id: int, *, since: float, limits: TimeLimits = NO_LIMITS, seat: int = 0
    ) -> None:
        """Tell that a handler begins; the id goes last, for it makes the rest count."""
        numbers, place = self.numbers, self.seats[seat]
        time_limit, wait = limits
        hard = time_limit + wait
        numbers[place + TOLD] = numbers[place + RETURNED] = 0
        numbers[place + SINCE] = int(since * MICROSECONDS)
        numbers[place + KILL_AT] = NEVER if hard > LONGEST else int((since + hard) * MICROSECONDS)
        numbers[place + KILL_WAIT] = -1 if wait > LONGEST else int(wait * MICROSECONDS)
        numbers[place + TASK] = task_id

    def told(self, task_id: int, now: float) -> None:
        """
        Note that a handler was told to end: from the first time on its ``kill_wait`` counts.

        The task is named beside the time, so that this never holds for the one after it.
        """
        for place in self.seats:
            if self.numbers[place + TASK] == task_id != self.numbers[place + TOLD]:
                self.numbers[place + TOLD_AT] = int(now * MICROSECONDS)
                self.numbers[place + TOLD] = task_id

    def returned(self, task_id: int) -> None:
        """Note that a handler has ended, though not all is written: no force is needed."""
        for place in self.seats:
            if self.numbers[place + TASK] == task_id:
                self.numbers[place + RETURNED] = task_id

    def end(self, *, seat: int = 0) -> None:
        self.numbers[self.seats[seat] + TASK] = 0

    def clear(self) -> None:
        """Forget what was begun."""
        for seat in range(len(self.seats)):
            self.end(seat=seat)

    def count(self, word: str, number: int = 1) -> None:
        with self.lock:
            self.numbers[self.places[word]] += number

    def counts(self) -> dict[str, int]:
        return {word: self.numbers[place] for word, place in self.places.items()}

    def close(self) -> None:
        self.numbers.release()
        self.page.close()


def kill_at(row: list[int]) -> int:
    """Return when what sits there is to be ended by force, by its limit or since it was told."""
    task_id = row[TASK]
    if row[RETURNED] == task_id:
        return NEVER
    moments = [row[KILL_AT]]
    if row[TOLD] == task_id and row[KILL_WAIT] >= 0:
        moments.append(row[TOLD_AT] + row[KILL_WAIT])
    return min((moment for moment in moments if moment != NEVER), default=NEVER)
