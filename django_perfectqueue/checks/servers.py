"""What is wrong with the server that has the database of the tasks."""

from __future__ import annotations

from collections.abc import Iterator

from django.conf import settings
from django.core import checks
from django.core.checks import CheckMessage
from django.db import connections
from django.db.backends.utils import CursorWrapper

from django_perfectqueue.conf import SETTING

from .messages import SQLITE_OPTIONS, check, error, slow_isolation, warning

IDLE = 120


@check(checks.Tags.database)
def check_server(alias: str) -> Iterator[CheckMessage]:
    """Check what only the server can say. Run with ``check --database`` and by migrate."""
    features = connections[alias].features
    if connections[alias].vendor != "sqlite" and not features.has_select_for_update_skip_locked:
        yield error(
            7,
            f"The server of the database '{alias}' has no SKIP LOCKED.",
            "Use PostgreSQL, MySQL 8.0.1 or later, or MariaDB 10.6 or later.",
        )
    if not features.supports_transactions:
        yield error(
            10,
            f"The database '{alias}' has no transactions: its storage engine is not InnoDB.",
            "Set default_storage_engine to InnoDB, and make the tables anew.",
        )


@check(checks.Tags.database)
def check_server_settings(alias: str) -> Iterator[CheckMessage]:
    """Check how the server is set up. Run with ``check --database`` and by migrate."""
    if problems := SERVER_PROBLEMS.get(connections[alias].vendor):
        with connections[alias].cursor() as cursor:
            yield from problems(alias, cursor)


def postgresql_server(alias: str, cursor: CursorWrapper) -> Iterator[CheckMessage]:
    cursor.execute("SELECT name, setting FROM pg_settings WHERE name = ANY(%s)", [[*POSTGRESQL]])
    values = dict(cursor.fetchall())
    if values["transaction_read_only"] == "on":
        yield read_only(alias, "transaction_read_only is on, as on a standby")
    for name in ("fsync", "full_page_writes", "synchronous_commit"):
        if values[name] == "off":
            yield forgetful(alias, name, "off", "on")
    patience = int(values.get("idle_session_timeout") or 0) / 1000
    yield from short_of_patience(alias, "idle_session_timeout", patience)
    level = values["transaction_isolation"]
    is_set = "isolation_level" in connections[alias].settings_dict["OPTIONS"]
    if not is_set and level not in ("read committed", "read uncommitted"):
        yield slow_isolation(
            f"The server of the database '{alias}' has the isolation level '{level}'",
            "Set default_transaction_isolation to 'read committed', for the role or the database.",
        )
    cursor.execute("SELECT pg_backend_pid()")
    # A pooler names a process of its own to who connects.
    if cursor.fetchone()[0] != connections[alias].connection.info.backend_pid:
        yield warning(
            19,
            f"There is a pooler before the database '{alias}'. If it is in transaction mode,"
            " workers get no notifications and poll.",
            "Give workers a connection without it or in session mode, and silence this check.",
        )


def mysql_server(alias: str, cursor: CursorWrapper) -> Iterator[CheckMessage]:
    cursor.execute("SELECT @@read_only, @@innodb_flush_log_at_trx_commit, @@wait_timeout")
    fixed, flush, wait = cursor.fetchone()
    if fixed not in (0, "OFF"):
        yield read_only(alias, "read_only is on, as on a replica")
    if flush != 1:
        yield forgetful(alias, "innodb_flush_log_at_trx_commit", str(flush), "1")
    yield from short_of_patience(alias, "wait_timeout", wait)
    cursor.execute(
        "SHOW VARIABLES WHERE Variable_name IN ('wsrep_on', 'wsrep_sync_wait') AND Value <> 'OFF'"
    )
    if dict(cursor.fetchall()) == {"wsrep_on": "ON", "wsrep_sync_wait": "0"}:
        yield warning(
            21,
            f"The server of the database '{alias}' is a node of a Galera cluster, and does not"
            " wait for what other nodes have committed.",
            "If more than one node is used, add 'init_command': 'SET SESSION wsrep_sync_wait = 1'"
            f" to the OPTIONS of DATABASES['{alias}']. Let all workers use one node.",
        )


def sqlite_server(alias: str, cursor: CursorWrapper) -> Iterator[CheckMessage]:
    [[mode]] = cursor.execute("PRAGMA journal_mode").fetchall()
    if mode not in ("wal", "memory") and not settings.DEBUG:
        yield warning(
            9,
            f"The SQLite database '{alias}' has the journal mode '{mode}', in which readers and"
            " writers wait for each other.",
            f"Add {SQLITE_OPTIONS} to DATABASES['{alias}'].",
        )
    [[kept]] = cursor.execute("PRAGMA synchronous").fetchall()
    if kept == 0:
        yield forgetful(alias, "synchronous", "OFF", "NORMAL")


POSTGRESQL = (
    "transaction_read_only",
    "fsync",
    "full_page_writes",
    "synchronous_commit",
    "transaction_isolation",
    "idle_session_timeout",
)
SERVER_PROBLEMS = {"postgresql": postgresql_server, "mysql": mysql_server, "sqlite": sqlite_server}


def read_only(alias: str, why: str) -> CheckMessage:
    return error(
        13,
        f"The server of the database '{alias}' takes no writes: {why}.",
        f"Name the primary in DATABASES['{alias}'], or another alias in {SETTING}['DATABASE'].",
    )


def short_of_patience(alias: str, name: str, seconds: float) -> Iterator[CheckMessage]:
    """Yield a warning when idle connections are closed sooner than workers use them."""
    if 0 < seconds < IDLE:
        yield warning(
            17,
            f"The server of the database '{alias}' closes connections that are idle for"
            f" {seconds:g} s: {name}. Idle workers send a statement once in {IDLE // 2} s, and"
            " would have to reconnect each time.",
            f"Set {name} to {IDLE} s or more, for the worker's user at least.",
        )


def forgetful(alias: str, name: str, value: str, good: str) -> CheckMessage:
    return warning(
        8,
        f"The server of the database '{alias}' may forget what it has confirmed: {name} is"
        f" {value}. After a crash submitted tasks may be gone, and finished ones run again.",
        f"Set {name} to {good}, unless this is a database for tests.",
    )
