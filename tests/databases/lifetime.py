"""Processes and folders that do not outlive the process that made them."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

PREFIX = "pq-"
LOCK = "in-use"
SET_PARENT_DEATH_SIGNAL = 1
REMOVE_SHARED_MEMORY = 0
LONGEST_FOLDER = 80

libc = ctypes.CDLL(None) if sys.platform == "linux" else None


def die_with_parent(signum: int = signal.SIGKILL) -> Callable[[], None]:
    """
    Return a ``preexec_fn`` that has the child signalled when its parent dies.

    The parent, to Linux, is the thread that started the child.
    """
    parent = os.getpid()

    def ask() -> None:
        if libc is not None:
            libc.prctl(SET_PARENT_DEATH_SIGNAL, signum)
        if os.getppid() != parent:
            os._exit(1)

    return ask


def children(pid: int) -> list[int]:
    return [child for child, parent in running() if parent == pid]


def running() -> Iterator[tuple[int, int]]:
    """Yield the id of each live process and of its parent, on systems that have /proc."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            if state != "Z":
                yield int(folder.name), int(parent)


def processes_with(setting: str) -> list[int]:
    """Return the processes that were started with ``NAME=value`` in their environment."""
    found = []
    for pid, _ in running():
        with contextlib.suppress(OSError):
            if setting.encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.append(pid)
    return found


def command_line(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    return ""


def remove_shared_memory(segment: int) -> None:
    if libc is not None:
        libc.shmctl(segment, REMOVE_SHARED_MEMORY, None)


def is_alive(pid: int) -> bool:
    return any(pid == other for other, _ in running())


def make_folder(name: str) -> Path:
    """
    Make a temporary folder, short enough for sockets and open to other users' traversal.

    Folders of processes that were killed before they could tidy up are removed.
    """
    parent = folder_for_sockets()
    remove_abandoned(parent)
    folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{name}-", dir=parent))
    hold(folder)
    return folder


def folder_for_sockets() -> Path:
    wanted = Path(tempfile.gettempdir()).resolve()
    fits = len(str(wanted)) < LONGEST_FOLDER
    open_to_all = all(step.stat().st_mode & 0o001 for step in (wanted, *wanted.parents))
    return wanted if fits and open_to_all else Path("/tmp")


def hold(folder: Path) -> None:
    lock = os.open(folder / LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC)
    fcntl.flock(lock, fcntl.LOCK_EX)
    held[folder] = lock


held: dict[Path, int] = {}


def remove_abandoned(parent: Path) -> None:
    for folder in parent.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            lock = os.open(folder / LOCK, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)


def remove_folder(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(KeyError):
        os.close(held.pop(folder))
