"""Tables of what was shared, in Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from benchmarks.database import DATABASES
from benchmarks.report import in_columns, listed, section

SIMULATED = "simulated"
NOTHING = "-"

Record = dict[str, Any]


def tables(samples: Sequence[Record]) -> list[str]:
    return [
        *([by_rule(samples)] if len(unique(samples, "database")) > len(DATABASES) else []),
        *(by_scenario(samples, title, cell) for title, cell in TABLES),
        newcomers(samples),
        *(in_detail(samples, name) for name in unique(samples, "scenario")),
    ]


def unique(records: Iterable[Record], name: str) -> list[Any]:
    return list(dict.fromkeys(record[name] for record in records))


def where(record: Record) -> tuple[str, int]:
    return record["database"], record["processors"]


def head(place: tuple[str, int]) -> str:
    return f"{place[0]}, {place[1]}"


def places(samples: Iterable[Record]) -> list[tuple[str, int]]:
    return list(dict.fromkeys(map(where, samples)))


def by_scenario(samples: Sequence[Record], title: str, cell: Any) -> str:
    """Return a table of scenarios by database and number of processors."""
    there = places(samples)
    rows = []
    for name in unique(samples, "scenario"):
        found = {where(one): cell(one) for one in samples if one["scenario"] == name}
        rows.append([name, *(found.get(place, NOTHING) for place in there)])
    return section(title, [in_columns(["", *map(head, there)], rows)])


def error(record: Record) -> str:
    """Return the share error, marked where it is more than the scenario promises."""
    missed = record["reach"] is not None and record["share_error"] * 100 > record["reach"]
    return f"{record['share_error'] * 100:.2f}" + "**!**" * missed


TABLES = (
    ("Share error, % of all time given", error),
    ("Jain's index of got ÷ entitled", lambda record: f"{record['jain']:.4f}"),
    ("Longest time in which someone had due work and nothing started, ms", lambda r: ms(r["gap"])),
    ("Time used of the processors' time, %", lambda record: f"{record['used'] * 100:.1f}"),
    ("Tasks started, and in how many seconds", lambda r: f"{r['tasks']:,} / {r['seconds']:.1f}"),
)


def by_rule(samples: Sequence[Record]) -> str:
    """Return a table of rules by scenario: share error, time used, wait of light users."""
    names = unique(samples, "scenario")
    rows = []
    for place in places(samples):
        mine = {one["scenario"]: one for one in samples if where(one) == place}
        rows.append([head(place), *(compared(mine[name]) for name in names)])
    heading = "Share error, % / time used, % / wait p95 of light users, ms"
    return f"### {heading}\n\n{in_columns(['', *names], rows)}"


def compared(record: Record) -> str:
    """Light users ask for less than half of an equal share."""
    groups = record["groups"]
    users = sum(group["users"] for group in groups)
    waits = [ms(one["p95"]) for one in groups if one["asked"] / one["users"] < 0.5 / users]
    figures = [f"{record['share_error'] * 100:.1f}", f"{record['used'] * 100:.0f}"]
    return " / ".join(figures + waits[:1])


def newcomers(samples: Sequence[Record]) -> str:
    table = listed([sample for sample in samples if sample["newcomers"]], NEWCOMERS)
    return section("From a newcomer's first submit to its first start", [table])


def started(sample: Record) -> list[float]:
    """Return how long each newcomer that began had waited."""
    return [one["wait"] for one in sample["newcomers"] if one["wait"] is not None]


NEWCOMERS: dict[str, Callable[[Record], Any]] = {
    "": lambda sample: f"{sample['scenario']}, {head(where(sample))}",
    "came": lambda sample: len(sample["newcomers"]),
    "mean ms": lambda sample: ms(statistics.mean(started(sample)) if started(sample) else None),
    "longest ms": lambda sample: ms(max(started(sample), default=None)),
    "never began": lambda sample: len(sample["newcomers"]) - len(started(sample)),
    "longest task, ms": lambda sample: ms(sample["longest"]),
}


def worst(samples: Sequence[Record], name: str) -> Record:
    """Return the run of a scenario with the largest error."""
    mine = [sample for sample in samples if sample["scenario"] == name]
    return max(mine, key=lambda sample: sample["share_error"])


def in_detail(samples: Sequence[Record], name: str) -> str:
    """Return a scenario's groups where the share error was largest."""
    run = worst(samples, name)
    said = " ".join(filter(None, [f"{run['title']}.", run["about"]]))
    seen = f"The run with the largest error: {head(where(run))}."
    return f"### {name}\n\n{said}\n{seen}\n\n{listed(run['groups'], GROUPS)}"


GROUPS: dict[str, Callable[[Record], Any]] = {
    "": lambda group: group["name"],
    "users": lambda group: group["users"],
    "weight": lambda group: f"{group['weight']:g}",
    "cap": lambda group: NOTHING if group["max_running"] is None else group["max_running"],
    "task ms": lambda group: f"{group['task'] * 1000:g}",
    "asked %": lambda group: f"{group['asked'] * 100:.2f}",
    "got %": lambda group: f"{group['got'] * 100:.2f}",
    "largest error %": lambda group: f"{group['share_error'] * 100:.2f}",
    "started": lambda group: f"{group['started']:,}",
    "wait p50 ms": lambda group: ms(group["p50"]),
    "p95 ms": lambda group: ms(group["p95"]),
    "of all": lambda group: ms(group["p95_of_all"]),
    "longest without a start ms": lambda group: ms(group["gap"]),
    "most at once": lambda group: group["at_once"],
}


def ms(seconds: float | None) -> str:
    return NOTHING if seconds is None else f"{seconds * 1000:,.0f}"
