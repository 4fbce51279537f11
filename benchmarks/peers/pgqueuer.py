"""pgqueuer: ``pgq run`` with asyncpg, submitting with psycopg; batches of 10 by default."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable

from benchmarks.database import Target

from .base import Peer, script


class PgQueuer(Peer):
    databases = ("postgresql",)
    packages = ("pgqueuer", "asyncpg", "psycopg", "typer")
    metrics = ("submit", "bulk", "drain", "snapshot", "latency", "counts")
    table = "pgqueuer"
    rows = {"waiting": {"execute_after": "{now}"}, "scheduled": {"execute_after": "{tomorrow}"}}
    size = 4.0

    def __init__(self, target: Target, *, batch: int | None = None) -> None:
        super().__init__(target)
        self.options = [] if batch is None else ["--batch-size", batch]

    def prepare(self) -> None:
        install = script("pgq", "--pg-dsn", self.target.dsn, "install")
        subprocess.run(install, check=True, stdout=subprocess.DEVNULL)
        import psycopg
        from pgqueuer.db import SyncPsycopgDriver
        from pgqueuer.queries import SyncQueries

        connection = psycopg.connect(self.target.dsn, autocommit=True)
        self.queries = SyncQueries(SyncPsycopgDriver(connection))

    def submit(self, index: int) -> None:
        self.queries.enqueue("noop", b"%d" % index)

    def submit_many(self, indexes: Iterable[int]) -> None:
        payloads: list[bytes | None] = [b"%d" % index for index in indexes]
        self.queries.enqueue(["noop"] * len(payloads), payloads, [0] * len(payloads))

    def workers(self, processes: int) -> list[list[str]]:
        main = "benchmarks.workers.pgqueuer:main"
        return [script("pgq", "run", *self.options, main)] * processes
