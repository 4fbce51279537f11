"""What can be found wrong with a project's settings before anything runs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from django.conf import settings
from django.core import checks, mail
from django.core.checks import CheckMessage, Tags
from django.db import connections

from . import codecs, context
from .application.middleware.chain import for_all
from .backoff import backoff_at
from .conf import SETTING, Options, given, options, problems
from .exceptions import ConfigError
from .paths import imported
from .queue import database
from .store import datagrams
from .tracing import telemetry

TAG = "perfectqueue"
VENDORS = ("postgresql", "mysql", "sqlite")
UTC = (None, "UTC", "Etc/UTC")
SQLITE_WAIT = 5.0
IDLE = 120
SQLITE_OPTIONS = (
    "'OPTIONS': {'transaction_mode': 'IMMEDIATE', 'timeout': 20,"
    " 'init_command': 'PRAGMA journal_mode=WAL'}"
)


def register() -> None:
    checks.register(check_settings, TAG)
    checks.register(check_database_settings, TAG)
    checks.register(check_server, Tags.database)
    checks.register(check_server_settings, Tags.database)
    checks.register(check_sqlite_options)
    checks.register(check_dispatch)
    checks.register(check_backoff)
    checks.register(check_middleware)
    checks.register(check_codecs, TAG)
    checks.register(check_context, TAG)


def check_settings(app_configs: Any = None, **kwargs: Any) -> list[CheckMessage]:
    """Check what needs no database: PERFECTQUEUE itself, and USE_TZ."""
    values = given()
    if not isinstance(values, Mapping):
        kind = type(values).__name__
        return [error(2, f"{SETTING} must be a dict, not {kind}.", f"Write {SETTING} = {{...}}.")]
    found = [setting_error(problem) for problem in problems(values)]
    if not found:
        found += relations(Options().replace(**values))
    if not settings.USE_TZ:
        found.append(error(3, "USE_TZ is False, but tasks are kept in UTC.", "Set USE_TZ = True."))
    return found


def setting_error(problem: str) -> CheckMessage:
    message, asked, guess = problem.partition(" Did you mean ")
    if asked:
        return error(1, message, f"Did you mean {guess}")
    if message.startswith("Unknown"):
        return error(1, message, f"There is {', '.join(Options())}.")
    return error(1, message, f"Mend it, or take it out of {SETTING} to have the default.")


def relations(values: Options) -> Iterator[CheckMessage]:
    """Yield what is wrong with two settings together."""
    if values.TASK_HEARTBEAT_INTERVAL >= values.ALIVE_TIME:
        yield error(
            8,
            "TASK_HEARTBEAT_INTERVAL is not below ALIVE_TIME: running tasks would lose their"
            " lease between two heartbeats, and run twice.",
            "Set TASK_HEARTBEAT_INTERVAL to a third of ALIVE_TIME at most.",
        )
    if values.CHILD_HEARTBEAT_INTERVAL >= values.CHILD_HEARTBEAT_LIMIT:
        yield error(
            9,
            "CHILD_HEARTBEAT_INTERVAL is not below CHILD_HEARTBEAT_LIMIT: healthy processors"
            " would be killed between two heartbeats.",
            "Set CHILD_HEARTBEAT_INTERVAL to a third of CHILD_HEARTBEAT_LIMIT at most.",
        )
    if any(path.endswith(".PickleCodec") for path in values.CODECS):
        yield warning(
            20,
            "CODECS has a codec that unpickles: who can write to the database can then run code"
            " in every worker, and in every process that shows a task.",
            "Use JSON, and take the codec out once no task is left that it has written.",
        )
    if values.PROCESSOR_TYPE == "process" and (values.CONCURRENCY or 1) > 1:
        yield warning(
            10,
            "CONCURRENCY does nothing: a processor of the type 'process' runs one task at a time.",
            "Set PROCESSOR_TYPE to 'thread' or 'async', or raise PROCESSORS instead.",
        )
    if values.EAGER and not settings.DEBUG and not under_test():
        yield warning(
            40,
            "EAGER is on and DEBUG is off: tasks run inside of the requests that submit them, and"
            " what is to be tried again later waits for ever.",
            f"Take EAGER out of {SETTING}, and run pq_worker.",
        )
    if values.RETRY_WAIT > values.RETRY_WAIT_LIMIT:
        yield warning(
            5,
            "RETRY_WAIT is above RETRY_WAIT_LIMIT, which is all that a task will ever wait.",
            "Raise RETRY_WAIT_LIMIT, or lower RETRY_WAIT.",
        )


def under_test() -> bool:
    """Tell whether Django's test environment is set up, which switches DEBUG off."""
    return hasattr(mail, "outbox")


