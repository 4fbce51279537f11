"""The database alone: a loop of a few lines that takes, runs and deletes in batches."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import ClassVar

from benchmarks.database import Target
from benchmarks.workers.raw import TABLE

from .base import NOW, Peer

COLUMNS = {
    "postgresql": "id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,"
    " run_at timestamptz NOT NULL DEFAULT now(), state smallint NOT NULL DEFAULT 0,"
    " holder int, lease_until timestamptz, payload text NOT NULL",
    "mariadb": "id bigint AUTO_INCREMENT PRIMARY KEY,"
    " run_at datetime(6) NOT NULL DEFAULT now(6), state smallint NOT NULL DEFAULT 0,"
    " holder int, lease_until datetime(6), payload text NOT NULL,"
    f" KEY {TABLE}_line (state, run_at, id)",
    "sqlite": "id integer PRIMARY KEY AUTOINCREMENT,"
    " run_at text NOT NULL DEFAULT (datetime('now')), state int NOT NULL DEFAULT 0,"
    " holder int, lease_until text, payload text NOT NULL",
}


class Raw(Peer):
    metrics: ClassVar[tuple[str, ...]] = ("submit", "bulk", "drain", "snapshot", "counts")
    backlogs: ClassVar[tuple[str, ...]] = ("waiting",)

    def __init__(self, target: Target, *, batch: int) -> None:
        super().__init__(target)
        self.batch = batch
        self.size = 1.0 if batch == 1 else 10.0

    def prepare(self) -> None:
        kind = self.target.kind
        self.link.run(f"CREATE TABLE {TABLE} ({COLUMNS[kind]})")
        if kind != "mariadb":
            self.link.run(f"CREATE INDEX {TABLE}_line ON {TABLE} (run_at, id) WHERE state = 0")

    def submit(self, index: int) -> None:
        self.link.run(f"INSERT INTO {TABLE} (payload) VALUES (%s)", str(index))

    def submit_many(self, indexes: Iterable[int]) -> None:
        payloads = [str(index) for index in indexes]
        if self.target.kind == "postgresql":
            sql = f"INSERT INTO {TABLE} (payload) SELECT unnest(%s::text[])"
            self.link.run(sql, payloads)
            return
        with self.link.transaction():
            sql = f"INSERT INTO {TABLE} (payload) VALUES (%s)"
            self.link.many(sql, [(payload,) for payload in payloads])

    def stock(self, kind: str, count: int) -> None:
        self.submit(0)
        self.copy(TABLE, count - 1, {"run_at": NOW[self.target.kind]})

    def workers(self, processes: int) -> list[list[str]]:
        return [[sys.executable, "-m", "benchmarks.workers.raw", str(self.batch)]] * processes

    def pending(self) -> int:
        return int(self.link.value(f"SELECT count(*) FROM {TABLE}"))
