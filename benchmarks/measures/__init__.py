"""
What is measured, by name: each module has its ``VARIANTS`` and a ``measure()``.

A variant is what distinguishes the samples of one metric: how many processes, say.
"""

from __future__ import annotations

from types import ModuleType

from . import backlog, bulk, counts, drain, latency, snapshot, submit

MEASURES: dict[str, ModuleType] = {
    "submit": submit,
    "bulk": bulk,
    "drain": drain,
    "latency": latency,
    "backlog": backlog,
    "snapshot": snapshot,
    "counts": counts,
}