def check_database_settings(app_configs: Any = None, **kwargs: Any) -> list[CheckMessage]:
    """Check what DATABASES says of the database that holds the tasks."""
    if (alias := alias_in_force()) is None:
        return []
    if alias not in connections:
        return [unknown_alias(alias)]
    connection = connections[alias]
    vendor, entry = connection.vendor, connection.settings_dict
    if vendor not in VENDORS:
        return [
            error(
                4,
                f"The database '{alias}' can't hold tasks: {connection.display_name}.",
                f"Use PostgreSQL, MySQL, MariaDB or SQLite, and name it in {SETTING}['DATABASE'].",
            )
        ]
    found = list(in_no_file(alias, entry) if vendor == "sqlite" else isolation(alias, entry))
    if not entry["AUTOCOMMIT"]:
        found.append(
            error(
                12,
                f"DATABASES['{alias}']['AUTOCOMMIT'] is False: heartbeats would never be committed,"
                " and running tasks lose their leases.",
                "Take AUTOCOMMIT out of that database's settings.",
            )
        )
    if vendor != "postgresql" and entry["TIME_ZONE"] not in UTC:
        found.append(
            error(
                6,
                f"DATABASES['{alias}']['TIME_ZONE'] is '{entry['TIME_ZONE']}', but tasks are kept"
                " in UTC.",
                "Take TIME_ZONE out of that database's settings; the project's own may stay.",
            )
        )
    if vendor == "postgresql" and several_hosts(entry):
        found.append(
            warning(
                16,
                f"The database '{alias}' has several hosts, and nothing says that it is to be the"
                " one that takes writes: after a failover workers may connect to a standby again"
                " and again.",
                f"Set DATABASES['{alias}']['OPTIONS']['target_session_attrs'] to 'read-write'.",
            )
        )
    if vendor != "postgresql" and options().BELL and (folder := datagrams.folder_of(alias)):
        found += bell_problems(folder)
    return found


def several_hosts(entry: Mapping[str, Any]) -> bool:
    """Tell whether PostgreSQL is sought on several hosts, and any of them would do."""
    given = entry["OPTIONS"]
    hosts = (entry["HOST"], given.get("host"), given.get("hostaddr"))
    wanted = given.get("target_session_attrs", "any")
    return any("," in str(host or "") for host in hosts) and wanted == "any"


def alias_in_force() -> str | None:
    """Return the database of the tasks, or None where the settings are wrong anyway."""
    try:
        options()
    except ConfigError:
        return None
    return database()


def unknown_alias(alias: str) -> CheckMessage:
    aliases = ", ".join(f"'{name}'" for name in connections)
    return error(
        5,
        f"DATABASES has no '{alias}', which is to hold the tasks.",
        f"Set {SETTING}['DATABASE'] to one of {aliases}, or leave it to the router.",
    )


def check_sqlite_options(app_configs: Any = None, **kwargs: Any) -> list[CheckMessage]:
    """
    Advise on SQLite where a project is checked as a whole.

    It has no tag, so the commands say nothing of it: a new project works as it is, and
    is to be advised once.
    """
    alias = alias_in_force()
    if alias is None or alias not in connections or connections[alias].vendor != "sqlite":
        return []
    return list(sqlite_advice(alias, connections[alias].settings_dict["OPTIONS"]))


def sqlite_advice(alias: str, given: Mapping[str, Any]) -> Iterator[CheckMessage]:
    if str(given.get("transaction_mode") or "").upper() not in ("IMMEDIATE", "EXCLUSIVE"):
        yield warning(
            1,
            f"The SQLite database '{alias}' begins transactions without a lock: one that reads and"
            " then submits fails with 'database is locked' when another wrote meanwhile.",
            f"Add {SQLITE_OPTIONS} to DATABASES['{alias}'].",
        )
    if given.get("timeout", SQLITE_WAIT) < SQLITE_WAIT:
        yield warning(
            2,
            f"The SQLite database '{alias}' waits only {given['timeout']} s for its lock, for which"
            " every processor and every submitter queues.",
            f"Add {SQLITE_OPTIONS} to DATABASES['{alias}'].",
        )


def in_no_file(alias: str, entry: Mapping[str, Any]) -> Iterator[CheckMessage]:
    if in_memory(str(entry["NAME"])):
        yield warning(
            3,
            f"The SQLite database '{alias}' is in memory, where no worker can see its tasks.",
            f"Set DATABASES['{alias}']['NAME'] to a file.",
        )


