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


def die_with_parent(signum: int = signal.SIGKILL, parent: int | None = None) -> Callable[[], None]:
    """
    Return a ``preexec_fn`` that has the child signalled when its parent dies.

    The parent is this process unless it is given. To Linux, it is the thread that started the
    child.
    """
    parent = parent or os.getpid()

    def ask() -> None:
        if libc is not None:
            libc.prctl(SET_PARENT_DEATH_SIGNAL, signum)
        if os.getppid() != parent:
            os._exit(1)

    return ask


def children(pid: int) -> list[int]:
    return [child for child, parent in running() if parent == pid]


def running() -> Iterator[tuple[int, int]]:
    """Yield the id of each live process and of its parent."""
    for pid in processes():
        parent = parent_of(pid)
        if parent is not None:
            yield pid, parent


def processes() -> list[int]:
    """Return the ids of all processes, on systems that have /proc."""
    names = os.listdir("/proc") if os.path.isdir("/proc") else []
    return [int(name) for name in names if name.isdecimal()]


def parent_of(pid: int) -> int | None:
    """Return the parent of a live process, or None when there is none or a zombie."""
    with contextlib.suppress(OSError):
        state, parent = read_about(pid, "stat").rpartition(b")")[2].split()[:2]
        return None if state == b"Z" else int(parent)
    return None


def read_about(pid: int, name: str) -> bytes:
    # Tests ask of every process again and again, so this takes no file object.
    file = os.open(f"/proc/{pid}/{name}", os.O_RDONLY)
    try:
        return b"".join(iter(lambda: os.read(file, 1 << 16), b""))
    finally:
        os.close(file)


def processes_with(setting: str) -> list[int]:
    """Return the processes that were started with ``NAME=value`` in their environment."""
    found = []
    for pid in processes():
        # A zombie has no environment.
        with contextlib.suppress(OSError):
            if setting.encode() in read_about(pid, "environ").split(b"\0"):
                found.append(pid)
    return found


def command_line(pid: int) -> str:
    with contextlib.suppress(OSError):
        return read_about(pid, "cmdline").replace(b"\0", b" ").decode().strip()
    return ""


def remove_shared_memory(segment: int) -> None:
    if libc is not None:
        libc.shmctl(segment, REMOVE_SHARED_MEMORY, None)


def is_alive(pid: int) -> bool:
    return parent_of(pid) is not None


def make_folder(name: str) -> Path:
    """
    Make a temporary folder, short enough for sockets and open to other users' traversal.

    Folders of processes that were killed before they could tidy up are removed.
    """
    parent = folder_for_sockets()
    remove_abandoned(parent)
    # It is held before it has the name by which others find what is abandoned.
    made = Path(tempfile.mkdtemp(prefix=f"new-{PREFIX}{name}-", dir=parent))
    lock = os.open(made / LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC)
    fcntl.flock(lock, fcntl.LOCK_EX)
    folder = made.rename(parent / made.name.removeprefix("new-"))
    held[folder] = lock
    return folder


def folder_for_sockets() -> Path:
    wanted = Path(tempfile.gettempdir()).resolve()
    fits = len(str(wanted)) < LONGEST_FOLDER
    open_to_all = all(step.stat().st_mode & 0o001 for step in (wanted, *wanted.parents))
    return wanted if fits and open_to_all else Path("/tmp")


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
