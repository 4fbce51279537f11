"""
The database alone: a loop of a few lines that takes, runs and deletes in batches.

``python -m benchmarks.peers.raw N``: take N rows and commit, run, delete them and commit. No
retries, no results, no users, no history: what is left when a queue is only a table.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence

from benchmarks.database import Link, Rows, Target, connect, this_target
from benchmarks.probe import note

from .base import Peer

TABLE = "raw_queue"
PAUSE = 0.02
TAKE_ON_POSTGRESQL = f"""
UPDATE {TABLE} SET state = 1, holder = %s, lease_until = now() + interval '5 min'
WHERE id = ANY(ARRAY(
    SELECT id FROM {TABLE} WHERE state = 0 AND run_at <= now()
    ORDER BY run_at, id LIMIT %s FOR UPDATE SKIP LOCKED
))
RETURNING id, payload
"""
LOCK_ON_MARIADB = f"""
SELECT id, payload FROM {TABLE} WHERE state = 0 AND run_at <= now(6)
ORDER BY run_at, id LIMIT %s FOR UPDATE SKIP LOCKED
"""
MARK_ON_MARIADB = f"""
UPDATE {TABLE} SET state = 1, holder = %s, lease_until = now(6) + interval 5 minute
WHERE id IN %s
"""
TAKE_ON_SQLITE = f"""
UPDATE {TABLE} SET state = 1, holder = %s, lease_until = datetime('now', '+5 minutes')
WHERE id IN (
    SELECT id FROM {TABLE} WHERE state = 0 AND run_at <= datetime('now')
    ORDER BY run_at, id LIMIT %s
)
RETURNING id, payload
"""


def take_on_postgresql(link: Link, count: int) -> Rows:
    return link.run(TAKE_ON_POSTGRESQL, os.getpid(), count)


def take_on_mariadb(link: Link, count: int) -> Rows:
    with link.transaction():
        rows = link.run(LOCK_ON_MARIADB, count)
        if rows:
            link.run(MARK_ON_MARIADB, os.getpid(), tuple(row[0] for row in rows))
    return rows


def take_on_sqlite(link: Link, count: int) -> Rows:
    return link.run(TAKE_ON_SQLITE, os.getpid(), count)


TAKE: dict[str, Callable[[Link, int], Rows]] = {
    "postgresql": take_on_postgresql,
    "mariadb": take_on_mariadb,
    "sqlite": take_on_sqlite,
}


def delete(link: Link, ids: list[int]) -> None:
    if link.kind == "postgresql":
        link.run(f"DELETE FROM {TABLE} WHERE id = ANY(%s)", ids)
    elif link.kind == "mariadb":
        link.run(f"DELETE FROM {TABLE} WHERE id IN %s", tuple(ids))
    else:
        marks = ", ".join(["%s"] * len(ids))
        link.run(f"DELETE FROM {TABLE} WHERE id IN ({marks})", *ids)


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
    metrics = ("submit", "bulk", "drain")
    table = TABLE

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

    def submit_many(self, indexes: Sequence[int]) -> None:
        payloads = [str(index) for index in indexes]
        if self.target.kind == "postgresql":
            sql = f"INSERT INTO {TABLE} (payload) SELECT unnest(%s::text[])"
            self.link.run(sql, payloads)
            return
        with self.link.transaction():
            sql = f"INSERT INTO {TABLE} (payload) VALUES (%s)"
            self.link.many(sql, [(payload,) for payload in payloads])

    def workers(self, processes: int) -> list[list[str]]:
        return [[sys.executable, "-m", "benchmarks.peers.raw", str(self.batch)]] * processes


def main() -> None:
    target, count = this_target(), int(sys.argv[1])
    link, take = connect(target), TAKE[target.kind]
    if target.kind == "mariadb":
        link.run("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
    while True:
        rows = take(link, count)
        for _, payload in rows:
            note(int(payload))
        if rows:
            delete(link, [row[0] for row in rows])
        else:
            time.sleep(PAUSE)


if __name__ == "__main__":
    main()
