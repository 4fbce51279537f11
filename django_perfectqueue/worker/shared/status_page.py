"""What a worker shows of itself on its host, to who must not ask the database."""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import secrets
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django_perfectqueue.conf import options

from ..process.wakeup import Bell

logger = logging.getLogger("django_perfectqueue.supervisor")

PREFIX = "perfectqueue-worker-"
PID_SPACE = Path("/proc/self/ns/pid")
FORM = 0x5051_0002
MICROSECONDS = 1_000_000
PLACES = FORM_AT, SUPERVISOR, LAUNCHER, PORT, TURNED, REACHED, SEATED, LEAVING, DROPPED = range(9)
SIZE = len(PLACES) * 8
ALIVE_FOR = 30.0
LONG_AGO = 1e9
FORGOTTEN_AFTER = 86_400.0
ROOT = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """
    How a worker stands.

    ``port`` is where it answers probes, or 0. ``turned`` is how many seconds ago its
    supervisor last saw to its processes, and ``reached`` how long ago its janitor last had
    an answer from the database; None is never. ``seated`` is how many processors it has. A
    ``leaving`` one takes no more tasks. ``dropped`` is how many lines of its output were
    dropped, as nobody read them.
    """

    supervisor: int
    launcher: int
    port: int
    turned: float
    reached: float | None
    seated: int
    leaving: bool
    dropped: int = 0

    @property
    def is_live(self) -> bool:
        """Whether its supervisor does its work."""
        return self.turned < ALIVE_FOR and exists(self.supervisor)

    @property
    def is_ready(self) -> bool:
        """Whether it takes tasks."""
        reached = self.reached is not None and self.reached < ALIVE_FOR
        return self.is_live and reached and self.seated > 0 and not self.leaving

    def facts(self) -> dict[str, Any]:
        """Return it for programs; times are in seconds."""
        return {
            "live": self.is_live,
            "ready": self.is_ready,
            "leaving": self.leaving,
            "processors": self.seated,
            "supervisor": self.supervisor,
            "launcher": self.launcher,
            "dropped_lines": self.dropped,
            "supervisor_seen": round(self.turned, 3),
            "database_seen": None if self.reached is None else round(self.reached, 3),
        }


class Board:
    """
    A page of memory that the supervisor and its janitor write, at no cost.

    Where there is a folder for it, it is a file, so that other programs of the same user
    can read it; it is gone with its worker, and too old where that was killed. Who waits
    for its bell hears that the worker is leaving.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.page = self.opened()
        self.numbers = memoryview(self.page).cast("q")
        self.bell = Bell()

    def opened(self) -> mmap.mmap:
        if self.path is not None:
            try:
                remove_old()
                return of_file(self.path)
            except OSError as error:
                logger.info("The worker shows nothing to pq_health --live. %s", error)
                self.path = None
        return mmap.mmap(-1, SIZE)

    def introduce(self, supervisor: int, launcher: int, port: int = 0) -> None:
        """Tell whose it is."""
        self.numbers[SUPERVISOR], self.numbers[LAUNCHER] = supervisor, launcher
        self.numbers[PORT] = port
        self.turn(0)
        self.numbers[FORM_AT] = FORM

    def turn(self, seated: int) -> None:
        """Say that the supervisor is at work, and how many processors it has."""
        self.numbers[TURNED] = microseconds()
        self.numbers[SEATED] = seated

    def reach(self) -> None:
        """Say that the database has answered."""
        self.numbers[REACHED] = microseconds()

    def drop(self, lines: int) -> None:
        """Say how many lines of output were dropped so far."""
        self.numbers[DROPPED] = lines

    def leave(self) -> None:
        """Say that the worker takes no more tasks, and ring once."""
        if not self.leaving:
            self.numbers[LEAVING] = 1
            self.bell.ring()

    @property
    def leaving(self) -> bool:
        return bool(self.numbers[LEAVING])

    def standing(self) -> Standing:
        return standing(self.numbers)

    def fileno(self) -> int:
        return self.bell.ear

    def close(self) -> None:
        """Take it away."""
        if self.path is not None:
            with contextlib.suppress(OSError):
                self.path.unlink()
        self.numbers.release()
        self.page.close()
        self.bell.close()


def of_file(path: Path) -> mmap.mmap:
    """Map a new file that only this user can read; never one that is there already."""
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.ftruncate(file, SIZE)
        return mmap.mmap(file, SIZE)
    finally:
        os.close(file)


def place_for(pid: int) -> Path:
    """
    Return where a supervisor puts its board.

    Containers may share the folder, and have the same pids: each sees its own boards. No
    other user can know the name before, and lay something there.
    """
    return folder() / f"{PREFIX}{pid_space()}-{pid}-{secrets.token_hex(4)}"


def pid_space() -> int:
    """Return what tells the pids of this container from those of others; 0 if unknown."""
    try:
        return PID_SPACE.stat().st_ino
    except OSError:
        return 0


def folder() -> Path:
    return Path(options().BELL_FOLDER or tempfile.gettempdir())


def standings() -> list[Standing]:
    """Return how each worker of this user stands on this host, those that were killed too."""
    return sorted((shown for _path, shown in boards()), key=lambda one: one.turned)


def remove_old() -> None:
    """Remove what workers have left that were killed; of other containers' what is very old."""
    own = {path for path, _shown in boards()}
    for path, shown in boards(f"{PREFIX}*"):
        gone = not exists(shown.supervisor) if path in own else shown.turned > FORGOTTEN_AFTER
        if gone:
            with contextlib.suppress(OSError):
                path.unlink()


def boards(pattern: str = "") -> Iterator[tuple[Path, Standing]]:
    """Yield the boards of this container, or those whose names are like this."""
    for path in folder().glob(pattern or f"{PREFIX}{pid_space()}-*"):
        with contextlib.suppress(OSError):
            if shown := read(path):
                yield path, shown


def read(path: Path) -> Standing | None:
    """Read a board; None where somebody else has put something there."""
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(file, "rb") as opened:
        owner = os.fstat(file).st_uid
        content = opened.read(SIZE)
    if owner not in (os.geteuid(), ROOT) or len(content) != SIZE:
        return None
    numbers = memoryview(content).cast("q")
    return standing(numbers) if numbers[FORM_AT] == FORM else None


def standing(numbers: memoryview) -> Standing:
    return Standing(
        supervisor=numbers[SUPERVISOR],
        launcher=numbers[LAUNCHER],
        port=numbers[PORT],
        turned=since(numbers[TURNED]),
        reached=since(numbers[REACHED]) if numbers[REACHED] else None,
        seated=numbers[SEATED],
        leaving=bool(numbers[LEAVING]),
        dropped=numbers[DROPPED],
    )


def microseconds() -> int:
    return int(time.monotonic() * MICROSECONDS)


def since(moment: int) -> float:
    """Return the seconds since then; one that is to come is from before the host started."""
    seconds = time.monotonic() - moment / MICROSECONDS
    return seconds if seconds >= 0 else LONG_AGO


def exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
