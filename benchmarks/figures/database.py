"""
What a task costs on the database that DATABASE_URL names, printed as JSON.

Python calls are counted by a profile function, in this process for a
submit and in the processor of a worker for a task that is run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import django

REPEATS = 9
DRAINS = 3
BATCH = 200
PATIENCE = 240.0
WITH_DJANGO_TASKS = "PERFECTQUEUE_FIGURES_DJANGO_TASKS"
FRAMES = ("SAVEPOINT", "RELEASE")
PACKETS = ("BEGIN; ", "BEGIN ISOLATION LEVEL READ COMMITTED; ", "START TRANSACTION; ")

Figures = dict[str, dict[str, float]]


def main() -> None:
    django.setup()
    from django.core.management import call_command

    call_command("migrate", verbosity=0)
    calls = {**count_drains(), **count_submits()}
    found = {"calls": calls, **count_operations()}
    json.dump(found, sys.stdout)


# Statements and transactions


def count_operations() -> Figures:
    """Count what each operation sends; ``acquire_new_lane`` is the first of its user's tasks."""
    from django_perfectqueue import store
    from django_perfectqueue.store.values import ClaimRequest, new_holder
    from tests.factories import acquire, completion, finish, finish_and_acquire

    numbers = iter(range(1_000_000))
    operations: dict[str, list[Counter[str]]] = {}

    def counted(name: str, operation: Callable[[], Any]) -> Any:
        from django.db import connection
        from django.test.utils import CaptureQueriesContext

        with CaptureQueriesContext(connection) as queries:
            done = operation()
        operations.setdefault(name, []).append(sent([query["sql"] for query in queries]))
        return done

    def submit_for(user: str) -> None:
        queue().submit(f"one-{next(numbers)}", "noop", {"number": 0}, user=user)

    def submit() -> None:
        submit_for("ann")

    def submit_many() -> None:
        start = next(numbers)
        queue().submit_many(
            {"key": f"many-{start}-{number}", "type": "noop", "user": "ann"}
            for number in range(BATCH)
        )

    def take(limit: int) -> list[Any]:
        leases: list[Any] = acquire(limit, now=None)
        return leases

    def take_alone() -> list[Any]:
        whose = {"holder": new_holder(), "alive_time": 300.0, "using": "default"}
        return store.take_alone(ClaimRequest(queues=["default"], limit=1, **whose))

    def settle(lease: Any, ending: store.Ending) -> None:
        store.settle([lease], ending, using="default", seconds=0.001, worker="host:1")

    why = store.Failure(error="ValueError", message="no", traceback="Traceback")
    retry, fail = store.Ending.retry(3600.0, why), store.Ending.fail(why)
    drain(take, finish, completion)
    for number in range(REPEATS):
        counted("submit_new_lane", lambda number=number: submit_for(f"user-{number}"))
        leases = counted("acquire_new_lane", lambda: take(1))
        finish(*leases, now=None)
        submit()
        counted("submit", submit)
        enqueue()
        counted("enqueue", enqueue)
        drain(take, finish, completion)
        counted("acquire_nothing", lambda: take(1))
        submit_many()
        [first] = counted("take_alone", take_alone)
        [second] = counted("acquire", lambda: take(1))
        counted("finish", lambda lease=first: finish(lease, now=None))
        finish(second, now=None)
        counted("submit_many", submit_many)
        leases = counted("acquire_batch", lambda: take(BATCH))
        done = [completion(lease) for lease in leases]
        leases = counted(
            "finish_and_acquire_batch",
            lambda done=done: finish_and_acquire(done, BATCH, now=None, worker="host:1")[0],
        )
        counted("finish_batch", lambda leases=leases: finish(*leases, now=None))
        submit_many()
        for name, ending in (("retry", retry), ("fail", fail)):
            [lease] = take(1)
            counted(name, lambda lease=lease, ending=ending: settle(lease, ending))
        drain(take, finish, completion)
        queue().chain([{"key": f"link-{next(numbers)}", "type": "noop"} for _ in range(2)])
        done = [completion(*take(2))]
        counted("chain_link", lambda done=done: finish_and_acquire(done, 2, now=None))
        drain(take, finish, completion)
    return {
        kind: {name: least(counts, kind) for name, counts in operations.items()}
        for kind in ("statements", "transactions")
    }


