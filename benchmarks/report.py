"""Tables of results, in Markdown: medians with their range, and ratios of the same round."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers import OURS

MARKS = (
    ("capped", lambda found: bool(found.get("capped")), "†"),
    ("narrow", lambda found: bool(found.get("narrow")), "*"),
    ("broken", lambda found: found.get("whole") is False, "‡"),
)
LEGEND = (
    "† time ran out before all were done, so this is the rate until then. "
    "* a process had its first task when most were done, so this is the rate since the first. "
    "‡ not every task ran exactly once, or not all were done."
)

DISTURBING = 0.2

Record = dict[str, Any]
Name = tuple[str, str, str, str]
"""A metric, its variant, a database and a peer."""


def read(file: Path) -> list[Record]:
    """
    Return the records of a file; its rounds are not taken for those of another file.

    Raise ValueError when it holds something else.
    """
    try:
        records = [json.loads(line) for line in file.read_text().splitlines() if line.strip()]
        return [{**record, "file": str(file)} for record in records]
    except (ValueError, TypeError):
        raise ValueError(
            f"{file} holds no results of benchmarks, one JSON object a line."
        ) from None


def tables(samples: Sequence[Record]) -> list[str]:
    """Return a table of each metric, and what a reader must know of them."""
    results = Results(samples)
    found = [section(title, [table(results)]) for title, table in SECTIONS]
    return [*found, LEGEND if results.marked() else "", noise(samples)]


def noise(records: Iterable[Record]) -> str:
    """Describe what the machine did beside."""
    cores = [record["others"] for record in records if "others" in record]
    if not cores:
        return ""
    said = f"Cores that worked for other processes while a queue was drained: {spread(cores, 2)}."
    if statistics.median(cores) > DISTURBING:
        said += " **That many disturb: take the figures again on a quiet machine.**"
    return said


class Results:
    """The samples, found by what was measured."""

    def __init__(self, records: Iterable[Record]) -> None:
        self.samples: dict[Name, dict[Any, Record]] = {}
        for record in records:
            name = (record["metric"], record["variant"], record["database"], record["peer"])
            rounds = self.samples.setdefault(name, {})
            rounds[record.get("file"), record["round"]] = record

    def of(self, name: Name) -> dict[Any, Record]:
        """Return the samples by round."""
        return self.samples.get(name, {})

    def names(self, metric: str, place: int) -> list[str]:
        """Return what there is of a metric at a place of the name, in the order measured."""
        return list(dict.fromkeys(name[place] for name in self.samples if name[0] == metric))

    def databases(self, metric: str) -> list[str]:
        return self.names(metric, 2)

    def peers(self, metric: str, database: str) -> list[str]:
        there = [name for name in self.samples if name[0] == metric and name[2] == database]
        return list(dict.fromkeys(name[3] for name in there))

    def rows(self, metric: str, variant: str) -> list[Name]:
        """Return the names of a variant of each peer that was measured, by database."""
        return [
            (metric, variant, database, peer)
            for database in self.databases(metric)
            for peer in self.peers(metric, database)
        ]

    def values(self, name: Name, *path: str) -> list[float]:
        found = [inside(record, path) for record in self.of(name).values()]
        return [value for value in found if value is not None]

    def cell(self, name: Name, *path: str, digits: int = 0) -> str:
        """Return the median and, if there is more than one sample, the range."""
        text = spread(self.values(name, *path), digits)
        return text + self.marks(name) if path == ("rate",) else text

    def ratio(self, above: Name, below: Name, *path: str) -> str:
        """Return the median of the ratios of samples of the same round."""
        first, second = self.of(above), self.of(below)
        pairs = [
            (inside(first[round_], path), inside(second[round_], path))
            for round_ in first
            if round_ in second
        ]
        found = [one / other for one, other in pairs if one is not None and other]
        return f"{statistics.median(found):.2f}" if found else "-"

    def marks(self, name: Name) -> str:
        found = self.of(name).values()
        return "".join(mark for _, holds, mark in MARKS if any(map(holds, found)))

    def marked(self) -> bool:
        return any(self.marks(name) for name in self.samples)


def inside(record: Record, path: Sequence[str]) -> float | None:
    value: Any = record
    for step in path:
        value = value.get(step) if isinstance(value, dict) else None
    return value  # type: ignore[no-any-return]


def percentile(values: Iterable[float], part: float) -> float | None:
    """Return the smallest value that so large a part of them does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)] if ordered else None


