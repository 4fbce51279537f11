"""The metrics of one worker's processes, which need no database."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector


@dataclass(eq=False)
class ProcessCollector(Collector):
    """
    Collects what the processors of a worker do.

    ``states`` are as in ``Worker.states``: number, memory, counts and tasks of each.
    """

    live: bool
    ready: bool
    states: Sequence[dict[str, Any]]

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("perfectqueue_worker_live", "Whether it works.", float(self.live))
        ready = "Whether it takes tasks."
        yield GaugeMetricFamily("perfectqueue_worker_ready", ready, float(self.ready))
        memory = GaugeMetricFamily(
            "perfectqueue_processor_memory_bytes", "Memory in use.", labels=["processor"]
        )
        busy = GaugeMetricFamily(
            "perfectqueue_processor_tasks", "Tasks whose handlers work.", labels=["processor"]
        )
        ended = CounterMetricFamily(
            "perfectqueue_processor_attempts",
            "Attempts that ended since the worker started, by how.",
            labels=["processor", "ending"],
        )
        for state in self.states:
            number = str(state["number"])
            if state["memory"] is not None:
                memory.add_metric([number], state["memory"])
            busy.add_metric([number], len(state["tasks"]))
            for word, count in state["counts"].items():
                ended.add_metric([number, word], count)
        yield from (memory, busy, ended)
