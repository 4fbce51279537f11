"""From just before a submit to the first line of the task, while the worker is idle."""

from __future__ import annotations

import math
import random
import time
from typing import Any

from benchmarks.stand import Stand

VARIANTS = ("1", "8")
REST = 1.5
SHORTEST, LONGEST = 0.02, 0.05
WARM_UP = -1


def measure(stand: Stand, variant: str) -> dict[str, Any]:
    processes = int(variant)
    stand.prepare(processes)
    with stand.workers(processes) as workers:
        stand.peer.submit(WARM_UP)
        stand.wait_for_first(workers)
        time.sleep(REST)
        memory = workers.memory()
        count = workers.count()
        used, server, began = workers.processor_time(), stand.server_time(), time.monotonic()
        time.sleep(stand.scale.idle)
        idle = time.monotonic() - began
        worker_idle = (workers.processor_time() - used) / idle * 100
        server_idle = (stand.server_time() - server) / idle * 100
        sent = submitted(stand)
        expected = stand.scale.latencies + 1
        stand.wait_for(lambda: stand.probe.count() >= expected, 60, "The last task")
    began_at = {start.task: start.at for start in stand.probe.read()}
    waits = sorted((began_at[index] - at) / 1e6 for index, at in sent.items())
    return {
        "n": len(waits),
        **{f"p{part}": percentile(waits, part) for part in (50, 95, 99)},
        "max": waits[-1],
        "memory": memory,
        "processes": count,
        "worker_idle": worker_idle,
        "server_idle": server_idle,
        "repeated": stand.probe.count() - expected,
        "whole": stand.probe.count() == expected,
    }


def submitted(stand: Stand) -> dict[int, int]:
    pauses = random.Random(1)
    sent = {}
    for index in range(stand.scale.latencies):
        time.sleep(pauses.uniform(SHORTEST, LONGEST))
        sent[index] = time.monotonic_ns()
        stand.peer.submit(index)
    return sent


def percentile(ordered: list[float], part: int) -> float:
    return ordered[max(0, math.ceil(len(ordered) * part / 100) - 1)]
