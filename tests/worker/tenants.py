"""Tenants in the session of a connection: set by a provider, read by handlers."""

import asyncio
import time
from contextlib import contextmanager
from contextvars import ContextVar

from asgiref.sync import sync_to_async
from django.db import connection, transaction

from django_perfectqueue.payload import Provider

TENANTS = ("acme", "blue", None)

tenant: ContextVar[str | None] = ContextVar("tenant", default=None)

SET = {
    "postgresql": "SELECT set_config('app.tenant', %s, false)",
    "mysql": "SET @tenant = %s",
}
READ = {
    "postgresql": "SELECT current_setting('app.tenant', true)",
    "mysql": "SELECT @tenant",
}


def set_session(name):
    """Set the tenant of this session; on SQLite, which has no variables, in a temporary table."""
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            cursor.execute("CREATE TEMP TABLE IF NOT EXISTS tenant (name)")
            cursor.execute("DELETE FROM tenant")
            cursor.execute("INSERT INTO tenant VALUES (%s)", [name])
        else:
            cursor.execute(SET[connection.vendor], [name or ""])


def session_tenant():
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            cursor.execute("SELECT COUNT(*) FROM sqlite_temp_master WHERE name = 'tenant'")
            if not cursor.fetchone()[0]:
                return None
            cursor.execute("SELECT name FROM tenant")
        else:
            cursor.execute(READ[connection.vendor])
        row = cursor.fetchone()
    return (row and row[0]) or None


def restore(name):
    tenant.set(name)
    set_session(name)


@contextmanager
def inside(name):
    token, before = tenant.set(name), session_tenant()
    set_session(name)
    try:
        yield
    finally:
        set_session(before)
        tenant.reset(token)


in_session = Provider(tenant.get, restore)
in_block = Provider(tenant.get, inside)


def seen():
    """Return the tenants that a task sees: that of its context, and that of its session."""
    return [tenant.get(), session_tenant()]


def act_of(task):
    """Return what a task is to do; in a later attempt only look."""
    return None if task.attempt > 1 else task.data.get("act")


def look(task):
    """Look, do what the data ask for, and look again."""
    before = seen()
    act = act_of(task)
    if act == "submit":
        task.queue.submit(f"child-{task.key}", "look", {"tenant": task.data["tenant"]})
    elif act == "leave":
        tenant.set("stranger")
        set_session("stranger")
    elif act == "leave open":
        transaction.atomic().__enter__()
        set_session("stranger")
    if act in ("raise", "leave open"):
        raise ValueError(before)
    if act == "sleep":
        time.sleep(0.002)
    if act == "overrun":
        end = time.monotonic() + 20
        while time.monotonic() < end:
            time.sleep(0.005)
    if act == "leave":
        return [before, before]
    return [before, seen()]


async def alook(task):
    before = await sync_to_async(seen)()
    act = act_of(task)
    await asyncio.sleep(0.002)
    if act == "submit":
        await task.queue.asubmit(f"child-{task.key}", "alook", {"tenant": task.data["tenant"]})
    elif act in ("leave", "leave open"):
        tenant.set("stranger")
        if act == "leave open":
            await sync_to_async(transaction.atomic().__enter__)()
        await sync_to_async(set_session)("stranger")
    if act in ("raise", "leave open"):
        raise ValueError(before)
    if act == "overrun":
        await asyncio.sleep(20)
    if act == "leave":
        return [before, before]
    return [before, await sync_to_async(seen)()]
