"""What the commands have in common that break things while tasks run."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.command import EPILOG, SPARE, Record, RunCommand, say
from benchmarks.report import listed, section
from benchmarks.runner import Runner
from tests.databases import Server, UnavailableError
from tests.databases.environment import SERVERS

from .faults.kinds import Fault
from .terms import EVENTS

EVERY = 30.0
GRACE = 15.0
"""Seconds for a run that is asked to end before its time."""
NOTHING = "-"
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


class FaultsCommand(RunCommand):
    """Runs in which the server is restarted and killed: the child has one of its own."""

    faults: Mapping[str, Fault]

    @property
    def epilog(self) -> str:  # type: ignore[override]
        lines = (f"  {name:17} {one.about}" for name, one in self.faults.items())
        return "\n".join([EPILOG, *lines])

    def server(self, database: str) -> Server:
        """Return what a run needs, unstarted."""
        return SERVERS[database]()

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

    def samples(self, options: argparse.Namespace, stack: contextlib.ExitStack) -> Iterator[Record]:
        terms = {one: self.terms(options, one) for one in options.databases or self.databases}
        head = machine.described((), {}, module=self.module)
        there = [one for one in terms if can_be_had(one, self.server(one))]
        for database in there:
            of = terms[database]
            say(f"{database}: {of['seconds'] / 60:g} minutes of {self.name}, seed {of['seed']}")
            runner = Runner(patience=self.patience(of))
            with runner, runner.room() as folder, telling(database, folder):
                try:
                    found = runner.run_in(folder, self.part, of, os.environ, grace=GRACE)
                finally:
                    if options.keep:
                        keep(folder, options.keep / f"{database}-{of['seed']}")
            head["servers"][database] = found.get("version", "")
            yield {"database": database, "terms": of, **found}
        yield {"machine": head}
        if missing := [one for one in terms if one not in there]:
            raise ValueError(f"There was no run on {', '.join(missing)}.")


@contextlib.contextmanager
def telling(database: str, folder: Path) -> Iterator[None]:
    """Say now and then how far a run is, by how many events and faults it has written down."""
    ended, began = threading.Event(), time.monotonic()

    def tell() -> None:
        while not ended.wait(EVERY):
            events, faults = lines_of(folder, EVENTS), lines_of(folder, "sample.log")
            seconds = time.monotonic() - began
            say(f"{database}: {seconds:.0f} s, {events:,} events, {faults} faults")

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def lines_of(folder: Path, name: str) -> int:
    file = folder / name
    return file.read_bytes().count(b"\n") if file.exists() else 0


def keep(folder: Path, target: Path) -> None:
    """Copy what a run has written: its events, and what it and the workers have said."""
    # Sockets can't be copied, which is said when all else has been.
    with contextlib.suppress(OSError):
        ignored = shutil.ignore_patterns("locks")
        shutil.copytree(folder, target, ignore=ignored, dirs_exist_ok=True)


def can_be_had(database: str, server: Server) -> bool:
    try:
        server.require()
    except UnavailableError as error:
        say(f"{database}: {error}")
        return False
    return True


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
