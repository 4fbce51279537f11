"""The metrics of a database and of a worker, for prometheus_client, of the extra ``metrics``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import accumulate
from typing import Any

from django.db import Error
from django.db.models import OuterRef, Subquery, TextField, Value
from django.db.models.functions import Concat
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from django_perfectqueue.health.queues import Overview, overview
from django_perfectqueue.models import FAMILY, LIVE, Limit, Meter
from django_perfectqueue.store.arithmetic.entitlement import BOUNDS
from django_perfectqueue.store.records import Tally, UsageKey
from django_perfectqueue.store.records.counts import QUEUES
from django_perfectqueue.store.records.usage import ENDINGS, all_types_key
from django_perfectqueue.store.records.usage_read import totals

TYPES = 400
LIMITS = 100
GROUPS = 20
HOSTS = 100
OTHERS = "(others)"
STATUSES = tuple(word.value for word in LIVE)
# Each second bound of the histograms in the database is one of a metric.
STEP = 2
KEPT_FOR = 5.0

# What was last collected in this process by database, and when.
kept: dict[str, tuple[float, list[Metric]]] = {}


class DatabaseCollector(Collector):
    """
    Collects the metrics of the queues in a database, in twelve statements.

    What can't be read is left out and counted; nothing is raised. There are never more than
    QUEUES queues, TYPES types and LIMITS limits, and no label names a user or a task. All that
    ask within KEPT_FOR seconds get the same.
    """

    def __init__(self, using: str) -> None:
        self.using = using

    def describe(self) -> Iterable[Metric]:
        """Return nothing, so that a registry asks no database when it registers this."""
        return []

    def collect(self) -> Iterator[Metric]:
        made, found = kept.get(self.using, (-KEPT_FOR, []))
        if time.monotonic() - made >= KEPT_FOR:
            # Two threads may collect at once: what the later one found is kept.
            found = list(self.read())
            kept[self.using] = time.monotonic(), found
        yield from found

    def read(self) -> Iterator[Metric]:
        began, errors = time.monotonic(), 0
        found: Overview | None = None
        try:
            found = overview(using=self.using, over=timedelta())
        except Error:
            errors += 1
        parts: list[Callable[[], list[Metric]]] = [lambda: limits(self.using)]
        if found is not None:
            yield from of_queues(found)
            yield from of_workers(found)
            queues = [queue.name for queue in found.queues]
            parts.append(lambda: attempts(queues, self.using))
        for part in parts:
            try:
                yield from part()
            except Error:
                errors += 1
        yield gauge("scrape_errors", "Parts of this scrape that could not be read.", errors)
        seconds = time.monotonic() - began
        yield gauge("scrape_seconds", "How long this scrape took.", seconds)


def gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"perfectqueue_{name}", text, value=value)


def gauges(
    name: str, text: str, labels: Sequence[str], rows: Iterable[tuple[Sequence[str], float]]
) -> Metric:
    family = GaugeMetricFamily(f"perfectqueue_{name}", text, labels=labels)
    for values, value in rows:
        family.add_metric(values, value)
    return family


def of_queues(found: Overview) -> Iterator[Metric]:
    queues = found.queues
    yield gauges(
        "tasks",
        "Tasks that have yet to end, counted up to 10,000; 10,001 is more than that.",
        ["queue", "status"],
        (([queue.name, word], getattr(queue, word)) for queue in queues for word in STATUSES),
    )
    for name, text, attribute in (
        ("parked_tasks", "Scheduled tasks that wait for a worker that knows their type.", "parked"),
        ("oldest_waiting_seconds", "How long the oldest task that may start is due.", "oldest"),
        ("workers", "Workers that serve the queue.", "workers"),
        ("processors", "Processors of these workers.", "processors"),
        ("paused", "Whether the queue is paused.", "paused"),
    ):
        rows = [([queue.name], float(getattr(queue, attribute) or 0)) for queue in queues]
        yield gauges(name, text, ["queue"], rows)
    unknown = [([queue.name], float(len(queue.unknown_types))) for queue in queues]
    yield gauges("unknown_types", "Types that no worker has a handler for.", ["queue"], unknown)
    late = "Schedules that were due a minute ago and have not fired, up to 1,000."
    yield gauge("late_schedules", late, found.late_schedules)
    groups = [(name, count) for name, (count, _at) in found.failed.items()]
    groups.sort(key=lambda group: -group[1])
    rest = sum(count for _name, count in groups[GROUPS:])
    rows = [([name], float(count)) for name, count in [*groups[:GROUPS], (OTHERS, rest)] if count]
    text = "Tasks that failed within a day and were not put back, of the newest 1,000."
    yield gauges("failed_last_day", text, ["group"], rows)


def of_workers(found: Overview) -> Iterator[Metric]:
    known = {(worker.host, worker.version) for worker in found.workers}
    rows = [([*one], 1.0) for one in sorted(known)[:HOSTS]]
    yield gauges("worker_info", "Hosts with a worker.", ["host", "version"], rows)


def attempts(queues: Sequence[str], using: str) -> list[Metric]:
    """Return the counters: they are rows, so they never fall."""
    found = totals(queues, most=QUEUES + TYPES, using=using)
    counter = CounterMetricFamily(
        "perfectqueue_attempts", "Attempts that ended, by how.", labels=["queue", "type", "ending"]
    )
    submitted = CounterMetricFamily(
        "perfectqueue_submitted",
        "Tasks that were submitted; an estimate beyond some 10,000 a minute.",
        labels=["queue"],
    )
    run = histogram("run_seconds", "How long attempts took.")
    wait = histogram("wait_seconds", "How long tasks waited from when they were due.")
    for queue in queues:
        everything = found.get(all_types_key(queue), Tally())
        add_attempts(counter, queue, everything, found)
        submitted.add_metric([queue], everything.submitted)
        add_histogram(run, queue, everything.runs, everything.lasted)
        add_histogram(wait, queue, everything.waits, everything.waited)
    return [counter, submitted, run, wait]


def add_attempts(
    counter: CounterMetricFamily, queue: str, everything: Tally, found: dict[UsageKey, Tally]
) -> None:
    """Add the types that have totals, and the others as the rest of all types."""
    types = {key.type: one for key, one in found.items() if key.queue == queue and not key.others}
    for ending in ENDINGS:
        rest = getattr(everything, ending)
        for type_, tally in types.items():
            rest -= getattr(tally, ending)
            counter.add_metric([queue, type_, ending], getattr(tally, ending))
        if rest > 0:
            counter.add_metric([queue, OTHERS, ending], rest)


def histogram(name: str, text: str) -> HistogramMetricFamily:
    return HistogramMetricFamily(f"perfectqueue_{name}", text, labels=["queue"])


def add_histogram(
    family: HistogramMetricFamily, queue: str, buckets: Sequence[int], total: float
) -> None:
    counts = list(accumulate(buckets))
    bounded = [
        (repr(bound), float(count))
        for bound, count in list(zip(BOUNDS, counts, strict=False))[STEP - 1 :: STEP]
    ]
    family.add_metric([queue], [*bounded, ("+Inf", float(counts[-1]))], sum_value=total)


def limits(using: str) -> list[Metric]:
    """Return the limits of names, queues and types; those of users are as many as users."""
    key = Concat(OuterRef("scope"), Value(":"), OuterRef("name"), output_field=TextField())
    meters = Meter.objects.filter(key=key)
    rows = Limit.objects.using(using).exclude(scope=Limit.Scope.USER).order_by("scope", "name")
    counted: Any = rows.annotate(running=Subquery(meters.values("running")))
    found = counted.values_list("scope", "name", "running", "max_running", "paused")[:LIMITS]
    # What runs in a family is counted by the names of it, of which there may be any number.
    values = [
        ((scope, name), (None if name.endswith(FAMILY) else count or 0, *rest))
        for scope, name, count, *rest in found
    ]
    texts = {
        "running": "Running tasks that count against the limit.",
        "max_running": "How many may run at once.",
        "paused": "Whether the limit lets nothing start.",
    }
    return [
        gauges(
            f"limit_{name}",
            text,
            ["scope", "name"],
            ((key, float(row[number])) for key, row in values if row[number] is not None),
        )
        for number, (name, text) in enumerate(texts.items())
    ]


# The metrics of one worker's processes, which need no database.


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
        yield gauge("worker_live", "Whether it works.", float(self.live))
        yield gauge("worker_ready", "Whether it takes tasks.", float(self.ready))
        states = [([str(state["number"])], state) for state in self.states]
        memory = [(number, state["memory"]) for number, state in states]
        known = [row for row in memory if row[1] is not None]
        yield gauges("processor_memory_bytes", "Memory in use.", ["processor"], known)
        busy = [(number, len(state["tasks"])) for number, state in states]
        yield gauges("processor_tasks", "Tasks whose handlers work.", ["processor"], busy)
        ended = CounterMetricFamily(
            "perfectqueue_processor_attempts",
            "Attempts that ended since the worker started, by how.",
            labels=["processor", "ending"],
        )
        for number, state in states:
            for word, count in state["counts"].items():
                ended.add_metric([*number, word], count)
        yield ended
