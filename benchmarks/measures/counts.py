"""
What PostgreSQL counts from the submit of a task to its finish: exact, whatever the noise.

While it is counted nothing else asks the database: the probe says when all have run. What
the worker does at its start is in it, so is what it does in the second after its last task.
"""

from __future__ import annotations

import time
from typing import Any

from benchmarks.database import Link, connect
from benchmarks.environment import Environment

FLUSH = 1.2
WARM_UP = -1
STATEMENTS = """
SELECT coalesce(sum(calls), 0) FROM pg_stat_statements
JOIN pg_database ON pg_database.oid = dbid WHERE datname = %s
"""
COMMITS = "SELECT xact_commit FROM pg_stat_database WHERE datname = %s"
LOG = "SELECT to_jsonb(pg_stat_wal) FROM pg_stat_wal"


def measure(environment: Environment, variant: str) -> dict[str, Any]:
    count = min(environment.size(environment.scale.tasks), environment.scale.tasks)
    link = connect(environment.target, database="postgres")
    link.run("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
    environment.prepare(1)
    environment.peer.submit(WARM_UP)
    environment.checkpoint()
    track(link, "top")
    try:
        submit = counted(environment, link, count)
        environment.analyze()
        before = look(environment, link)
        with environment.workers(1) as workers:
            environment.wait_for_first(workers)
            environment.wait_for(
                lambda: environment.probe.count() > count, environment.scale.cap, "The last task"
            )
            time.sleep(FLUSH)
        finish = per_task(before, look(environment, link), count + 1)
    finally:
        track(link, "none")
    return {
        "n": count,
        "submit": submit,
        "finish": finish,
        "whole": environment.peer.pending() == 0 and environment.probe.count() == count + 1,
    }


def counted(environment: Environment, link: Link, count: int) -> dict[str, float]:
    """
    Submit one by one, with the server's counters beside.

    A session reports what it has counted when it is used again after a second.
    """
    time.sleep(FLUSH)
    environment.peer.submit(0)
    before = look(environment, link)
    for index in range(1, count - 1):
        environment.peer.submit(index)
    time.sleep(FLUSH)
    environment.peer.submit(count - 1)
    return per_task(before, look(environment, link), count - 1)


def track(link: Link, what: str) -> None:
    link.run(f"ALTER SYSTEM SET pg_stat_statements.track = '{what}'")
    link.run("SELECT pg_reload_conf()")
    time.sleep(0.3)


def look(environment: Environment, link: Link) -> dict[str, float]:
    """Return the counters, once the sessions that have ended have reported theirs."""
    time.sleep(0.5)
    log = link.value(LOG)
    return {
        "statements": float(link.value(STATEMENTS, environment.target.name)),
        "commits": float(link.value(COMMITS, environment.target.name)),
        "wal_bytes": float(log["wal_bytes"]),
        "wal_records": float(log["wal_records"]),
        **({"syncs": float(log["wal_sync"])} if "wal_sync" in log else {}),
    }


def per_task(before: dict[str, float], after: dict[str, float], tasks: int) -> dict[str, float]:
    return {name: (after[name] - before[name]) / tasks for name in before}
