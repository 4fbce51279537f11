"""Which statements the processes of a worker send, written to a file."""

import os
import time
from pathlib import Path
from typing import NamedTuple

from django.db.backends.signals import connection_created

FRAMES = ("BEGIN", "START TRANSACTION", "COMMIT", "ROLLBACK", "SAVEPOINT", "RELEASE", "SET ")
# With a COMMIT on PostgreSQL: it waits for the disk, also where nothing else is to be written.
FRAMES += ("SELECT pg_logical_emit_message",)


class Statement(NamedTuple):
    at: float
    pid: int
    sql: str


def log_statements(file):
    """Have each process write what it sends; those that only frame transactions are left out."""

    def write(execute, sql, parameters, many, context):
        lines = [
            f"{time.monotonic()} {os.getpid()} {' '.join(one.split())}\n" for one in in_packet(sql)
        ]
        with open(file, "a") as log:
            log.write("".join(lines))
        return execute(sql, parameters, many, context)

    def add(connection, **kwargs):
        if write not in connection.execute_wrappers:
            connection.execute_wrappers.append(write)

    connection_created.connect(add, weak=False)


def in_packet(sql):
    """Return the statements that are sent together, without the frames of transactions."""
    return [one for one in sql.strip().split("; ") if not one.strip().startswith(FRAMES)]


def logged(file):
    """Return what was written so far."""
    lines = Path(file).read_text().splitlines() if Path(file).exists() else []
    split = [line.split(" ", 2) for line in lines]
    return [Statement(float(at), int(pid), sql) for at, pid, sql in split]
