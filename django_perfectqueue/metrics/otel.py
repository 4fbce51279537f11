"""The metrics of a database as instruments of OpenTelemetry, with the extras otel and metrics."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from django.db import connections
from prometheus_client.metrics_core import Metric

from django_perfectqueue.exceptions import ConfigError
from django_perfectqueue.lib.version import __version__
from django_perfectqueue.queue import database

from .families import KeptCollector

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation

PREFIX = "perfectqueue_"
COUNTERS = (
    "attempts_total",
    "submitted_total",
    "run_seconds_count",
    "run_seconds_sum",
    "wait_seconds_count",
    "wait_seconds_sum",
)
GAUGES = (
    "tasks",
    "parked_tasks",
    "oldest_waiting_seconds",
    "workers",
    "processors",
    "paused",
    "unknown_types",
    "late_schedules",
    "failed_last_day",
    "worker_info",
    "limit_running",
    "limit_max_running",
    "limit_paused",
    "scrape_errors",
    "scrape_seconds",
)


def instrument(*, using: str | None = None, provider: MeterProvider | None = None) -> None:
    """
    Make an instrument for each metric; all read one look at the database within five seconds.

    Call it in one process, since the figures are those of all. Raise ConfigError where
    OpenTelemetry is not installed.
    """
    try:
        from opentelemetry import metrics
    except ImportError as error:
        raise ConfigError(
            "Instruments need the package opentelemetry-api:"
            " pip install 'django-perfectqueue[otel]'."
        ) from error
    meter = metrics.get_meter("django_perfectqueue", __version__, provider)
    look = Look(using or database())
    for names, make in (
        (COUNTERS, meter.create_observable_counter),
        (GAUGES, meter.create_observable_gauge),
    ):
        for name in names:
            dotted = f"perfectqueue.{name.removesuffix('_total')}"
            unit = "s" if "seconds" in name and not name.endswith("_count") else "1"
            make(dotted, [look.callback(PREFIX + name)], unit)


class Look:
    """The samples of a database, kept for a moment; readers may ask from any thread."""

    def __init__(self, using: str) -> None:
        self.using = using
        self.lock = threading.Lock()

    def callback(self, name: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(_options: CallbackOptions) -> Iterator[Observation]:
            from opentelemetry.metrics import Observation

            for family in self.families():
                for sample in family.samples:
                    if sample.name == name:
                        yield Observation(sample.value, dict(sample.labels))

        return observe

    def families(self) -> list[Metric]:
        with self.lock:
            found = list(KeptCollector(self.using).collect())
            self.leave()
        return found

    def leave(self) -> None:
        """Close the connection of the thread that exports, which is idle for a minute."""
        if not connections[self.using].in_atomic_block:
            connections[self.using].close()
