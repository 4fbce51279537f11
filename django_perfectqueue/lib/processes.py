"""Processes and their descendants."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

PROC = Path("/proc")
BOOT_ID = PROC / "sys/kernel/random/boot_id"
PID_NAMESPACE = PROC / "self/ns/pid"
SET_CHILD_SUBREAPER = 36
MARK = "PERFECTQUEUE_HOLDER"


def send(pid: int, signum: int) -> None:
    """Send a signal to a process that may be gone."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signum)


def send_to_group(group: int, signum: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signum)


def halt(pid: int) -> None:
    send(pid, signal.SIGSTOP)


def kill_tree(pid: int) -> None:
    """
    Kill a process and all that it has started, and what these have.

    All are halted first, so that they start no further process.
    """
    halt(pid)
    kill_descendants(pid)
    send_to_group(pid, signal.SIGKILL)
    send(pid, signal.SIGKILL)


def kill_own_tree() -> None:
    """Kill all that this process has started, and then itself with its group."""
    kill_descendants(os.getpid())
    send_to_group(os.getpgrp(), signal.SIGKILL)


def kill_descendants(pid: int) -> None:
    halted: dict[int, None] = {}
    while fresh := [found for found in descendants(pid) if found not in halted]:
        for descendant in fresh:
            halt(descendant)
        halted.update(dict.fromkeys(fresh))
    for descendant in halted:
        send(descendant, signal.SIGKILL)


def terminate_descendants(pid: int) -> None:
    """Ask all that a process has started to end, but not the process."""
    for descendant in descendants(pid):
        send(descendant, signal.SIGTERM)


def adopt_orphans() -> None:
    """
    Become the parent of whatever loses its own below this process, where the system can.

    So it can be found; and it has to be reaped.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def mark(holder: int) -> None:
    """Make this process adopt the orphans among its descendants."""
    os.environ[MARK] = str(holder)


def reap_orphans(known: Iterable[int]) -> None:
    """Reap the dead children of this process but for those that are known."""
    if not hasattr(os, "waitid"):
        return
    with contextlib.suppress(ChildProcessError):
        while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if ended.si_pid in known:
                return
            os.waitpid(ended.si_pid, os.WNOHANG)


def kill_orphans(known: Iterable[int], *, holder: int, pipe: int) -> None:
    """
    Kill the adopted processes that a dead processor has left behind, and their descendants.

    A program that it has started has its mark in its environment, and a process that is a
    mere copy of it has its end of this pipe.
    """
    entry, its_end = f"{MARK}={holder}".encode(), identity(os.fstat(pipe))
    own = os.getpid()
    for pid in [child for child, parent in processes() if parent == own and child not in known]:
        if entry in environment(pid) or its_end in open_files(pid):
            kill_tree(pid)


def kill_marked(entry: str) -> None:
    """Kill every process that has this entry in its environment, with all below it."""
    for pid, _parent in processes():
        if entry.encode() in environment(pid):
            kill_tree(pid)


def environment(pid: int) -> list[bytes]:
    with contextlib.suppress(OSError):
        return (PROC / str(pid) / "environ").read_bytes().split(b"\0")
    return []


def identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def open_files(pid: int) -> set[tuple[int, int]]:
    found = set()
    with contextlib.suppress(OSError):
        for file in os.scandir(PROC / str(pid) / "fd"):
            with contextlib.suppress(OSError):
                found.add(identity(file.stat()))
    return found


def descendants(pid: int) -> list[int]:
    """Return all below a process, the youngest generation first."""
    children: dict[int, list[int]] = {}
    for child, parent in processes():
        children.setdefault(parent, []).append(child)
    found = [pid]
    for parent in found:
        found += children.get(parent, [])
    return found[:0:-1]


def processes() -> list[tuple[int, int]]:
    """Return every process with its parent."""
    if (PROC / "self" / "stat").exists():
        return from_proc()
    listing = subprocess.run(
        ["/bin/ps", "-axo", "pid=,ppid="], capture_output=True, text=True, check=False
    )
    rows = (line.split() for line in listing.stdout.splitlines())
    return [(int(pid), int(parent)) for pid, parent in rows]


def from_proc() -> list[tuple[int, int]]:
    found = []
    for folder in PROC.glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError):
            found.append((int(folder.name), int(stat_of(folder.name)[1])))
    return found


def stat_of(pid: int | str) -> list[str]:
    """Return what Linux says of a process, from its state on."""
    return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()


def pid_space() -> str:
    """
    Return what is the same for processes whose pids can be compared: the boot of the host and
    the pid namespace, of which each container has its own. Empty if unknown.
    """
    with contextlib.suppress(OSError):
        return f"{BOOT_ID.read_text().strip()}/{PID_NAMESPACE.stat().st_ino}"
    return ""


def start_of(pid: int) -> int:
    """
    Return when a process started, in ticks since the host did; 0 if unknown, and -1 if it has
    ended and is not yet reaped.
    """
    try:
        state, *fields = stat_of(pid)
        return -1 if state in "ZX" else int(fields[18])
    except (OSError, ValueError, IndexError):
        return 0


def how_it_ended(code: int) -> str:
    """Return in words how a process has ended; its exit code is negative for a signal."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


def exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def has_ended(pid: int, start: int) -> bool:
    """Return whether a process of this pid space that started then has certainly ended."""
    return not exists(pid) or (start > 0 and start_of(pid) not in (0, start))


def memory_of(pid: int | str) -> int | None:
    """Return how much memory a process takes, its resident set in bytes; None if unknown."""
    try:
        pages = int((PROC / str(pid) / "statm").read_bytes().split()[1])
    except (OSError, IndexError, ValueError):
        return None
    return pages * resource.getpagesize()


def resident() -> int:
    """Return how many bytes of memory this process holds, or where that can't be read, has held."""
    if (size := memory_of("self")) is not None:
        return size
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024
