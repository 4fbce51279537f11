"""The command line of every benchmark: common options, results as they come, and a report."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from benchmarks import machine, plan
from benchmarks.child import leave
from benchmarks.peers import installed
from benchmarks.recorder import EVENTS
from benchmarks.report import put, read
from benchmarks.runner import Runner
from benchmarks.servers import SERVERS, Site
from tests.databases import ServerError, UnavailableError

EPILOG = """
The results are written as they come, one JSON object a line; --report makes tables of them.
docs/reference/benchmarks.md says what is measured.
"""
EVERY = 30.0
GRACE = 15.0
"""Seconds for a run that is asked to end before its time."""
SPARE = 900.0
"""Seconds that a run may take beside what it is asked for: to begin, drain and check."""

Record = dict[str, Any]


class Command(ABC):
    """A kind of measure: ``samples`` yields what it finds, ``report`` makes tables of it."""

    name = ""
    about = ""
    epilog = EPILOG

    @property
    def module(self) -> str:
        return f"benchmarks.{self.name}" if self.name else "benchmarks"

    @property
    def marks(self) -> tuple[str, str]:
        """The lines of a page between which the tables stand."""
        name = self.name or "tables"
        return f"<!-- {name}: begin -->", f"<!-- {name}: end -->"

    def add_options(self, option: Callable[..., Any]) -> None:  # noqa: B027, some have none
        """Add the options that only this command has."""

    @abstractmethod
    def samples(self, options: argparse.Namespace, stack: contextlib.ExitStack) -> Iterator[Record]:
        """Yield records, one of the machine among them; raise ValueError for what cannot be."""

    @abstractmethod
    def report(self, records: Sequence[Record]) -> str:
        """Return the tables of these records."""

    @abstractmethod
    def line(self, record: Record) -> str:
        """Return what is said of a sample when it has been taken."""

    def is_bad(self, record: Record) -> bool:
        """Return whether a sample has failed or found something wrong."""
        return "error" in record

    def main(self, arguments: Sequence[str] | None = None) -> int:
        """Return 0 when samples were taken or read, and none of them is bad."""
        options = self.parsed(arguments)
        try:
            if options.report:
                records = [record for file in options.report for record in read(file)]
            elif installed("django"):
                for signum in (signal.SIGTERM, signal.SIGHUP):
                    signal.signal(signum, leave)
                records = self.taken(options)
            else:
                raise ValueError(
                    f'{sys.executable} has no Django: python -m pip install -e ".[benchmarks]"'
                )
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
        option("--databases", type=names(plan.DATABASES), help="of " + ", ".join(plan.DATABASES))
        self.add_options(option)
        option("--output", type=Path, help="where results go; a file in the temporary folder")
        option("--report", type=Path, nargs="+", metavar="FILE", help="print tables of results")
        option("--page", type=Path, metavar="PAGE", help="replace the tables there")
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
        if options.page:
            put(text, options.page, self.marks)
        else:
            print(text)


class RunCommand(Command):
    """A run of ``child``, a module of this package, on each database, by the terms for it."""

    child = "run"
    databases: Sequence[str] = plan.DATABASES

    @abstractmethod
    def terms(self, options: argparse.Namespace, database: str) -> Record:
        """Return what is to be done; raise ValueError where it cannot be done there."""

    def patience(self, terms: Record) -> float:
        """Return for how many seconds a run may go on."""
        return SPARE

    @abstractmethod
    def summary(self, record: Record) -> str:
        """Return in a line what a run has found."""

    def line(self, record: Record) -> str:
        failed = f"FAILED: {record['error']}" if "error" in record else ""
        return f"{record['database']}: {failed or self.summary(record)}"

    def samples(self, options: argparse.Namespace, stack: contextlib.ExitStack) -> Iterator[Record]:
        terms = {one: self.terms(options, one) for one in options.databases or self.databases}
        sites = started([*terms], stack)
        versions = {database: site.version() for database, site in sites.items()}
        yield {"machine": machine.described(["perfectqueue"], versions, module=self.module)}
        for database, site in sites.items():
            of = terms[database]
            with Runner(patience=self.patience(of)) as runner:
                found = runner.run_module(f"{self.module}.{self.child}", of, site)
            yield {"database": database, "terms": of, **found}


class FaultsCommand(RunCommand):
    """Runs in which the server is restarted and killed: the child has one of its own."""

    def add_options(self, option: Callable[..., Any]) -> None:
        minutes = from_on(0.01, "minutes", most=10_000.0)
        option("--minutes", type=minutes, default=2.0, help="how long, on each; %(default)g")
        option("--seed", type=int, default=1, help="draws what is done and faults; %(default)s")
        option("--at-once", action="store_true", help="all databases at the same time")
        option("--keep", type=Path, metavar="FOLDER", help="keep logs and evidence there")

    def patience(self, terms: Record) -> float:
        return float(terms["seconds"] + terms["drain"] + SPARE)

    def is_bad(self, record: Record) -> bool:
        return "error" in record or bool(record["violations"])

    def samples(self, options: argparse.Namespace, stack: contextlib.ExitStack) -> Iterator[Record]:
        terms = {one: self.terms(options, one) for one in options.databases or self.databases}
        head = machine.described((), {}, module=self.module)
        there = list(filter(can_be_had, terms))
        start: Callable[..., Iterable[Record]] = map
        if options.at_once:
            # It imports logging, which has hooks around each fork: Python ignores an interrupt
            # that comes in one of them. Here only the pool's threads fork, which get none.
            from concurrent.futures import ThreadPoolExecutor

            start = stack.enter_context(ThreadPoolExecutor(max(1, len(there)))).map
        # They are left before the pool, which waits for what they have started.
        runners = {
            one: stack.enter_context(Runner(patience=self.patience(terms[one]))) for one in there
        }

        def run(database: str) -> Record:
            of, runner = terms[database], runners[database]
            say(f"{database}: {of['seconds'] / 60:g} minutes of {self.name}, seed {of['seed']}")
            with runner.room() as folder, telling(database, folder):
                try:
                    module = f"{self.module}.{self.child}"
                    found = runner.run_in(folder, module, of, os.environ, grace=GRACE)
                finally:
                    if options.keep:
                        keep(folder, options.keep / f"{database}-{of['seed']}")
            return {"database": database, "terms": of, **found}

        for record in start(run, there):
            yield record
            head["servers"][record["database"]] = record.get("version", "")
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
    for file in folder.rglob("*"):
        if file.is_file() and file.name != "locks":
            copy = target / file.relative_to(folder)
            copy.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(OSError):
                copy.write_bytes(file.read_bytes())


def can_be_had(database: str) -> bool:
    try:
        SERVERS[database]().require()
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


def failures(records: Sequence[Record]) -> list[str]:
    return [
        f"- {one['database']}: {one['error'].splitlines()[0]}" for one in records if "error" in one
    ]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 on")
    return int(text)


def names(known: Any) -> Callable[[str], list[str]]:
    def split(text: str) -> list[str]:
        given = [name.strip() for name in text.split(",") if name.strip()]
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