def bell_problems(folder: str) -> Iterator[CheckMessage]:
    parent = os.path.dirname(folder)
    hint = (
        f"Set {SETTING}['BELL_FOLDER'] to another folder, which workers and those who submit"
        f" share, or {SETTING}['BELL'] to False."
    )
    place = folder if os.path.lexists(folder) else parent
    if not (os.path.isdir(place) and os.access(place, os.W_OK | os.X_OK)):
        yield warning(
            6,
            f"There can be no bell in '{parent}': it is no folder, or not for this user to write"
            " to. Workers will see tasks only when they look.",
            hint,
        )
    elif not datagrams.fits(folder):
        yield warning(
            7,
            f"There can be no bell in '{parent}': the path is too long for a socket. Workers will"
            " see tasks only when they look.",
            hint,
        )


def in_memory(name: str) -> bool:
    of_tests = name.startswith("file:memorydb_")
    return name == ":memory:" or ("mode=memory" in name and not of_tests)


def isolation(alias: str, entry: Mapping[str, Any]) -> Iterator[CheckMessage]:
    given = entry["OPTIONS"]
    if "isolation_level" in given and not reads_committed(alias, given["isolation_level"]):
        yield warning(
            4,
            f"The database '{alias}' has the isolation level {given['isolation_level']!r}, at which"
            " processors hinder each other and see old rows.",
            f"Take 'isolation_level' out of DATABASES['{alias}']['OPTIONS'], or set it to read"
            " committed.",
        )


def reads_committed(alias: str, level: Any) -> bool:
    if connections[alias].vendor == "mysql":
        return str(level).lower() == "read committed"
    from django.db.backends.postgresql.psycopg_any import IsolationLevel

    return level in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED)


def check_server(
    app_configs: Any = None, databases: Sequence[str] | None = None, **kwargs: Any
) -> list[CheckMessage]:
    """Check what only the server can tell. Run with ``check --database`` and by migrate."""
    alias = alias_in_force()
    if alias is None or alias not in (databases or ()) or alias not in connections:
        return []
    features = connections[alias].features
    found = []
    if connections[alias].vendor != "sqlite" and not features.has_select_for_update_skip_locked:
        found.append(
            error(
                7,
                f"The server of the database '{alias}' has no SKIP LOCKED.",
                "Use PostgreSQL, MySQL 8.0.1 or later, or MariaDB 10.6 or later.",
            )
        )
    if not features.supports_transactions:
        found.append(
            error(
                10,
                f"The database '{alias}' has no transactions: its storage engine is not InnoDB.",
                "Set default_storage_engine to InnoDB, and make the tables anew.",
            )
        )
    return found


def check_server_settings(
    app_configs: Any = None, databases: Sequence[str] | None = None, **kwargs: Any
) -> list[CheckMessage]:
    """Check how the server is set up. Run with ``check --database`` and by migrate."""
    alias = alias_in_force()
    if alias is None or alias not in (databases or ()) or alias not in connections:
        return []
    if (problems := SERVER_PROBLEMS.get(connections[alias].vendor)) is None:
        return []
    with connections[alias].cursor() as cursor:
        return list(problems(alias, cursor))


def postgresql_server(alias: str, cursor: Any) -> Iterator[CheckMessage]:
    cursor.execute("SELECT name, setting FROM pg_settings WHERE name = ANY(%s)", [[*POSTGRESQL]])
    values = dict(cursor.fetchall())
    if values["transaction_read_only"] == "on":
        yield read_only(alias, "transaction_read_only is on, as on a standby")
    for name in ("fsync", "full_page_writes", "synchronous_commit"):
        if values[name] == "off":
            yield forgetful(alias, name, "off", "on")
    yield from short_of_patience(alias, "idle_session_timeout", values, unit=1000)
    level = values["transaction_isolation"]
    told = "isolation_level" in connections[alias].settings_dict["OPTIONS"]
    if not told and level not in ("read committed", "read uncommitted"):
        yield warning(
            4,
            f"The server of the database '{alias}' has the isolation level '{level}', at which"
            " processors hinder each other and see old rows.",
            "Set default_transaction_isolation to 'read committed', for the role or the database.",
        )


def mysql_server(alias: str, cursor: Any) -> Iterator[CheckMessage]:
    cursor.execute("SELECT @@read_only, @@innodb_flush_log_at_trx_commit, @@wait_timeout")
    fixed, flush, wait = cursor.fetchone()
    if fixed not in (0, "OFF"):
        yield read_only(alias, "read_only is on, as on a replica")
    if flush != 1:
        yield forgetful(alias, "innodb_flush_log_at_trx_commit", str(flush), "1")
    yield from short_of_patience(alias, "wait_timeout", {"wait_timeout": wait})


