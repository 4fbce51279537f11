"""The command line of every benchmark: common options, results as they come, and a report."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from benchmarks import machine, report
from benchmarks.database import DATABASES
from benchmarks.runner import Runner, leave
from benchmarks.servers import Site
from tests.databases import Server, ServerError, UnavailableError
from tests.databases.environment import SERVERS

EPILOG = """
The results are written as they come, one JSON object a line; --report makes tables of them.
docs/reference/benchmarks.md says what is measured.
"""
MISSING = (
    'No charts: matplotlib is not installed. python -m pip install -e ".[benchmarks]" brings it.'
)
GRACE = 15.0
"""Seconds for a run that is asked to end before its time."""
SPARE = 900.0
"""Seconds that a run may take beside what it is asked for: to begin, drain and check."""

COMMON = ("databases", "output", "report")
"""The options of every command, which are no terms of a run."""

Record = dict[str, Any]


class Command(ABC):
    """A kind of measure: ``samples`` yields what it finds, ``report`` makes tables of it."""

    name = ""
    about = ""
    epilog = EPILOG

    @property
    def module(self) -> str:
        return f"benchmarks.{self.name}" if self.name else "benchmarks"

    def add_options(self, option: Callable[..., Any]) -> None:  # noqa: B027, some have none
        """Add the options that only this command has."""

    @abstractmethod
    def samples(self, options: argparse.Namespace, stack: contextlib.ExitStack) -> Iterator[Record]:
        """Yield records, one of the machine among them; raise ValueError for what cannot be."""

    @abstractmethod
    def what(self, record: Record) -> str:
        """Return which sample it is."""

    @abstractmethod
    def summary(self, record: Record) -> str:
        """Return in a line what a sample has found that has not failed."""

    @abstractmethod
    def tables(self, samples: Sequence[Record]) -> Sequence[str]:
        """Return the tables of these samples, none of which has failed."""

    def line(self, record: Record) -> str:
        """Return what is said of a sample when it has been taken."""
        failed = f"FAILED: {record['error']}" if "error" in record else ""
        return f"{self.what(record)}: {failed or self.summary(record)}"

    def report(self, records: Sequence[Record]) -> str:
        """Return all about these records: on what they were taken, tables, and what failed."""
        heads = [report.machine(record["machine"]) for record in records if "machine" in record]
        samples = [one for one in records if "machine" not in one and "error" not in one]
        failed = [
            f"- {self.what(one)}: {one['error'].splitlines()[0]}"
            for one in records
            if "error" in one
        ]
        parts = [*heads, *self.tables(samples), report.section("What failed", failed)]
        return "\n\n".join(filter(None, parts))

    def is_bad(self, record: Record) -> bool:
        """Return whether a sample has failed or found something wrong."""
        return "error" in record

    def main(self, arguments: Sequence[str] | None = None) -> int:
        """Return 0 when samples were taken or read, and none of them is bad."""
        options = self.parsed(arguments)
        try:
            if options.report:
                records = [record for file in options.report for record in report.read(file)]
            else:
                for signum in (signal.SIGTERM, signal.SIGHUP):
                    signal.signal(signum, leave)
                records = self.taken(options)
            self.hand_over(options, records)
        except (OSError, ValueError) as error:
            say(str(error))
            return 1
        samples = [record for record in records if "machine" not in record]
        return int(not samples or any(map(self.is_bad, samples)))

    def parsed(self, arguments: Sequence[str] | None) -> argparse.Namespace:
        parser = argparse.ArgumentParser(
            prog=f"python -m {self.module}",
            description=self.about,
            epilog=self.epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        option = parser.add_argument
        known = ", ".join(DATABASES)
        option("--databases", type=names(DATABASES), default=DATABASES, help=f"of {known}")
        self.add_options(option)
        option("--output", type=Path, help="where results go; a file in the temporary folder")
        option("--report", type=Path, nargs="+", metavar="FILE", help="print tables of results")
        return parser.parse_args(arguments)

    def taken(self, options: argparse.Namespace) -> list[Record]:
        """Take all samples, and write each to the file at once."""
        named = f"{self.name or 'benchmarks'}-{time.strftime('%Y-%m-%d-%H%M%S')}.jsonl"
        options.output = options.output or Path(tempfile.gettempdir()) / named
        records = []
        with contextlib.ExitStack() as stack:
            try:
                file = stack.enter_context(options.output.open("w"))
            except OSError as error:
                raise ValueError(f"The results can't be written: {error}") from error
            for record in self.samples(options, stack):
                file.write(json.dumps(record) + "\n")
                file.flush()
                records.append(record)
                if "machine" not in record:
                    say(self.line(record))
        return records

    def hand_over(self, options: argparse.Namespace, records: Sequence[Record]) -> None:
        text = self.report(records)
        print(text)
        if into := getattr(options, "into", None):
            into.mkdir(parents=True, exist_ok=True)
            (into / "report.md").write_text(f"# {self.name.capitalize()}\n\n{text}\n")
            try:
                files = self.drawn(records, into)
                say(f"The report and {len(files)} pictures are in {into}")
            except ImportError:
                say(MISSING)

    def drawn(self, records: Sequence[Record], folder: Path) -> list[Path]:
        """Draw what is asked for with --into; raise ImportError without matplotlib."""
        return []


class RunCommand(Command):
    """A run of ``part``, spelled MODULE:NAME, on each database, by the terms for it."""

    part = ""

    def terms(self, options: argparse.Namespace, database: str) -> Record:
        """Return what is to be done; raise ValueError where it cannot be done there."""
        return {name: value for name, value in vars(options).items() if name not in COMMON}

    def patience(self, terms: Record) -> float:
        """Return for how many seconds a run may go on."""
        return SPARE

    def what(self, record: Record) -> str:
        return str(record["database"])

    def summary(self, record: Record) -> str:
        return f"wrong: {', '.join(self.wrong(record)) or 'nothing'}"

    @abstractmethod
    def wrong(self, record: Record) -> Sequence[str]:
        """Return what a run has found that must not be."""

    def tables(self, samples: Sequence[Record]) -> Sequence[str]:
        return list(map(self.table, samples))

    def table(self, run: Record) -> str:
        """Return what a run has found, where each has tables of its own."""
        raise NotImplementedError

    def is_bad(self, record: Record) -> bool:
        return super().is_bad(record) or bool(self.wrong(record))

    def server(self, database: str) -> Server:
        """Return what a run needs, unstarted: it has a server of its own, which may be killed."""
        return SERVERS[database]()

    def samples(self, options: argparse.Namespace, stack: contextlib.ExitStack) -> Iterator[Record]:
        terms = {one: {"database": one, **self.terms(options, one)} for one in options.databases}
        head = machine.described(["perfectqueue"], {}, module=self.module)
        there = [one for one in terms if can_be_had(one, self.server(one))]
        for database in there:
            of = terms[database]
            patience = self.patience(of)
            say(f"{database}: it ends within {patience:,.0f} s")
            with Runner(patience=patience) as runner, runner.room() as folder:
                try:
                    found = runner.run_in(folder, self.part, of, os.environ, grace=GRACE)
                finally:
                    if into := getattr(options, "keep", None):
                        keep(folder, into / f"{database}-{of['seed']}")
            head["servers"][database] = found.get("version", "")
            yield {"database": database, "terms": of, **found}
        yield {"machine": head}
        if missing := [one for one in terms if one not in there]:
            raise ValueError(f"There was no run on {', '.join(missing)}.")


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


def started(databases: Sequence[str], stack: contextlib.ExitStack) -> dict[str, Site]:
    """Start a server of each kind that can be had; say what the others lack."""
    sites = {}
    for database in databases:
        try:
            sites[database] = stack.enter_context(Site(database))
        except (UnavailableError, ServerError) as error:
            say(f"{database}: {error}")
    return sites


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 on")
    return int(text)


def listed(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def names(known: Any) -> Callable[[str], list[str]]:
    def split(text: str) -> list[str]:
        given = listed(text)
        for name in given:
            if name not in known:
                there = ", ".join(known)
                raise argparse.ArgumentTypeError(f"there is no {name!r}; there are {there}")
        return given

    return split


def from_on(least: float, unit: str, *, most: float = float("inf")) -> Callable[[str], float]:
    """Return the type of an option that is so many seconds, say, or more."""

    def number(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not least <= value <= most or value == float("inf"):
            raise argparse.ArgumentTypeError(f"{text!r} is no number of {unit} from {least:g} on")
        return value

    return number


def run(command: Command) -> NoReturn:
    """End this process with what a command comes to; where it is interrupted, it says so."""
    try:
        sys.exit(command.main())
    except KeyboardInterrupt:
        os.write(2, b"Interrupted; nothing is left running, and what was measured is kept.\n")
        sys.exit(130)
