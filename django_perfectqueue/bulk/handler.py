"""The handler of a bulk operation, which every worker knows."""

from __future__ import annotations

import time
from collections import Counter
from functools import partial

from django_perfectqueue import exceptions, store
from django_perfectqueue.application import Application
from django_perfectqueue.verdicts import SHORTEST_WAIT

from .operation import Operation
from .selection import Found
from .verbs import act_on

CHUNK = 100


class BulkHandler(Application):
    """
    Does a bulk operation a chunk at a time.

    What is done to a chunk, who did it, and the cursor behind it are one transaction under
    the fence of the task's lease: who goes on after a crash begins behind the cursor.
    """

    time_limit = float("inf")
    max_attempts = 25
    fail_on = (exceptions.InvalidTaskError,)
    is_stopping = False

    def kill(self, reason: BaseException) -> object:
        """End after this chunk where the worker stops, so that another goes on."""
        self.is_stopping = isinstance(reason, exceptions.GracefulProcessStopError)
        return super().kill(reason)

    def perform(self) -> dict[str, int] | None:
        task = self.task
        operation = Operation.read(task.data, task.key)
        while task.data["cursor"] < operation.until:
            chunk, reached = self.next_chunk(operation)
            if self.is_stopping:
                task.release()
                return None
            began = time.monotonic()
            self.do_chunk(operation, chunk, reached)
            self.report()
            took = time.monotonic() - began
            # On SQLite who waits for the lock looks for it now and then only.
            pause = max(len(chunk) / operation.rate - took, took / 10)
            if pause >= SHORTEST_WAIT:
                # The processor is free for others meanwhile.
                task.snooze(pause)
                return None
            time.sleep(pause)
        return dict(task.data["done"])

    def next_chunk(self, operation: Operation) -> tuple[list[Found], int]:
        """Return the next tasks that match, by their ids, and up to which id it looked."""
        # The cursor is not signed: another one repeats or skips tasks of the signed selection.
        # One that took longer than its lease would do so again: the next attempt takes fewer.
        size = max(1, min(CHUNK, int(operation.rate)) >> self.task.lease.crashes)
        left = range(self.task.data["cursor"] + 1, operation.until + 1)
        using = self.task.lease.using
        look = partial(operation.selection.chunk, operation.verb, left, size, using=using)
        return store.database.with_retries(look, using=using)

    def do_chunk(self, operation: Operation, chunk: list[Found], reached: int) -> None:
        """
        Do the operation to these tasks, and move the cursor; all or nothing.

        It is repeated where the database has rolled it back. Where the answer to its commit is
        lost nobody here knows: the attempt ends, and the next one reads the cursor.
        """
        with store.database.single_operation():
            store.database.with_retries(
                lambda: self.try_chunk(operation, chunk, reached), using=self.task.lease.using
            )

    def try_chunk(self, operation: Operation, chunk: list[Found], reached: int) -> None:
        task, using = self.task, self.task.lease.using
        with task.settling():
            # It need not wait for the monitor, whose calls wait for the lock on SQLite.
            [pulse] = store.leases.heartbeat([task.lease], alive_time=None, using=using)
            if pulse.cancel_requested:
                raise exceptions.CancelRequestedError(f"Task '{task.key}' is to be cancelled.")
            counts = Counter(task.data["done"])
            counts.update(act_on(operation, chunk, using=using, more={"bulk": task.key}))
            task.update_data({"cursor": reached, "done": dict(counts)})

    def report(self) -> None:
        count, total = sum(self.task.data["done"].values()), self.task.data["total"]
        part = count / total if 0 < count <= total else None
        self.task.progress(part, f"{count:,}")
