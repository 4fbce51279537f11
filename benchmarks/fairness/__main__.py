"""The command line: python -m benchmarks.fairness."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from benchmarks import machine, plan
from benchmarks.__main__ import count, lacking, leave, names, say, started, write
from benchmarks.arguments import from_on, new_file
from benchmarks.report import put, read
from benchmarks.runner import Runner
from benchmarks.servers import Site

from . import charts
from .audit import audited
from .live import Job, limited
from .report import MARKS, SIMULATED, report
from .rules import OURS, RULES, played
from .scenario import Scenario, ScenarioError, arrivals, find, shipped

PROCESSORS = [1, 4]
MODULE = "benchmarks.fairness"
EPILOG = """
The results are written as they come, one JSON object a line; --report makes tables of them.
docs/reference/benchmarks.md says what is measured, and how to write a scenario.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    options = parsed(arguments)
    if options.report:
        return show(options)
    for signum in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, leave)
    if lack := lacking():
        say(lack)
        return 1
    options.output = options.output or new_file("fairness")
    try:
        scenarios = chosen(options)
        with options.output.open("w") as file:
            records = taken(options, scenarios, file)
        hand_over(options, records)
    except (ScenarioError, OSError, ValueError) as error:
        say(str(error))
        return 1
    return 1 if len(records) < 2 or any("error" in record for record in records) else 0


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=f"python -m {MODULE}",
        description="Measure how fairly processor time is shared between users.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    option = parser.add_argument
    option("--scenarios", type=listed, help="files, or of " + ", ".join(shipped()))
    option("--databases", type=names(plan.DATABASES), help="of " + ", ".join(plan.DATABASES))
    option("--processors", type=counts, help="how many at once, one after the other; 1,4")
    option("--seconds", type=from_on(0.01, "seconds"), help="end each scenario after so long")
    option("--tasks", type=count, help="end each scenario after so many tasks have started")
    option("--simulate", action="store_true", help="compute it, without databases and waiting")
    option("--rules", action="store_true", help="compute it by the rules of other queues as well")
    option("--output", type=Path, help="where results go; a new file in the temporary folder")
    option("--report", type=Path, nargs="+", metavar="FILE", help="print tables of results")
    option("--into", type=Path, metavar="FOLDER", help="write the report and its charts there")
    option("--page", type=Path, metavar="PAGE", help="replace the tables there")
    return parser.parse_args(arguments)


def listed(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def counts(text: str) -> list[int]:
    return [count(number) for number in listed(text)]


def chosen(options: argparse.Namespace) -> list[Scenario]:
    """Return the scenarios; raise ScenarioError for one that can't be run."""
    options.scenarios = options.scenarios or list(shipped())
    found = list(limited(find(options.scenarios), seconds=options.seconds, tasks=options.tasks))
    for scenario in found:
        arrivals(scenario, max(options.processors or PROCESSORS))
    return found


def taken(
    options: argparse.Namespace, scenarios: Sequence[Scenario], file: TextIO
) -> list[dict[str, Any]]:
    """Run or compute all that is asked for, and write each to the file at once."""
    with contextlib.ExitStack() as stack:
        if options.simulate or options.rules:
            servers, samples = {}, simulations(options, filter(can_be_simulated, scenarios))
        else:
            sites = started(options.databases or plan.DATABASES, stack)
            servers = {database: site.version() for database, site in sites.items()}
            runner = stack.enter_context(Runner())
            samples = measures(options, scenarios, sites, runner)
        records = [{"machine": machine.described(["perfectqueue"], servers, module=MODULE)}]
        write(file, records[0])
        for record in samples:
            write(file, record)
            records.append(record)
            say(reported(record))
    return records


def can_be_simulated(scenario: Scenario) -> bool:
    """Return whether it has one queue: the simulation is of one."""
    return len(scenario.queues) == 1


def simulations(
    options: argparse.Namespace, scenarios: Iterable[Scenario]
) -> Iterator[dict[str, Any]]:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "benchmarks.fairness.settings")
    import django

    django.setup()
    from .simulation import simulated

    rules = {SIMULATED: simulated}
    if options.rules:
        rules = {
            **{name: played(choose) for name, (choose, _whose) in RULES.items()},
            OURS: simulated,
        }
    for scenario in scenarios:
        for processors in options.processors or PROCESSORS:
            for name, compute in rules.items():
                runs, seconds = compute(scenario, processors)
                found = audited(scenario, runs, processors=processors, seconds=seconds)
                yield described(scenario, name, processors, found)


def measures(
    options: argparse.Namespace,
    scenarios: Sequence[Scenario],
    sites: dict[str, Site],
    runner: Runner,
) -> Iterator[dict[str, Any]]:
    for source, scenario in zip(options.scenarios, scenarios, strict=True):
        for processors in options.processors or PROCESSORS:
            for database, site in sites.items():
                source = str(Path(source).resolve()) if source.endswith(".toml") else source
                job = Job(source, database, processors, options.seconds, options.tasks)
                found = runner.run_module(f"{MODULE}.live", job.as_json(), site)
                yield described(scenario, database, processors, found)


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


def reported(record: dict[str, Any]) -> str:
    what = f"{record['scenario']} on {record['database']}, {record['processors']} at once"
    if "error" in record:
        return f"{what}: FAILED: {record['error']}"
    return (
        f"{what}: error {record['share_error'] * 100:.2f} %, {record['tasks']:,} tasks in"
        f" {record['seconds']:.1f} s"
    )


def show(options: argparse.Namespace) -> int:
    try:
        hand_over(options, [record for file in options.report for record in read(file)])
    except (OSError, ValueError) as error:
        say(str(error))
        return 1
    return 0


def hand_over(options: argparse.Namespace, records: Sequence[dict[str, Any]]) -> None:
    """Print the report, or write it where it was asked for, with its charts."""
    text = report(records)
    if options.page:
        put(text, options.page, MARKS)
    if options.into:
        options.into.mkdir(parents=True, exist_ok=True)
        (options.into / "report.md").write_text(f"# Fairness\n\n{text}\n")
        try:
            files = charts.drawn(records, options.into)
            say(f"The report and {len(files)} charts are in {options.into}")
        except ImportError:
            say(charts.MISSING)
    if not (options.page or options.into):
        print(text)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        os.write(2, b"Interrupted; nothing is left running, and what was measured is kept.\n")
        sys.exit(130)
