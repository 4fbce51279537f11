"""Where one sample runs: a fresh database, and how each library is configured for it."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from typing import Any

VARIABLE = "BENCHMARK_PLACE"


@dataclass(frozen=True)
class Place:
    """
    ``name`` is the database, or SQLite's file; ``host`` is a socket or the folder it is in.

    ``server`` is the id of the server's first process, 0 where there is none.
    """

    kind: str
    name: str
    host: str = ""
    user: str = ""
    server: int = 0

    @property
    def dsn(self) -> str:
        """PostgreSQL's own words for it."""
        return f"postgresql://{self.user}@/{self.name}?host={self.host}"

    def environment(self) -> dict[str, str]:
        return {VARIABLE: json.dumps(asdict(self))}

    def django(self, *, persistent: bool) -> dict[str, Any]:
        """Return the entry of DATABASES."""
        common = {
            "NAME": self.name,
            "HOST": self.host,
            "USER": self.user,
            "CONN_MAX_AGE": None if persistent else 0,
        }
        if self.kind == "sqlite":
            options = {
                "transaction_mode": "IMMEDIATE",
                "timeout": 20,
                "init_command": "PRAGMA journal_mode=WAL",
            }
            return {**common, "ENGINE": "django.db.backends.sqlite3", "OPTIONS": options}
        engine = {"postgresql": "postgresql", "mariadb": "mysql"}[self.kind]
        return {**common, "ENGINE": f"django.db.backends.{engine}"}


def this_place() -> Place:
    """Return the place that the environment of this process names."""
    return Place(**json.loads(os.environ[VARIABLE]))
