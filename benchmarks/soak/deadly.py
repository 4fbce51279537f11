"""A table of what deaths have left behind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

NAMES = {
    "processes": "processes of the worker",
    "files": "open files of the supervisor",
    "threads": "threads of the supervisor",
    "memory_kib": "anonymous memory of the supervisor, KiB",
    "folder": "sockets in the folder of NOTIFY",
}
ALLOWED = {"memory_kib": 256.0}
"""What may be more at the end; the allocator keeps some memory that it has had."""


def growing(samples: Sequence[Mapping[str, float]]) -> list[str]:
    """Return the figures that are greater at the end than after the first deaths."""
    first, last = samples[0], samples[-1]
    return [name for name in NAMES if last[name] > first[name] + ALLOWED.get(name, 0.0)]


def report(record: Mapping[str, Any]) -> str:
    """Return a table in Markdown for one database."""
    return "\n".join(rows(record))


def rows(record: Mapping[str, Any]) -> Iterator[str]:
    samples = record["samples"]
    first, last = samples[0], samples[-1]
    begun = ", ".join(f"{cause} {count:,}" for cause, count in record["begun"].items())
    yield (
        f"{record['database']}: {last['deaths']:,.0f} deaths in {record['seconds']:,.0f} s,"
        f" {record['processors']} processors, {record['killed']} more processes killed"
    )
    yield f"Tasks begun: {begun}"
    yield ""
    yield f"| Figure | after {first['deaths']:,.0f} | most | at the end | |"
    yield "| --- | ---: | ---: | ---: | --- |"
    grown = growing(samples)
    for name, label in NAMES.items():
        most = max(sample[name] for sample in samples)
        yield (
            f"| {label} | {first[name]:,.0f} | {most:,.0f} | {last[name]:,.0f}"
            f" | {'grows' if name in grown else 'flat'} |"
        )
