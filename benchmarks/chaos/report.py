"""Tables of what was struck, how long it took, and what was found, in Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from benchmarks.command import failures
from benchmarks.report import listed, machine

NOTHING = "-"

Record = dict[str, Any]


def report(module: str, records: Iterable[Record], again: Callable[[Record], str]) -> str:
    """Return everything as Markdown, and how to have a run again in which something was found."""
    records = list(records)
    runs = [record for record in records if "tasks" in record]
    parts = [machine(record["machine"]) for record in records if "machine" in record]
    parts += ["### Runs\n\n" + listed(runs, RUNS) if runs else "", recoveries(runs)]
    if any(run["violations"] for run in runs):
        parts.append("### Violations\n\n" + "\n".join(violations(module, runs, again)))
    if any(run["said"] for run in runs):
        parts.append("### What the workers said\n\n" + "\n".join(said(runs)))
    if failed := failures(records):
        parts.append("### What failed\n\n" + "\n".join(failed))
    return "\n\n".join(filter(None, parts))


PLAYED = ("workflows", "signals", "in sequences", "debounced", "once")
RUNS: dict[str, Callable[[Record], Any]] = {
    "": lambda run: run["database"],
    "minutes": lambda run: f"{run['seconds'] / 60:.1f}",
    "seed": lambda run: run["terms"]["seed"],
    "violations": lambda run: sum(run["kinds"].values()),
    "faults": lambda run: sum(run["strikes"].values()),
    **{
        name: lambda run, name=name: f"{run.get('played', {}).get(name.replace(' ', '_'), 0):,}"
        for name in PLAYED
    },
    **{
        name: lambda run, name=name: f"{run.get(name.replace(' ', '_'), 0):,}"
        for name in ("tasks", "ticks", "attempts", "ahead", "broken off", "refused", "forgotten")
    },
}


def recoveries(runs: Sequence[Record]) -> str:
    """Return a table of faults by run, each with how often, the median and the longest."""
    found = {
        (one["fault"], one["what"], run["database"]): one
        for run in runs
        for one in run["recoveries"]
    }
    columns: dict[str, Callable[[Any], str]] = {
        "Fault: until": ": ".join,
        "bound, s": lambda name: next(
            (f"{one['bound']:g}" for key, one in found.items() if key[:2] == name and one["bound"]),
            NOTHING,
        ),
    }
    for run in runs:
        place = run["database"]
        columns[place] = lambda name, place=place: cell(found.get((*name, place)))
    table = listed(dict.fromkeys(key[:2] for key in found), columns)
    if not table:
        return ""
    legend = "Each cell: how often struck; median and longest recovery in seconds."
    return f"### Recovery\n\n{legend}\n\n{table}"


def cell(one: Record | None) -> str:
    if one is None:
        return NOTHING
    if one["p50"] is None:
        return f"{one['struck']}; {NOTHING}"
    late = f" **{one['late']} late**" if one["late"] else ""
    return f"{one['struck']}; {one['p50']:.2f}, {one['max']:.2f}{late}"


def violations(
    module: str, runs: Sequence[Record], again: Callable[[Record], str]
) -> Iterable[str]:
    for run in runs:
        yield from (f"- {run['database']}: {one}" for one in run["violations"])
        yield from (f"- of {kind}: {number}" for kind, number in run["kinds"].items())
        yield f"- Again: `python -m {module} {again(run)} --keep logs`"


def said(runs: Sequence[Record]) -> Iterable[str]:
    for run in runs:
        yield from (f"- {run['database']}: {one}" for one in run["said"])
