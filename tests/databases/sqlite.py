from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from .server import DATABASE, Server


class SQLite(Server):
    """A database file with a server's interface. There is no process: stop and kill do nothing."""

    name = "sqlite"

    @property
    def url(self) -> str:
        return f"sqlite:///{self.file}"

    @property
    def file(self) -> Path:
        return self.home / f"{DATABASE}.sqlite3"

    def require(self) -> None:
        pass

    def initialise(self) -> None:
        pass

    def give_away(self) -> None:
        pass

    def launch(self) -> None:
        pass

    def create_database(self) -> None:
        self.connect().close()

    def connect(self, database: str = "") -> Any:
        return sqlite3.connect(self.file)
