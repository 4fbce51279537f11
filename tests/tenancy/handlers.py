"""Handlers that return whose rows they see."""

import asyncio
import time

from asgiref.sync import sync_to_async
from django.db import connection, transaction

from django_perfectqueue.application import Application, Dispatch

from .rows.models import Row


def owners():
    return [connection.schema_name, *Row.objects.values_list("owner", flat=True)]


def disturb(act):
    """Leave a schema, and maybe a transaction, as a handler with a mistake does."""
    connection.set_schema("stranger")
    if act == "leave open":
        transaction.atomic().__enter__()


class Look(Application):
    max_attempts = 3
    retry_wait = 0

    def perform(self):
        act = None if self.task.attempt > 1 else self.task.data["act"]
        found = owners()
        if act == "overrun":
            while True:
                time.sleep(0.005)
        if act:
            disturb(act)
        if act in ("raise", "leave open"):
            raise ValueError
        return found if act else [*found, *owners()][-len(found) :]


class ALook(Look):
    async def perform(self):
        act = None if self.task.attempt > 1 else self.task.data["act"]
        found = [connection.schema_name, *[row.owner async for row in Row.objects.all()]]
        found[0] = await sync_to_async(lambda: connection.schema_name)()
        await asyncio.sleep(0.002)
        if act == "overrun":
            await asyncio.sleep(30)
        if act:
            await sync_to_async(disturb)(act)
        if act in ("raise", "leave open"):
            raise ValueError
        return found if act else await sync_to_async(owners)()


class TenancyDispatch(Dispatch):
    routes = {"look": Look, "alook": ALook}
