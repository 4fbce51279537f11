"""What is wrong with how DATABASES has the database of the tasks."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping

from django.conf import settings
from django.core.checks import INFO, CheckMessage
from django.db import connections, router

from django_perfectqueue.conf import SETTING, options
from django_perfectqueue.models import Task
from django_perfectqueue.store.notify import datagrams

from .messages import SQLITE_OPTIONS, TAG, check, error, slow_isolation, warning

VENDORS = ("postgresql", "mysql", "sqlite")
UTC = (None, "UTC", "Etc/UTC")
SQLITE_WAIT = 5.0
UTF8 = "utf8mb4"
ROUTER = "django_perfectqueue.routers.QueueRouter"


@check(TAG)
def check_database_settings(alias: str) -> Iterator[CheckMessage]:
    """Check what DATABASES says of the database that holds the tasks."""
    if alias not in connections:
        aliases = ", ".join(f"'{name}'" for name in connections)
        yield error(
            5,
            f"DATABASES has no '{alias}', the database of the tasks.",
            f"Set {SETTING}['DATABASE'] to one of {aliases}, or leave it to the router.",
        )
        return
    connection = connections[alias]
    vendor, entry = connection.vendor, connection.settings_dict
    if vendor not in VENDORS:
        yield error(
            4,
            f"The database '{alias}' can't hold tasks: {connection.display_name}.",
            f"Use PostgreSQL, MySQL, MariaDB or SQLite, and name it in {SETTING}['DATABASE'].",
        )
        return
    if vendor == "sqlite" and in_memory(str(entry["NAME"])):
        yield warning(
            3,
            f"The SQLite database '{alias}' is in memory, where no worker can see its tasks.",
            f"Set DATABASES['{alias}']['NAME'] to a file.",
        )
    if vendor == "postgresql":
        yield from isolation(alias, entry["OPTIONS"])
    if not entry["AUTOCOMMIT"]:
        yield error(
            12,
            f"DATABASES['{alias}']['AUTOCOMMIT'] is False: heartbeats would never be committed,"
            " and running tasks lose their leases.",
            "Take AUTOCOMMIT out of that database's settings.",
        )
    if vendor != "postgresql" and entry["TIME_ZONE"] not in UTC:
        yield error(
            6,
            f"DATABASES['{alias}']['TIME_ZONE'] is '{entry['TIME_ZONE']}', but tasks are kept"
            " in UTC.",
            "Take TIME_ZONE out of that database's settings; the project's own may stay.",
        )
    if vendor == "postgresql" and several_hosts(entry["HOST"], entry["OPTIONS"]):
        yield warning(
            16,
            f"The database '{alias}' has several hosts, and nothing says that it is to be the"
            " one that takes writes: after a failover workers may connect to a standby again"
            " and again.",
            f"Set DATABASES['{alias}']['OPTIONS']['target_session_attrs'] to 'read-write'.",
        )
    if vendor == "mysql" and entry["OPTIONS"].get("charset", UTF8) != UTF8:
        yield warning(
            25,
            f"The connection to the database '{alias}' has the character set"
            f" '{entry['OPTIONS']['charset']}', which lacks emoji and rare characters: to submit"
            " one raises OperationalError.",
            f"Set DATABASES['{alias}']['OPTIONS']['charset'] to '{UTF8}', or leave it out.",
        )
    if vendor != "postgresql" and options().NOTIFY and (why := unheard(alias)):
        yield warning(
            6,
            f"Submits can't notify workers: {why}. Workers see tasks only when they look.",
            f"Set {SETTING}['NOTIFY'], or the environment variable TMPDIR, to a folder that workers"
            f" and those who submit share; or {SETTING}['NOTIFY'] to False.",
        )


def several_hosts(host: str, given: Mapping[str, object]) -> bool:
    """Return whether PostgreSQL has several hosts, any of which is accepted."""
    hosts = (host, given.get("host"), given.get("hostaddr"))
    wanted = given.get("target_session_attrs", "any")
    return any("," in str(host or "") for host in hosts) and wanted == "any"


@check()
def check_sqlite_options(alias: str) -> Iterator[CheckMessage]:
    """
    Advise on SQLite where a project is checked as a whole.

    It has no tag, so the commands say nothing of it. With DEBUG it is information: a new project
    works as it is.
    """
    for problem in sqlite_advice(alias):
        problem.level = INFO if settings.DEBUG else problem.level
        yield problem


def sqlite_advice(alias: str) -> Iterator[CheckMessage]:
    if alias not in connections or connections[alias].vendor != "sqlite":
        return
    given = connections[alias].settings_dict["OPTIONS"]
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


@check()
def check_routers(alias: str) -> Iterator[CheckMessage]:
    """Check that Django's routers know which database has the tasks."""
    if (asked := options().DATABASE) and (found := router.db_for_write(Task)) != asked:
        yield warning(
            24,
            f"{SETTING}['DATABASE'] is '{asked}', but the routers lead to '{found}': migrate makes"
            f" the tables there, too, and Task.objects reads '{found}'.",
            f"Put '{ROUTER}' first in DATABASE_ROUTERS.",
        )


def unheard(alias: str) -> str:
    """Return why submits can't notify workers by the file system, or an empty text."""
    try:
        # It raises where none can be written to.
        options().notify_folder or tempfile.gettempdir()
    except OSError as error:
        return str(error.strerror)
    if (folder := datagrams.folder_of(connections[alias])) is None:
        return ""
    parent = os.path.dirname(folder)
    # Where a worker has made its folder already, others need only send there.
    is_made = os.path.lexists(folder)
    path, needed = (folder, os.R_OK) if is_made else (parent, os.W_OK)
    if not (os.path.isdir(path) and os.access(path, needed | os.X_OK)):
        return f"'{parent}' is no folder, or not for this user to write to"
    return "" if datagrams.fits(folder) else f"the path '{parent}' is too long for a socket"


def in_memory(name: str) -> bool:
    of_tests = name.startswith("file:memorydb_")
    return name == ":memory:" or ("mode=memory" in name and not of_tests)


def isolation(alias: str, given: Mapping[str, object]) -> Iterator[CheckMessage]:
    from django.db.backends.postgresql.psycopg_any import IsolationLevel as Level

    committed = (Level.READ_COMMITTED, Level.READ_UNCOMMITTED)
    if "isolation_level" in given and given["isolation_level"] not in committed:
        yield slow_isolation(
            f"The database '{alias}' has the isolation level {given['isolation_level']!r}",
            f"Take 'isolation_level' out of DATABASES['{alias}']['OPTIONS'], or set it to read"
            " committed.",
        )
