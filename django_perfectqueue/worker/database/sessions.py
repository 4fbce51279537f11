"""What a handler leaves in the session of a connection: noticed, and undone."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from django_perfectqueue.lib.running import running

MARK = "/* perfectqueue */"
OWN = "perfectqueue_"
WORDS = "select insert update delete with merge replace values table copy explain show fetch"
FRAMES = "savepoint release rollback begin start commit"
PASSING = (
    *(WORDS + " " + FRAMES).split(),
    *("set local ", "set transaction ", "set constraints ", "set statement "),
)
LASTING = ("set_config", "advisory_lock", "get_lock", "into temp")
VARIABLE_OR_SECOND = re.compile(r"(?<!@)@\w|;\s*\w")
HARMLESS_CALLS = ("pg_notify", "timestamp", "now(")
# DISCARD ALL without what the driver and the store have prepared.
AS_NEW = (
    "CLOSE ALL; SET SESSION AUTHORIZATION DEFAULT; RESET ROLE; RESET ALL; UNLISTEN *;"
    " SELECT pg_advisory_unlock_all(); DISCARD SEQUENCES; DISCARD TEMP"
)


def lasts(sql: object) -> bool:
    """Return whether a statement may change its session beyond its transaction."""
    text = str(sql).lower()
    if text.lstrip().startswith(MARK):
        return False
    if not text.lstrip(" \n(").startswith(PASSING) or any(word in text for word in LASTING):
        return True
    if OWN in text:
        return False
    if ("@" in text or ";" in text) and VARIABLE_OR_SECOND.search(text):
        return True
    # A function of the project may set anything.
    is_call = "(" in text and text.lstrip().startswith("select") and "from" not in text
    return is_call and not any(call in text for call in HARMLESS_CALLS)


class SessionWatch:
    """An execute wrapper that notes the connections whose session a handler may have changed."""

    def __init__(self) -> None:
        self.changed: set[BaseDatabaseWrapper] = set()

    def __call__(
        self,
        execute: Callable[..., object],
        sql: object,
        params: object,
        many: bool,
        context: Mapping[str, BaseDatabaseWrapper],
    ) -> object:
        if running.get() is not None and lasts(sql):
            link = context["connection"]
            # django-tenants sends this for each cursor, by what the connection knows.
            if not (has_tenant(link) and str(sql).startswith("SET search_path")):
                self.changed.add(link)
        return execute(sql, params, many, context)

    def begin(self, link: BaseDatabaseWrapper) -> None:
        """Watch a connection that was just opened."""
        self.changed.discard(link)
        if self not in link.execute_wrappers:
            link.execute_wrappers.insert(0, self)


def has_tenant(link: BaseDatabaseWrapper) -> bool:
    """Return whether a connection is one of django-tenants, which knows its schema."""
    return hasattr(link, "set_tenant")


def renew(link: BaseDatabaseWrapper) -> bool:
    """Make a session as new by one statement, and return True; where that can't be, False."""
    if link.vendor != "postgresql" or has_tenant(link) or not link.autocommit:
        return False
    try:
        with link.connection.cursor() as cursor:
            cursor.execute(AS_NEW)
        link.init_connection_state()
        connection_created.send(sender=type(link), connection=link)
    except Exception:
        return False
    return True
