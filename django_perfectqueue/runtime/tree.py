"""Processes and their descendants."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path

PROC = Path("/proc")


def send(pid: int, signum: int) -> None:
    """Send a signal to a process that may be gone."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signum)


def send_to_group(group: int, signum: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signum)


def kill_tree(pid: int) -> None:
    """
    Kill a process and all that it has started, and what these have.

    It is halted first, so that it starts nothing more meanwhile.
    """
    send(pid, signal.SIGSTOP)
    for descendant in descendants(pid):
        send(descendant, signal.SIGKILL)
    send_to_group(pid, signal.SIGKILL)
    send(pid, signal.SIGKILL)


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
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            found.append((int(folder.name), int(fields[1])))
    return found


def memory_of(pid: int) -> int | None:
    """Return how much memory a process takes, its resident set in bytes; None if unknown."""
    try:
        pages = (PROC / str(pid) / "statm").read_text().split()[1]
    except (OSError, IndexError):
        return None
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