def queue() -> Any:
    from django_perfectqueue.queue import Queue

    return Queue()


def enqueue() -> None:
    from benchmarks.figures.tasks import noop

    noop.enqueue(0)


def drain(take: Any, finish: Any, completion: Any) -> None:
    while leases := take(BATCH):
        finish(*leases, now=None)


def sent(statements: list[str]) -> Counter[str]:
    """
    Count statements without those that frame transactions, and the transactions.

    What is sent in one packet counts as one statement; what follows its COMMIT is one more
    transaction.
    """
    counts: Counter[str] = Counter()
    inside = False
    for sql in statements:
        if sql.startswith(PACKETS):
            counts["statements"] += 1
            begun, inside = inside, "; COMMIT" not in sql
            # With psycopg2 Django has noted the BEGIN that goes with the first statement.
            counts["transactions"] += 2 - inside - begun
        elif sql.startswith("BEGIN"):
            inside = True
            counts["transactions"] += 1
        elif sql.startswith(("COMMIT", "ROLLBACK")) and not sql.startswith("ROLLBACK TO"):
            inside = False
        elif not sql.startswith((*FRAMES, "ROLLBACK TO")):
            counts["statements"] += 1
            counts["transactions"] += not inside
    return counts


def least(counts: list[Counter[str]], kind: str) -> int:
    """Leave out what is done once a second, or once a process."""
    return min(each[kind] for each in counts)


# Python calls


def count_submits() -> dict[str, float]:
    numbers = iter(range(1_000_000))

    def submit() -> None:
        queue().submit(f"call-{next(numbers)}", "noop", {"number": 0}, user="ann")

    return {"submit": calls_of(submit), "enqueue": calls_of(enqueue)}


def calls_of(operation: Callable[[], object]) -> float:
    """Return how many Python functions one call of this calls at least."""
    counts = []
    for _ in range(REPEATS):
        found = 0

        def note(frame: Any, event: str, argument: Any) -> None:
            nonlocal found
            found += event == "call"

        sys.setprofile(note)
        try:
            operation()
        finally:
            sys.setprofile(None)
        counts.append(found - 1)  # without the operation's own
    return min(counts)


def count_drains() -> dict[str, float]:
    """Run a worker over many tasks that do nothing, once for each way to write one."""
    from benchmarks.figures.tasks import TASKS, noop

    def submit_handlers() -> None:
        queue().submit_many(
            {"key": f"noop-{number}", "type": "noop", "data": {"number": number}}
            for number in range(TASKS)
        )

    def submit_django_tasks() -> None:
        from django.db import transaction

        with transaction.atomic():
            for number in range(TASKS):
                noop.enqueue(number)

    handler = ["benchmarks.figures.tasks.NoopDispatch"]
    return {
        "drain_handler": least_drained(submit_handlers, handler, {WITH_DJANGO_TASKS: "0"}),
        "drain_django_task": least_drained(submit_django_tasks, [], {}),
    }


def least_drained(
    submit: Callable[[], None], dispatch: list[str], settings: dict[str, str]
) -> float:
    """Leave out drains in which a busy machine has let the feeder look more often."""
    return min(drained(submit, dispatch, settings) for _ in range(DRAINS))


def drained(submit: Callable[[], None], dispatch: list[str], settings: dict[str, str]) -> float:
    """Return the Python calls a task in a worker's one processor, those of its feeder included."""
    from benchmarks.figures.tasks import VARIABLE

    queue().clear()
    submit()
    with tempfile.TemporaryDirectory() as folder:
        counts = Path(folder, "counts")
        worker = [sys.executable, "-m", "django", "pq_worker", *dispatch]
        done = subprocess.run(
            [*worker, "--processors", "1", "--burst"],
            env={**os.environ, **settings, VARIABLE: str(counts)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE,
        )
        if done.returncode or not counts.exists():
            sys.exit(f"The worker has not run its tasks:\n{done.stdout[-2000:]}")
        return round(json.loads(counts.read_text()), 1)


if __name__ == "__main__":
    main()
