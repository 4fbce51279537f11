"""Handlers of every kind, whose names no other test routes."""

import logging

from asgiref.sync import sync_to_async
from django.contrib.auth.models import Group
from django.db import connection, transaction

from django_perfectqueue.application import Application, Decider, handler
from django_perfectqueue.queue import Queue
from django_perfectqueue.verdicts import Discard, Retry, Snooze


@handler("helpers.add")
def add(task):
    return task.data["a"] + task.data["b"]


@handler("helpers.group")
def group(task):
    """Make a row, as a handler of a project would."""
    return Group.objects.create(name=task.data["name"]).name


@handler("helpers.agroup")
async def agroup(task):
    """Do the same as a coroutine, with the ORM in both of its ways."""
    made = await Group.objects.acreate(name=task.data["name"])
    return await sync_to_async(Group.objects.filter(pk=made.pk).count)()


@handler("helpers.boom", max_attempts=3)
def boom(task):
    Group.objects.create(name=f"{task.key}-{task.attempt}")
    raise ValueError("as it should")


@handler("helpers.breaks", max_attempts=1)
def breaks(task):
    """Break the transaction that it is in, as only PostgreSQL takes amiss."""
    Group.objects.create(name="before")
    connection.cursor().execute("SELECT no_such_column FROM auth_group")


@handler("helpers.spoils", max_attempts=1)
def spoils(task):
    """Leave a transaction open."""
    transaction.atomic().__enter__()
    Group.objects.create(name="inside")


@handler("helpers.chain")
def chain(task):
    """Submit the next one, down to none."""
    if left := task.data["left"]:
        Queue("helpers-next").submit(f"chain-{left}", "helpers.chain", {"left": left - 1})


@handler("helpers.forever")
def forever(task):
    task.release()


@handler("helpers.after-commit")
def after_commit(task):
    with transaction.atomic():
        transaction.on_commit(lambda: task.queue.submit("next", "helpers.add", {"a": 1, "b": 1}))


@handler("helpers.polite")
def polite(task):
    """Stop where someone asks for it."""
    task.heartbeat()
    task.update_data({"step": 2})
    return task.data


@handler("helpers.verdict", max_attempts=2)
def verdict(task):
    """Raise what is to become of the task."""
    raise {"retry": Retry("2m"), "snooze": Snooze(30), "discard": Discard("done")}[task.data]


@handler("helpers.telling")
def telling(task):
    task.progress(0.5, "half of it")
    logging.getLogger("shop").warning("Nobody knows %s.", task.data)


@handler("helpers.leave", max_attempts=1)
async def leave(task):
    raise SystemExit("as it should")


class AsyncSorting(Decider):
    async def unexpected_error_raised(self, error):
        await self.task.afail("asynchronous", str(error))


@handler("helpers.async-decider")
class AsyncDecided(Application):
    decider = AsyncSorting

    async def perform(self):
        raise ValueError("in a loop")
