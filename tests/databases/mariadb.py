from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from .server import DATABASE, Server, UnavailableError, find_programs

PROGRAMS = ("mariadbd", "mariadb-install-db")

TO_COMPILE_THE_DRIVER = "libmariadb-dev pkg-config gcc libc6-dev python3-dev"

FAST = ("--innodb-flush-log-at-trx-commit=0", "--innodb-doublewrite=0")


class MariaDB(Server):
    name = "mariadb"

    @property
    def url(self) -> str:
        return f"mysql://root@/{DATABASE}?unix_socket={self.socket}"

    @property
    def socket(self) -> Path:
        return self.home / "mysql.sock"

    def require(self) -> None:
        if not find_programs(PROGRAMS):
            raise UnavailableError(
                "There are no MariaDB server programs here.",
                remedy=f"apt-get install mariadb-server {TO_COMPILE_THE_DRIVER}",
            )
        if driver() is None:
            raise UnavailableError(
                "There is no MySQLdb driver here, and it must be compiled.",
                remedy=f"apt-get install {TO_COMPILE_THE_DRIVER} (then pip install mysqlclient, "
                "in an environment of your own)",
                on_package_index=True,
            )

    def initialise(self) -> None:
        self.run(
            find_programs(PROGRAMS)["mariadb-install-db"],
            "--no-defaults",
            f"--datadir={self.data}",
            f"--tmpdir={self.home}",
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
        )

    def command(self) -> list[str]:
        return [
            str(find_programs(PROGRAMS)["mariadbd"]),
            "--no-defaults",
            f"--datadir={self.data}",
            # A server that starts deletes what others keep in a folder that they share.
            f"--tmpdir={self.home}",
            f"--socket={self.socket}",
            f"--pid-file={self.home / 'pid'}",
            "--skip-networking",
            "--character-set-server=utf8mb4",
            "--collation-server=utf8mb4_unicode_ci",
            "--max-connections=250",
            *(() if self.durable else FAST),
        ]

    def connect(self, database: str = "") -> Any:
        return driver().connect(unix_socket=str(self.socket), user="root", database=database)

    def create_database(self) -> None:
        with contextlib.closing(self.connect()) as connection:
            connection.cursor().execute(f"CREATE DATABASE {DATABASE}")


def driver() -> Any:
    with contextlib.suppress(ImportError):
        import MySQLdb

        return MySQLdb
    return None
