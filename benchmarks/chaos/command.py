"""What the commands have in common that break things while tasks run."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from benchmarks.command import EPILOG, SPARE, Record, RunCommand
from benchmarks.report import listed, section

from .faults.kinds import Fault

NOTHING = "-"
COUNTED = (
    *("workflows", "signals", "in sequences", "debounced", "once"),
    *("tasks", "ticks", "attempts", "ahead", "broken off", "refused", "forgotten"),
)
RUNS: dict[str, Callable[[Record], Any]] = {
    "": lambda run: run["database"],
    "minutes": lambda run: f"{run['seconds'] / 60:.1f}",
    "seed": lambda run: run["terms"]["seed"],
    "violations": lambda run: sum(run["kinds"].values()),
    "faults": lambda run: sum(run["strikes"].values()),
    **{name: lambda run, name=name: f"{run.get(name.replace(' ', '_'), 0):,}" for name in COUNTED},
}


class FaultsCommand(RunCommand):
    """Runs in which anything is killed, the server, too."""

    faults: Mapping[str, Fault]

    @property
    def epilog(self) -> str:  # type: ignore[override]
        lines = (f"  {name:17} {one.about}" for name, one in self.faults.items())
        return "\n".join([EPILOG, *lines])

    def summary(self, record: Record) -> str:
        late = sum(one["late"] for one in record["recoveries"])
        return (
            f"{record['tasks']:,} tasks, {record['attempts']:,} attempts,"
            f" {sum(record['calls'].values()):,} calls, {sum(record['strikes'].values())} faults,"
            f" {len(record['violations'])} violations, {late} late recoveries"
        )

    def tables(self, runs: Sequence[Record]) -> Sequence[str]:
        return [
            "### Runs\n\n" + listed(runs, RUNS) if runs else "",
            recoveries(runs),
            section("Violations", [line for run in runs for line in self.violations(run)]),
            section(
                "What the workers said",
                [f"- {run['database']}: {one}" for run in runs for one in run["said"]],
            ),
        ]

    def violations(self, run: Record) -> Iterator[str]:
        """Yield what was found, and how to have a run again in which something was."""
        yield from (f"- {run['database']}: {one}" for one in run["violations"])
        yield from (f"- of {kind}: {number}" for kind, number in run["kinds"].items())
        if run["violations"]:
            yield f"- Again: `python -m {self.module} {self.again(run)} --keep logs`"

    @abstractmethod
    def again(self, run: Record) -> str:
        """Return the options by which a run is repeated."""

    def patience(self, terms: Record) -> float:
        return float(terms["seconds"] + terms["drain"] + SPARE)

    def wrong(self, record: Record) -> Sequence[str]:
        return record["violations"]


# Tables


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
