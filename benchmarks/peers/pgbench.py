"""The floor on PostgreSQL: its own load generator, with the least that a queue has to do."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

from benchmarks.database import Target
from benchmarks.processes import processor_time
from tests.databases.postgresql import packaged_folders
from tests.databases.server import find_programs

from .raw import TABLE, Raw

INSERT = f"INSERT INTO {TABLE} (payload) VALUES ('0');\n"
TAKE_AND_DELETE = f"""
WITH taken AS (
    UPDATE {TABLE} SET state = 1, holder = :client_id, lease_until = now() + interval '5 min'
    WHERE id = (
        SELECT id FROM {TABLE} WHERE state = 0 AND run_at <= now()
        ORDER BY run_at, id LIMIT 1 FOR UPDATE SKIP LOCKED
    )
    RETURNING id
)
SELECT coalesce(min(id), 0) AS id FROM taken \\gset
DELETE FROM {TABLE} WHERE id = :id;
"""
RATE = re.compile(r"tps = ([\d.]+)")


class PgBench(Raw):
    """
    ``submit`` inserts a row and commits. ``drain`` marks a row and commits, deletes it and
    commits, with one client where others have one process.
    """

    databases = ("postgresql",)
    metrics = ("submit", "drain")
    rows = {}

    def __init__(self, target: Target) -> None:
        super().__init__(target, batch=1)
        self.size = 2.0

    @classmethod
    def lacks(cls) -> str:
        if program() is None:
            return "not installed: apt-get install postgresql (pgbench comes with it)"
        return ""

    def instead(self, metric: str, count: int, processes: int) -> dict[str, Any]:
        if metric == "submit":
            return self.bench(INSERT, count, 1)
        self.link.run("CHECKPOINT")
        self.fill(count)
        self.link.run(f"ANALYZE {TABLE}")
        result = self.bench(TAKE_AND_DELETE, count, processes)
        left = self.pending()
        return {**result, "ran": count - left, "whole": left == 0, "pending": left}

    def bench(self, script: str, count: int, clients: int) -> dict[str, Any]:
        each = count // clients
        before = processor_time([self.target.server])
        done = subprocess.run(
            [
                *(str(program()), "-n", "-M", "prepared", "-f", "-"),
                *("-h", self.target.host, "-U", self.target.user),
                *("-c", str(clients), "-j", str(min(clients, 2)), "-t", str(each)),
                self.target.name,
            ],
            input=script,
            capture_output=True,
            text=True,
        )
        found = RATE.search(done.stdout)
        if not found:
            raise RuntimeError(f"pgbench said:\n{done.stderr[-2000:]}")
        spent = processor_time([self.target.server]) - before
        return {
            "rate": float(found[1]),
            "n": each * clients,
            "server_us": spent / (each * clients) * 1e6,
        }


def program() -> Path | None:
    for folder in (None, *packaged_folders()):
        found = find_programs(["pgbench"], folder)
        if found:
            return found["pgbench"]
    return None
