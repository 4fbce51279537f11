"""What a worker and its database take up now."""

from __future__ import annotations

import contextlib
from pathlib import Path

from benchmarks import tree
from benchmarks.driver import Link
from benchmarks.place import Place

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


def gauged(workers: list[int], place: Place, link: Link) -> dict[str, float]:
    """Return what is used, and how many rows there are, by name."""
    family = tree.family(workers)
    found = {
        "processes": float(len(family)),
        "memory_mib": tree.memory(workers),
        "files": float(sum(map(files, family))),
        "threads": float(sum(map(threads, family))),
        "database_mib": size(place, link) / 2**20,
    }
    if place.kind in CONNECTIONS:
        found["connections"] = float(link.value(CONNECTIONS[place.kind]))
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


def size(place: Place, link: Link) -> float:
    """Return the bytes that the database has on disk."""
    if place.kind in SIZE:
        return float(link.value(SIZE[place.kind]) or 0)
    path = Path(place.name)
    return float(sum(file.stat().st_size for file in path.parent.glob(f"{path.name}*")))