def sqlite_server(alias: str, cursor: Any) -> Iterator[CheckMessage]:
    [[mode]] = cursor.execute("PRAGMA journal_mode").fetchall()
    if mode not in ("wal", "memory"):
        yield warning(
            9,
            f"The SQLite database '{alias}' has the journal mode '{mode}', at which those who read"
            " and those who write wait for each other.",
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
SERVER_PROBLEMS = {
    "postgresql": postgresql_server,
    "mysql": mysql_server,
    "sqlite": sqlite_server,
}


def read_only(alias: str, why: str) -> CheckMessage:
    return error(
        13,
        f"The server of the database '{alias}' takes no writes: {why}.",
        f"Name the primary in DATABASES['{alias}'], or another alias in {SETTING}['DATABASE'].",
    )


def short_of_patience(
    alias: str, name: str, values: Mapping[str, Any], *, unit: int = 1
) -> Iterator[CheckMessage]:
    """Yield a warning when idle connections are closed sooner than workers use them."""
    seconds = int(values.get(name) or 0) / unit
    if 0 < seconds < IDLE:
        yield warning(
            17,
            f"The server of the database '{alias}' hangs up after {seconds:g} s without a word:"
            f" {name}. Workers that have nothing to do speak once in {IDLE // 2} s, and would have"
            " to connect anew each time.",
            f"Set {name} to {IDLE} s or more, for the worker's user at least.",
        )


def forgetful(alias: str, name: str, value: str, good: str) -> CheckMessage:
    return warning(
        8,
        f"The server of the database '{alias}' may forget what it has confirmed: {name} is"
        f" {value}. After a crash submitted tasks may be gone, and finished ones run again.",
        f"Set {name} to {good}, unless this is a database for tests.",
    )


def check_codecs(app_configs: Any = None, **kwargs: Any) -> list[CheckMessage]:
    """Check that CODECS can be used: their classes, packages and keys."""
    if alias_in_force() is None:
        return []
    try:
        codecs.codecs()
    except ConfigError as trouble:
        return [error(20, str(trouble), f"Mend {SETTING}['CODECS'].")]
    return []


def check_context(app_configs: Any = None, **kwargs: Any) -> list[CheckMessage]:
    """Check that what CONTEXT names is there, and what TRACING needs."""
    if alias_in_force() is None:
        return []
    found = []
    try:
        context.providers()
    except ConfigError as trouble:
        found.append(error(21, str(trouble), f"Mend {SETTING}['CONTEXT']."))
    try:
        if telemetry.is_on():
            telemetry.tracer()
    except ConfigError as trouble:
        found.append(error(22, str(trouble), f"Or take TRACING out of {SETTING}."))
    return found


def check_dispatch(app_configs: Any = None, **kwargs: Any) -> list[CheckMessage]:
    """
    Check that DISPATCH can be imported.

    It may import much; so it has no tag of ours, and pq_submit does without.
    """
    if alias_in_force() is None or (path := options().DISPATCH) is None:
        return []
    try:
        imported(path, f"{SETTING}['DISPATCH']")
    except ConfigError as trouble:
        return [
            error(
                11,
                str(trouble),
                "Set it to the dotted path of a class, such as 'myapp.tasks.TaskDispatch'.",
            )
        ]
    return []


def check_backoff(app_configs: Any = None, **kwargs: Any) -> list[CheckMessage]:
    """
    Check that BACKOFF can be imported.

    As with DISPATCH, that may import much.
    """
    if alias_in_force() is None or not isinstance(path := options().BACKOFF, str):
        return []
    try:
        backoff_at(path)
    except ConfigError as trouble:
        return [
            error(
                14,
                f"{SETTING}['BACKOFF'] can't be used: {trouble}",
                "Set it to a function of the error and the task, or to its dotted path.",
            )
        ]
    return []


def check_middleware(app_configs: Any = None, **kwargs: Any) -> list[CheckMessage]:
    """
    Check that MIDDLEWARE names middleware.

    It may import much; so it has no tag of ours, and pq_submit does without.
    """
    if alias_in_force() is None:
        return []
    try:
        for_all()
    except ConfigError as trouble:
        hint = "Name functions of the handler and perform, or classes with around_perform()."
        return [error(15, str(trouble), hint)]
    return []


def error(number: int, message: str, hint: str) -> CheckMessage:
    return checks.Error(message, hint=hint, id=f"perfectqueue.E{number:03}")


def warning(number: int, message: str, hint: str) -> CheckMessage:
    return checks.Warning(message, hint=hint, id=f"perfectqueue.W{number:03}")
