"""The command line: python -m benchmarks.fairness."""

from __future__ import annotations

import argparse
import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.command import Command, Record, count, listed, run, started
from benchmarks.runner import Runner

from . import charts
from .audit import audited
from .report import SIMULATED, head, tables, where
from .rules import OURS, RULES, SHOWN, played
from .scenario import Scenario, find, shipped


class Fairness(Command):
    name = "fairness"
    about = "Measure how fairly processor time is shared between users."

    def add_options(self, option: Callable[..., Any]) -> None:
        option("--scenarios", type=listed, help="files, or of " + ", ".join(shipped()))
        option("--processors", type=counts, default=[1, 4], help="how many at once, in turn; 1,4")
        option("--simulate", action="store_true", help="compute it, without databases and waiting")
        option("--rules", action="store_true", help="compute it by the rules of other queues, too")
        option("--into", type=Path, metavar="FOLDER", help="write the report and its charts there")

    def samples(self, options: argparse.Namespace, stack: contextlib.ExitStack) -> Iterator[Record]:
        names = options.scenarios or list(SHOWN if options.rules else shipped())
        scenarios = find(names)
        computed = options.simulate or options.rules
        sites = {} if computed else started(options.databases, stack)
        versions = {database: site.version() for database, site in sites.items()}
        yield {"machine": machine.described(["perfectqueue"], versions, module=self.module)}
        if computed:
            yield from simulations(options, filter(can_be_simulated, scenarios))
            return
        runner = stack.enter_context(Runner())
        for source, scenario in zip(names, scenarios, strict=True):
            for processors in options.processors:
                for database, site in sites.items():
                    source = str(Path(source).resolve()) if source.endswith(".toml") else source
                    job = {"source": source, "processors": processors}
                    found = runner.run_on(site, "benchmarks.fairness.live:Run.run", job)
                    yield described(scenario, database, processors, found)

    def tables(self, samples: Sequence[Record]) -> Sequence[str]:
        return tables(samples)

    def what(self, record: Record) -> str:
        return f"{record['scenario']}, {head(where(record))}"

    def summary(self, record: Record) -> str:
        return (
            f"error {record['share_error'] * 100:.2f} %, {record['tasks']:,} tasks in"
            f" {record['seconds']:.1f} s"
        )

    def drawn(self, records: Sequence[Record], folder: Path) -> list[Path]:
        return charts.drawn(records, folder)


def counts(text: str) -> list[int]:
    return [count(number) for number in listed(text)]


def can_be_simulated(scenario: Scenario) -> bool:
    """Return whether it has one queue: the simulation is of one."""
    return len(scenario.queues) == 1


def simulations(
    options: argparse.Namespace, scenarios: Iterable[Scenario]
) -> Iterator[dict[str, Any]]:
    import django
    from django.conf import settings

    settings.configure(USE_TZ=True, INSTALLED_APPS=["django_perfectqueue"])
    django.setup()
    from .simulation import simulated

    rules = {SIMULATED: simulated}
    if options.rules:
        rules = {
            **{name: played(choose) for name, choose in RULES.items()},
            OURS: simulated,
            f"{OURS}, HEADROOM = 1": functools.partial(simulated, kept=1),
            f"{OURS}, steps of 1 s": functools.partial(simulated, step=1.0),
        }
    for scenario in scenarios:
        for processors in options.processors:
            for name, compute in rules.items():
                runs, seconds = compute(scenario, processors)
                found = audited(scenario, runs, processors=processors, seconds=seconds)
                yield described(scenario, name, processors, found)


def described(
    scenario: Scenario, database: str, processors: int, found: dict[str, Any]
) -> dict[str, Any]:
    return {
        "scenario": scenario.name,
        "title": scenario.title,
        "about": scenario.about,
        "reach": scenario.reach,
        "database": database,
        "processors": processors,
        **found,
    }


if __name__ == "__main__":
    run(Fairness())
