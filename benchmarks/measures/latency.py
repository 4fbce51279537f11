"""From just before a submit to the first line of the task, while the worker is idle."""

from __future__ import annotations

import random
import time
from typing import Any

from benchmarks import processes
from benchmarks.environment import Environment
from benchmarks.report import percentile

COUNT = 200
IDLE = 5.0
REST = 1.5
SHORTEST, LONGEST = 0.02, 0.05
WARM_UP = -1


def measure(environment: Environment, variant: str) -> dict[str, Any]:
    environment.prepare(int(variant))
    with environment.workers(int(variant)) as workers:
        environment.peer.submit(WARM_UP)
        environment.wait_for_first(workers)
        time.sleep(REST)
        memory = processes.memory(workers.pids)
        count = len(processes.family(workers.pids))
        used, server, began = workers.processor_time(), environment.server_time(), time.monotonic()
        time.sleep(IDLE)
        idle = time.monotonic() - began
        worker_idle = (workers.processor_time() - used) / idle * 100
        server_idle = (environment.server_time() - server) / idle * 100
        sent = submitted(environment)
        expected = COUNT + 1
        environment.wait_for(lambda: environment.probe.count() >= expected, 60, "The last task")
    began_at = {start.task: start.at for start in environment.probe.read()}
    waits = [(began_at[index] - at) / 1e6 for index, at in sent.items()]
    return {
        "n": len(waits),
        **{f"p{part}": percentile(waits, part / 100) for part in (50, 95, 99)},
        "max": max(waits),
        "memory": memory,
        "processes": count,
        "worker_idle": worker_idle,
        "server_idle": server_idle,
        "repeated": environment.probe.count() - expected,
        "whole": environment.probe.count() == expected,
    }


def submitted(environment: Environment) -> dict[int, int]:
    pauses = random.Random(1)
    sent = {}
    for index in range(COUNT):
        time.sleep(pauses.uniform(SHORTEST, LONGEST))
        sent[index] = time.monotonic_ns()
        environment.peer.submit(index)
    return sent
