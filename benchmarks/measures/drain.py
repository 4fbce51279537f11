"""
Drain a queue that was filled while no worker ran.

The clock runs from when every worker process has run a task until the peer's own table
says that nothing is pending. So starting up is not in it, and the last commit is.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

from benchmarks import processes
from benchmarks.environment import Environment, Workers, holds
from benchmarks.probe import Start

NARROW = 0.3
LOOK = 0.02
ENDING = 30.0
CAP = 60.0
"""How many seconds a drain may take: what is not done then is left, and that is said."""


def measure(environment: Environment, variant: str) -> dict[str, Any]:
    processes = int(variant)
    count = max(1, round(environment.tasks * environment.peer.size)) * min(processes, 2)
    environment.prepare(processes)
    environment.checkpoint()
    environment.peer.submit_many(range(count))
    environment.analyze()
    with environment.workers(processes) as workers:
        environment.wait_for_first(workers)
        wait_for_all(environment, processes, count)
        before = Used(environment, workers)
        capped = not holds(lambda: environment.probe.count() >= count, CAP, LOOK)
        after = Used(environment, workers)
        pending = 0 if capped else ended(environment)
        last = time.monotonic_ns()
    starts = sorted(environment.probe.read(), key=lambda start: start.at)
    if capped:
        last = starts[-1].at
    return {
        "n": count,
        "capped": capped,
        **window(starts, processes, last),
        **per_task(before, after),
        "others": others(before, after),
        **({} if capped else checked(starts, count, pending)),
    }


class Used:
    """What had been run and used at one moment."""

    def __init__(self, environment: Environment, workers: Workers) -> None:
        self.tasks = environment.probe.count()
        self.workers = workers.processor_time()
        self.server = environment.server_time()
        self.has_server = bool(environment.target.server)
        self.own = time.process_time()
        self.busy = processes.busy()
        self.at = time.monotonic()


def wait_for_all(environment: Environment, processes: int, count: int) -> None:
    """Wait until each process has run a task, or all tasks are done without some of them."""
    probe = environment.probe

    def begun() -> bool:
        return probe.count() >= count or (bool(probe.read()) and len(probe.pids) >= processes)

    holds(begun, ENDING, LOOK)


def ended(environment: Environment) -> int:
    """Wait until nothing is pending; return how many still are when that does not come."""
    pending = environment.peer.pending
    return 0 if holds(lambda: not pending(), ENDING, LOOK / 4) else pending()


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
