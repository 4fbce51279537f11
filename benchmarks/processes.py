"""Starts processes, and says what they and all that they started use, as Linux reports it."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tests.databases import die_with_parent
from tests.databases.lifetime import running

ROOT = Path(__file__).resolve().parent.parent
TICKS = os.sysconf("SC_CLK_TCK")
TIMES = slice(11, 15)


def start(
    command: Sequence[object], environment: Mapping[str, str], log: Path
) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own, which dies with this one; it writes to the log."""
    with log.open("ab") as out:
        return subprocess.Popen(
            list(map(str, command)),
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
            preexec_fn=die_with_parent(),
        )


def signal_all(pids: Iterable[int], signum: int) -> None:
    """Signal processes that may be gone."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signum)


def family(roots: Iterable[int]) -> set[int]:
    """Return these processes that are alive, and all below them."""
    offspring = defaultdict(list)
    alive = set()
    for pid, parent in running():
        alive.add(pid)
        offspring[parent].append(pid)
    found: set[int] = set()
    waiting = [pid for pid in roots if pid in alive]
    while waiting:
        pid = waiting.pop()
        found.add(pid)
        waiting += offspring[pid]
    return found


def processor_time(roots: Iterable[int]) -> float:
    """Return the seconds of processor time used so far, by those that have ended, too."""
    ticks = 0
    for pid in family(roots):
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, words[TIMES]))
    return ticks / TICKS


def busy() -> float:
    """Return the seconds that all processors have worked so far, for any process; 0 if unknown."""
    figures = Path("/proc/stat")
    if not figures.exists():
        return 0.0
    words = figures.read_text().split("\n", 1)[0].split()[1:]
    user, nice, system, _, _, interrupt, soft, steal = map(int, words[:8])
    return (user + nice + system + interrupt + soft + steal) / TICKS


def memory(roots: Iterable[int]) -> float:
    """Return the MiB in use, each page shared among those that use it (PSS)."""
    return sum(memory_of(pid, "Pss") for pid in family(roots)) / 1024


def memory_of(pid: int, kind: str) -> float:
    """Return the KiB of a process of a kind that the kernel knows; 0 if it has ended."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith(f"{kind}:"):
                return float(line.split()[1])
    return 0.0


def entries(pid: int, kind: str) -> int:
    """Return how many files a process has open ("fd"), or how many threads it has ("task")."""
    with contextlib.suppress(OSError):
        return len(os.listdir(f"/proc/{pid}/{kind}"))
    return 0
