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


def halt(pid: int) -> None:
    send(pid, signal.SIGSTOP)


def resume(pid: int) -> None:
    send(pid, signal.SIGCONT)


def kill_tree(pid: int) -> None:
    """
    Kill a process and all that it has started, and what these have.

    All are halted first, so that they start nothing more meanwhile.
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
