"""What a worker shows of itself on its host, to programs that must not ask the database."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import mmap
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

from django_perfectqueue.conf import scratch_folder
from django_perfectqueue.lib.processes import exists, pid_namespace

from ..process.shared_memory import shared, with_fields
from ..process.wakeup import Wakeup

logger = logging.getLogger("django_perfectqueue.supervisor")

PREFIX = "perfectqueue-worker-"
FORM = 0x5051_0003
ALIVE_FOR = 30.0
LONG_AGO = 1e9
FORGOTTEN_AFTER = 86_400.0
ROOT = 0


@with_fields
class WorkerStatus(ctypes.Structure):
    """
    How a worker stands, as its supervisor and its janitor write it.

    ``port`` is where it answers probes, or 0. ``turned_at`` is when its supervisor last saw
    to its processes, and ``reached_at`` when its janitor last had an answer from the
    database, or 0; by the monotonic clock. A ``leaving`` worker takes no more tasks.
    ``dropped`` is how many lines of its output were dropped, as nobody read them.
    """

    form: int
    supervisor: int
    launcher: int
    port: int
    processors: int
    leaving: bool
    dropped: int
    turned_at: float
    reached_at: float

    @property
    def turned(self) -> float:
        """How many seconds ago its supervisor last saw to its processes."""
        return since(self.turned_at)

    @property
    def reached(self) -> float | None:
        """How many seconds ago the database last answered; None for never."""
        return since(self.reached_at) if self.reached_at else None

    @property
    def is_live(self) -> bool:
        """Whether its supervisor does its work."""
        return self.turned < ALIVE_FOR and exists(self.supervisor)

    @property
    def is_ready(self) -> bool:
        """Whether it takes tasks."""
        reached = self.reached is not None and self.reached < ALIVE_FOR
        return self.is_live and reached and self.processors > 0 and not self.leaving

    def facts(self) -> dict[str, object]:
        """Return it for programs; times are in seconds."""
        return {
            "live": self.is_live,
            "ready": self.is_ready,
            "leaving": self.leaving,
            "processors": self.processors,
            "supervisor": self.supervisor,
            "launcher": self.launcher,
            "dropped_lines": self.dropped,
            "supervisor_seen": round(self.turned, 3),
            "database_seen": None if self.reached is None else round(self.reached, 3),
        }


SIZE = ctypes.sizeof(WorkerStatus)


class StatusPage:
    """
    The status of a worker in shared memory, which costs no system call to write.

    Where there is a folder for it, it is a file, so that other programs of the same user
    can read it. The worker deletes it at its end; that of a killed worker shows its age.
    ``wakeup`` is set once when the worker begins to leave.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.status = self.opened()
        self.wakeup = Wakeup()

    def opened(self) -> WorkerStatus:
        if self.path is not None:
            try:
                remove_old()
                return WorkerStatus.from_buffer(of_file(self.path))
            except OSError as error:
                logger.info("The worker shows nothing to pq_health --live. %s", error)
                self.path = None
        return shared(WorkerStatus)

    def introduce(self, supervisor: int, launcher: int, port: int = 0) -> None:
        """Write whose status it is."""
        status = self.status
        status.supervisor, status.launcher, status.port = supervisor, launcher, port
        self.turn(0)
        # The form goes last: readers skip a page without it.
        status.form = FORM

    def turn(self, processors: int) -> None:
        """Note that the supervisor is at work, and how many processors it has."""
        self.status.turned_at = time.monotonic()
        self.status.processors = processors

    def reach(self) -> None:
        """Note that the database has answered."""
        self.status.reached_at = time.monotonic()

    def leave(self) -> None:
        """Note that the worker takes no more tasks, and set ``wakeup`` once."""
        if not self.status.leaving:
            self.status.leaving = True
            self.wakeup.wake()

    def fileno(self) -> int:
        return self.wakeup.read_fd

    def close(self) -> None:
        """Remove the file."""
        if self.path is not None:
            with contextlib.suppress(OSError):
                self.path.unlink()
        self.wakeup.close()


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


def path_for(pid: int) -> Path:
    """
    Return where a supervisor puts its status page.

    Containers may share the folder, and have the same pids: each sees its own pages. No
    other user can know the name before, and lay something there.
    """
    return folder() / f"{PREFIX}{pid_namespace()}-{pid}-{secrets.token_hex(4)}"


def folder() -> Path:
    return Path(scratch_folder())


def statuses() -> list[WorkerStatus]:
    """Return the status of each worker of this user on this host, of killed ones too."""
    return sorted((status for _path, status in pages()), key=lambda one: one.turned)


def remove_old() -> None:
    """Remove what killed workers have left; of other containers only what is very old."""
    own = {path for path, _status in pages()}
    for path, status in pages(f"{PREFIX}*"):
        gone = not exists(status.supervisor) if path in own else status.turned > FORGOTTEN_AFTER
        if gone:
            with contextlib.suppress(OSError):
                path.unlink()


def pages(pattern: str = "") -> Iterator[tuple[Path, WorkerStatus]]:
    """Yield the pages of this container, or those whose names match the pattern."""
    for path in folder().glob(pattern or f"{PREFIX}{pid_namespace()}-*"):
        with contextlib.suppress(OSError):
            if status := read(path):
                yield path, status


def read(path: Path) -> WorkerStatus | None:
    """Read a page; None where somebody else has put something there."""
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(file, "rb") as opened:
        owner = os.fstat(file).st_uid
        content = opened.read(SIZE)
    if owner not in (os.geteuid(), ROOT) or len(content) != SIZE:
        return None
    status = WorkerStatus.from_buffer_copy(content)
    return status if status.form == FORM else None


def since(moment: float) -> float:
    """Return the seconds since then; one that is to come is from before the host started."""
    seconds = time.monotonic() - moment
    return seconds if seconds >= 0 else LONG_AGO
