"""What a worker's processes know of the trouble that they have with their database."""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator
from enum import Enum

from django_perfectqueue.store import Ailment

MICROSECONDS = 1_000_000
AGAIN_AFTER = 300.0
LOOK_AFTER = 1.0
SLIP_AFTER = 300.0
LOCK_TRIES, LOCK_PAUSE = 50, 0.002
SINCE, TOLD_AT, WHAT, SLIP_AT, LOOKED_AT, RETURNS = range(6)
FIRST_SLOT = 8
AILMENTS = tuple(Ailment)


class News(Enum):
    """What is to be told of a trouble."""

    BEGUN = "begun"
    CHANGED = "changed"
    KNOWN = "known"


class Outage:
    """
    A page of memory by which one of a worker's processes tells for all of them.

    Made before they are forked. Each way to the database that is in trouble has a slot of
    its own; so the outage ends when the last of them has got through, and the one of a
    process that died meanwhile is counted out. It costs nothing but a look at the page
    while all is well. A lock that its holder can't take along into death guards the rest.
    """

    def __init__(self) -> None:
        self.file = unnamed_file()
        weakref.finalize(self, os.close, self.file)
        os.ftruncate(self.file, mmap.PAGESIZE)
        self.page = mmap.mmap(self.file, mmap.PAGESIZE)
        self.numbers = memoryview(self.page).cast("q")
        self.threads = threading.Lock()

    @property
    def is_on(self) -> bool:
        return bool(self.numbers[SINCE])

    @property
    def returns(self) -> int:
        """How often connections that were made before have had to be given up by all."""
        return self.numbers[RETURNS]

    def renew(self) -> None:
        """Have everyone make a new connection: the old ones lead to where no one should be."""
        with self.locked():
            self.numbers[RETURNS] += 1

    def enter(self, way: int) -> None:
        """Count a way to the database as one in trouble."""
        with self.locked():
            for slot in range(FIRST_SLOT, len(self.numbers)):
                if not self.numbers[slot]:
                    self.numbers[slot] = key_of(way)
                    return

    def note(self, what: Ailment, since: float) -> News:
        """Take note of a trouble that has lasted since then; return what to tell of it."""
        number, now = number_of(what.family), moment()
        with self.locked():
            begun = not self.numbers[SINCE]
            due = now - self.numbers[TOLD_AT] >= AGAIN_AFTER * MICROSECONDS
            if not (begun or due or number != self.numbers[WHAT]):
                return News.KNOWN
            if begun:
                self.numbers[SINCE] = int(since * MICROSECONDS)
            self.numbers[WHAT], self.numbers[TOLD_AT] = number, now
        return News.BEGUN if begun else News.CHANGED

    def leave(self, way: int) -> float | None:
        """Count a way as open again; return how long the outage was, if that has ended it."""
        with self.locked():
            self.vacate(key_of(way))
            return self.end()

    def look(self) -> float | None:
        """
        Return how long the outage was, if there is no one left who has trouble.

        For who got through where others did not, and may since have died; it looks once a
        second at most.
        """
        if moment() - self.numbers[LOOKED_AT] < LOOK_AFTER * MICROSECONDS:
            return None
        with self.locked():
            self.numbers[LOOKED_AT] = moment()
            return self.end()

    def may_tell_slip(self) -> bool:
        """Tell whether a passing failure is worth a line, of which there is one in a while."""
        with self.locked():
            last, now = self.numbers[SLIP_AT], moment()
            if self.numbers[SINCE] or (last and now - last < SLIP_AFTER * MICROSECONDS):
                return False
            self.numbers[SLIP_AT] = now
            return True

    def end(self) -> float | None:
        if not self.numbers[SINCE] or self.has_trouble():
            return None
        if self.numbers[WHAT] == number_of(Ailment.READ_ONLY):
            self.numbers[RETURNS] += 1
        lasted = (moment() - self.numbers[SINCE]) / MICROSECONDS
        # Who was idle all the time has yet to find its connection dead.
        self.numbers[SLIP_AT] = moment()
        self.numbers[SINCE] = self.numbers[WHAT] = 0
        return lasted

    def has_trouble(self) -> bool:
        """Tell whether anyone alive is in trouble; the dead are counted out."""
        found = False
        for slot in range(FIRST_SLOT, len(self.numbers)):
            if key := self.numbers[slot]:
                if lives(key >> 24):
                    found = True
                else:
                    self.numbers[slot] = 0
        return found

    def vacate(self, key: int) -> None:
        for slot in range(FIRST_SLOT, len(self.numbers)):
            if self.numbers[slot] == key:
                self.numbers[slot] = 0

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the page; go on without where someone was stopped in the middle of it."""
        with self.threads:
            for _try in range(LOCK_TRIES):
                try:
                    fcntl.lockf(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except OSError:
                    time.sleep(LOCK_PAUSE)
            try:
                yield
            finally:
                with contextlib.suppress(OSError):
                    fcntl.lockf(self.file, fcntl.LOCK_UN)


def unnamed_file() -> int:
    """Return a file that no other program can open: in memory, where the system has that."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("perfectqueue-outage")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def number_of(what: Ailment) -> int:
    return 1 + AILMENTS.index(what)


def moment() -> int:
    return int(time.monotonic() * MICROSECONDS)


def key_of(way: int) -> int:
    return os.getpid() << 24 | way & 0xFFFFFF


def lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
