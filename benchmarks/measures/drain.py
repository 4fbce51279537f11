"""
Drain a queue that was filled while no worker ran.

The clock runs from when every worker process has run a task until the peer's own table
says that nothing is pending. So starting up is not in it, and the last commit is.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

from benchmarks import tree
from benchmarks.probe import Start
from benchmarks.stand import Stand, Workers

VARIANTS = ("1", "2", "4")
NARROW = 0.3
LOOK = 0.02
ENDING = 30.0


def measure(stand: Stand, variant: str) -> dict[str, Any]:
    processes = int(variant)
    count = stand.size(stand.scale.tasks) * (1 if processes == 1 else 2)
    stand.prepare(processes)
    found = stand.peer.instead("drain", count, processes)
    if found:
        return found
    stand.checkpoint()
    stand.peer.fill(count)
    stand.analyze()
    return drained(stand, processes, count)


def drained(stand: Stand, processes: int, count: int, *, leave: bool = False) -> dict[str, Any]:
    """Run so many tasks; ``leave`` has more waiting, and ends with the last one's start."""
    launched = time.monotonic_ns()
    with stand.workers(processes) as workers:
        stand.wait_for_first(workers)
        wait_for_all(stand, processes, count)
        before = Used(stand, workers)
        capped = not reached(stand, count)
        after = Used(stand, workers)
        pending = 0 if leave or capped else ended(stand)
        last = time.monotonic_ns()
    starts = sorted(stand.probe.read(), key=lambda start: start.at)
    if leave:
        starts = starts[:count]
    if leave or capped:
        last = starts[-1].at
    return {
        "n": count,
        "capped": capped,
        "boot": (starts[0].at - launched) / 1e9,
        **window(starts, processes, last),
        **per_task(before, after),
        "others": others(before, after),
        **({} if leave or capped else checked(starts, count, pending)),
    }


class Used:
    """What had been run and used at one moment."""

    def __init__(self, stand: Stand, workers: Workers) -> None:
        self.tasks = stand.probe.count()
        self.workers = workers.processor_time()
        self.server = stand.server_time()
        self.has_server = bool(stand.place.server)
        self.own = time.process_time()
        self.busy = tree.busy()
        self.at = time.monotonic()


def wait_for_all(stand: Stand, processes: int, count: int) -> None:
    """Wait until each process has run a task, or all tasks are done without some of them."""
    deadline = time.monotonic() + ENDING
    while stand.probe.count() < count and time.monotonic() < deadline:
        stand.probe.read()
        if len(stand.probe.pids) >= processes:
            return
        time.sleep(LOOK)


def reached(stand: Stand, count: int) -> bool:
    deadline = time.monotonic() + stand.scale.cap
    while stand.probe.count() < count:
        if time.monotonic() > deadline:
            return False
        time.sleep(LOOK)
    return True


def ended(stand: Stand) -> int:
    """Wait until nothing is pending; return how many still are when that does not come."""
    deadline = time.monotonic() + ENDING
    while (left := stand.peer.pending()) and time.monotonic() < deadline:
        time.sleep(LOOK / 4)
    return left


def window(starts: list[Start], processes: int, last: int) -> dict[str, Any]:
    """
    Return the rate from when every process had run a task.

    When some came late and less than NARROW of the tasks were left for them, the rate is
    that since the first task, and ``narrow`` says so.
    """
    firsts: dict[int, int] = {}
    for start in starts:
        firsts.setdefault(start.pid, start.at)
    begin = sorted(firsts.values())[:processes][-1]
    inside = sum(start.at > begin for start in starts)
    narrow = len(firsts) < processes or inside < NARROW * len(starts)
    if narrow:
        begin, inside = starts[0].at, len(starts) - 1
    seconds = (last - begin) / 1e9
    return {"rate": inside / seconds, "seconds": seconds, "narrow": narrow}


def per_task(before: Used, after: Used) -> dict[str, float]:
    tasks = after.tasks - before.tasks
    if tasks < 1:
        return {}
    found = {"worker_us": (after.workers - before.workers) / tasks * 1e6}
    if before.has_server:
        found["server_us"] = (after.server - before.server) / tasks * 1e6
    return found


def others(before: Used, after: Used) -> float:
    """Return how many cores worked for others than the benchmark."""
    ours = after.workers - before.workers + after.server - before.server + after.own - before.own
    return max(0.0, (after.busy - before.busy - ours) / (after.at - before.at))


def checked(starts: list[Start], count: int, pending: int) -> dict[str, Any]:
    """Return whether every task ran, and none of them twice."""
    runs = Counter(start.task for start in starts)
    missing = sum(index not in runs for index in range(count))
    repeated = len(starts) - len(runs)
    return {
        "ran": len(starts),
        "missing": missing,
        "repeated": repeated,
        "pending": pending,
        "whole": not missing and not repeated and not pending and len(runs) == count,
    }
