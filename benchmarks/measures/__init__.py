"""
What is measured, by name: the variants, and what measures one.

A variant is what distinguishes the samples of one metric: how many processes, say.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from benchmarks.environment import Environment

from . import drain, latency, submit


class Metric(NamedTuple):
    variants: tuple[str, ...]
    measure: Callable[[Environment, str], dict[str, Any]]


MEASURES = {
    "submit": Metric(("one",), submit.one_by_one),
    "bulk": Metric(("many",), submit.many),
    "drain": Metric(("1", "2", "4"), drain.measure),
    "latency": Metric(("1", "8"), latency.measure),
}