def spread(values: Sequence[float], digits: int) -> str:
    if not values:
        return "-"
    middle = f"{statistics.median(values):,.{digits}f}"
    least, most = (f"{value:,.{digits}f}" for value in (min(values), max(values)))
    return middle if least == most else f"{middle} ({least}-{most})"


def in_columns(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table whose first column is text and whose others are figures."""
    if not rows:
        return ""
    rule = ["---"] + ["---:"] * (len(heads) - 1)
    return "\n".join(f"| {' | '.join(row)} |" for row in (heads, rule, *rows))


def listed(records: Iterable[Any], columns: Mapping[str, Callable[[Any], Any]]) -> str:
    """Return a table of records, a row each, by the heads of its columns."""
    rows = [[str(cell(record)) for cell in columns.values()] for record in records]
    return in_columns([*columns], rows)


def section(title: str, lines: Sequence[str]) -> str:
    """Return lines below a heading; nothing where there are none."""
    return "\n".join([f"### {title}\n", *lines]) if any(lines) else ""


def machine(said: Record) -> str:
    servers = ", ".join(f"{name} {version}" for name, version in said["servers"].items())
    packages = ", ".join(f"{name} {version}" for name, version in said["packages"].items())
    return "\n".join(
        [
            f"- Command: `{said['command']}`",
            f"- Begun: {said['started']}",
            f"- Machine: {said['cores']} cores of {said['processor']}, {said['memory_gib']:g} GiB,"
            f" {said['system']}",
            f"- Databases: {servers}",
            f"- Python {said['python']}; {packages}",
        ]
    )


def rates(metric: str, variant: str) -> Any:
    """Return what makes the table of a metric with one rate."""

    def table(results: Results) -> str:
        columns: dict[str, Callable[[Any], str]] = {
            "": lambda name: f"{name[3]} on {name[2]}",
            "tasks/s": lambda name: results.cell(name, "rate"),
            f"{OURS} ÷ it": lambda name: results.ratio((*name[:3], OURS), name, "rate"),
            "client µs": lambda name: results.cell(name, "client_us"),
            "server µs": lambda name: results.cell(name, "server_us"),
        }
        return listed(results.rows(metric, variant), columns)

    return table


def drain(results: Results) -> str:
    variants = sorted(results.names("drain", 1))
    tables = (drain_on(results, one, variants) for one in results.databases("drain"))
    return "\n\n".join(tables)


def drain_on(results: Results, database: str, variants: Sequence[str]) -> str:
    def name(peer: str, variant: str = variants[0]) -> Name:
        return "drain", variant, database, peer

    def ratios(peer: str) -> str:
        pairs = ((name(OURS, variant), name(peer, variant)) for variant in variants)
        return " / ".join(results.ratio(*pair, "rate") for pair in pairs)

    columns: dict[str, Callable[[str], str]] = {f"{database}, tasks/s": str}
    for one in variants:
        head = f"{one} process" + "es" * (one != "1")
        columns[head] = lambda peer, one=one: results.cell(name(peer, one), "rate")
    columns |= {
        f"{OURS} ÷ it": ratios,
        "worker µs": lambda peer: results.cell(name(peer), "worker_us"),
        "server µs": lambda peer: results.cell(name(peer), "server_us"),
        "tasks": lambda peer: results.cell(name(peer), "n").partition(" ")[0],
    }
    return listed(results.peers("drain", database), columns)


def latency(results: Results) -> str:
    names = [
        name
        for one in results.rows("latency", "1")
        for variant in results.names("latency", 1)
        if results.of(name := ("latency", variant, *one[2:]))
    ]
    parts = {"p50 ms": "p50", "p95 ms": "p95", "p99 ms": "p99", "max ms": "max"}
    parts |= {"idle worker %": "worker_idle", "idle server %": "server_idle"}
    columns: dict[str, Callable[[Any], Any]] = {
        "": lambda name: (
            f"{name[3]} on {name[2]}" + (f", {name[1]} processes" if name[1] != "1" else "")
        )
    }
    for head, part in parts.items():
        columns[head] = lambda name, part=part: results.cell(name, part, digits=1)
    columns["memory MiB"] = lambda name: results.cell(name, "memory")
    columns["processes"] = lambda name: results.cell(name, "processes")
    return listed(names, columns)


SECTIONS = (
    ("Submit one by one", rates("submit", "one")),
    ("Submit in bulk", rates("bulk", "many")),
    ("Drain", drain),
    ("Latency and idleness", latency),
)
