"""One short way to each state."""

import itertools
import json
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone

from django.db import connection

from django_perfectqueue import store
from django_perfectqueue.models import Account, Hold, Lane, Meter, State, Ticket, Worker
from django_perfectqueue.queue import Queue
from django_perfectqueue.store.values import ClaimRequest, new_holder

from .waiting import LONG

NOON = datetime(2030, 1, 1, 12, tzinfo=timezone.utc)
SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
LEASE = 60.0

numbers = itertools.count(1)


def after(seconds):
    return NOON + timedelta(seconds=seconds)


def at(task, moment):
    """Return an acquired task whose verbs take a time from here on for the present one."""
    task.moment = moment
    return task


def lease(**facts):
    """Return a lease of no task."""
    given = {
        **dict.fromkeys(("task_id", "attempt", "holder", "token", "lane"), 1),
        **dict.fromkeys(("errors", "crashes", "priority"), 0),
        "using": "default",
        "charge": 0.0,
        "queue": "default",
        "key": "task",
        "type": "report",
        "user": "",
        "payload": "{}",
        "created_at": NOON,
        "run_at": NOON,
    }
    return store.Lease(**{**given, **facts})


def submit(key=None, *, type="report", data=None, queue="default", now=NOON, **options):
    key = key or f"task-{next(numbers)}"
    return Queue(queue).submit(key, type, data or {}, now=now, **options)


def submit_many(count, *, queue="default", now=NOON, **options):
    start = next(numbers)
    keys = [f"many-{start}-{number}" for number in range(count)]
    Queue(queue).submit_many(({"key": key, "type": "report", **options} for key in keys), now=now)
    return keys


def register(
    *queues,
    types=("report",),
    patterns=(),
    now=NOON,
    routes=None,
    states=(),
    leaving=False,
    **options,
):
    """
    Have a worker that knows these types, or whatever ``routes`` says as JSON.

    ``states`` are its processors, as processor() makes them.
    """
    given = {"types": list(types), "patterns": list(patterns)}
    worker = Worker(
        **{
            "id": new_holder(),
            "host": "one",
            "pid": 7,
            "version": "1",
            "processors": 2,
            **options,
        },
        queues_text=json.dumps(queues or ["default"]),
        routes_text=routes or json.dumps(given),
    )
    worker.states_text = json.dumps(list(states), separators=(",", ":"))
    worker.leaving = leaving
    store.records.register(worker, using="default", now=now)
    return worker


def processor(
    number, *tasks, seconds=5.0, pid=None, holder=0, memory=40 * 2**20, kept=False, **counts
):
    """Return what a worker reports of a processor that runs these tasks, for so many seconds."""
    return {
        **({"kept": True} if kept else {}),
        "number": number,
        "pid": pid or 1000 + number,
        "start": 0,
        "holder": holder,
        "memory": memory,
        "counts": counts,
        "tasks": [{"id": task_id, "seconds": seconds} for task_id in tasks],
    }


def acquire(limit=1, **terms):
    return finish_and_acquire((), limit, **terms)[0]


def finish_and_acquire(
    finished,
    limit=1,
    *,
    queues=("default",),
    now=NOON,
    lease=LEASE,
    holder=None,
    serial=False,
    worker="",
    **terms,
):
    """Return the leases, and which of the finished were refused; ``terms`` as ClaimRequest has."""
    request = ClaimRequest(
        queues=list(queues),
        limit=limit,
        alive_time=lease,
        holder=holder or new_holder(),
        using="default",
        now=now,
        serial=serial,
        **terms,
    )
    return store.finish_and_acquire(finished, request, worker=worker)


def running(key=None, *, now=NOON, lease=LEASE, **options):
    task = submit(key, now=now, **options)
    [held] = acquire(now=now, lease=lease)
    return task, held


def completion(lease, *, result=None, seconds=0.0):
    ended = time.monotonic()
    return store.Completion(lease=lease, result=result, started=ended - seconds, ended=ended)


def finish(*leases, now=NOON, seconds=0.0, result=None, worker="tests"):
    done = [completion(lease, seconds=seconds, result=result) for lease in leases]
    return store.finish(done, using="default", worker=worker, now=now)


def settle(lease, ending, *, using="default", **terms):
    """End an attempt, and return its word; raise PreemptedError where it is held no longer."""
    words = store.settle([lease], ending, using=using, **terms)
    if lease not in words:
        raise store.leases.refusal(lease, using=using)
    return words[lease]


def retry(lease, *, wait=0.0, seconds=0.0, now=NOON, why=None):
    return settle(
        lease,
        store.Ending.retry(wait=wait, why=why or store.Failure()),
        seconds=seconds,
        using="default",
        now=now,
    )


def fail(lease, *, error="boom", message="", now=NOON):
    why = store.Failure(error=error, message=message)
    settle(lease, store.Ending.fail(why=why), seconds=0.0, using="default", now=now)


def purge(retention, **terms):
    return store.upkeep.purge(
        store.upkeep.purgeable(retention, using="default", **terms), using="default"
    )


def failed(key=None, **options):
    task, held = running(key, **options)
    fail(held)
    return task


def status(task, now=NOON):
    return task.queue.list().with_status(now).get(key=task.key).status


def keys(leases):
    return [lease.key for lease in leases]


def assert_books_balance(case):
    """
    Each account counts just the tickets that run, in all its lanes, and so does each meter;
    a lane sleeps only when it is empty.
    """
    behind = Counter()
    for lane in Lane.objects.all():
        tickets = Ticket.objects.filter(lane=lane.id)
        running = tickets.filter(state=State.RUNNING).count()
        for key in json.loads(lane.keys):
            behind[key] += running
        if lane.held_by:
            case.assertTrue(Hold.objects.filter(pk=lane.held_by).exists(), lane)
        own = Account.objects.get(pk=lane.account)
        # In a TestCase nothing is committed, and only an acquire wakes lanes.
        if not connection.in_atomic_block and tickets.filter(state=State.WAITING).exists():
            case.assertTrue(lane.has_waiting, lane)
            case.assertTrue(lane.held_by or own.has_open, lane)
    for own in Account.objects.all():
        lanes = Lane.objects.filter(account=own.pk).values("pk")
        tickets = Ticket.objects.filter(lane=own.pk)
        everywhere = tickets | Ticket.objects.filter(lane__in=lanes)
        running = everywhere.filter(state=State.RUNNING).count()
        case.assertEqual(own.running, running, own)
        case.assertEqual(own.advance > 0.0, running > 0, own)
        if not connection.in_atomic_block and tickets.filter(state=State.WAITING).exists():
            case.assertTrue(own.has_waiting, own)
    counted = Meter.objects.exclude(running=0).values_list("key", "running")
    case.assertEqual(dict(counted), dict(+behind))


def elsewhere(act):
    """Do something on another connection, and fail when it has to wait for this one."""
    pool = ThreadPoolExecutor(1)

    def alone():
        try:
            return act()
        finally:
            connection.close()

    try:
        return pool.submit(alone).result(timeout=LONG)
    finally:
        # Who waits for this connection waits until it is let go.
        pool.shutdown(wait=False)


@contextmanager
def after_statement(part, act, *, number=1):
    """Do something on another connection once a statement with this in it has run."""
    seen = 0

    def watch(execute, sql, params, many, context):
        nonlocal seen
        result = execute(sql, params, many, context)
        if part in sql.replace("`", '"'):
            seen += 1
            if seen == number:
                elsewhere(act)
        return result

    with connection.execute_wrapper(watch):
        yield
