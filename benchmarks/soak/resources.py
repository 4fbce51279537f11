"""What a worker and its database take up now."""

from __future__ import annotations

import contextlib
from pathlib import Path

from benchmarks import processes
from benchmarks.database import Link, Target

TABLES = ("task", "ticket", "account", "lane", "attempt", "deadletter", "usage", "worker")
CONNECTIONS = {
    "postgresql": "SELECT count(*) FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid()",
    "mariadb": "SELECT count(*) FROM information_schema.processlist"
    " WHERE db = database() AND id <> connection_id()",
}
SIZE = {
    "postgresql": "SELECT pg_database_size(current_database())",
    "mariadb": "SELECT sum(data_length + index_length) FROM information_schema.tables"
    " WHERE table_schema = database()",
}


def resources_of(workers: list[int], target: Target, link: Link) -> dict[str, float]:
    """Return what is used, and how many rows there are, by name."""
    family = processes.family(workers)
    found = {
        "processes": float(len(family)),
        "memory_mib": processes.memory(workers),
        "files": float(sum(map(files, family))),
        "threads": float(sum(map(threads, family))),
        "database_mib": size(target, link) / 2**20,
    }
    if target.kind in CONNECTIONS:
        found["connections"] = float(link.value(CONNECTIONS[target.kind]))
    for table in TABLES:
        found[f"rows_{table}"] = float(link.value(f"SELECT count(*) FROM perfectqueue_{table}"))
    return found


def files(pid: int) -> int:
    with contextlib.suppress(OSError):
        return len(list(Path(f"/proc/{pid}/fd").iterdir()))
    return 0


def threads(pid: int) -> int:
    with contextlib.suppress(OSError):
        return len(list(Path(f"/proc/{pid}/task").iterdir()))
    return 0


def size(target: Target, link: Link) -> float:
    """Return the bytes that the database has on disk."""
    if target.kind in SIZE:
        return float(link.value(SIZE[target.kind]) or 0)
    path = Path(target.name)
    return float(sum(file.stat().st_size for file in path.parent.glob(f"{path.name}*")))
