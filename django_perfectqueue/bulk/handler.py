"""The handler of a bulk operation, which every worker knows."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Sequence

from django_perfectqueue import store
from django_perfectqueue.application import Application
from django_perfectqueue.exceptions import (
    GracefulProcessStopError,
    InvalidTaskError,
    TaskError,
)
from django_perfectqueue.payload.merge import rewriter
from django_perfectqueue.verdicts import SHORTEST_WAIT

from .operation import Operation
from .selection import Found

CHUNK = 100
REFUSED, NEXT = "refused", "next"
TOGETHER = {"retry": "retried", "delete": "deleted"}
"""What is done to all of a chunk by some statements, and the word for it."""


class BulkHandler(Application):
    """
    Does a bulk operation a chunk at a time.

    What is done to a chunk, who did it, and the cursor behind it are one transaction under
    the fence of the task's lease: who goes on after a crash begins behind the cursor.
    """

    time_limit = float("inf")
    max_attempts = 25
    fail_on = (InvalidTaskError,)
    is_stopping = False

    def kill(self, reason: BaseException) -> object:
        """End after this chunk where the worker stops, so that another goes on."""
        self.is_stopping = isinstance(reason, GracefulProcessStopError)
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
            pause = len(chunk) / operation.rate - (time.monotonic() - began)
            if pause >= SHORTEST_WAIT:
                # The processor is free for others meanwhile.
                task.snooze(pause)
                return None
            time.sleep(max(0.0, pause))
        return dict(task.data["done"])

    def next_chunk(self, operation: Operation) -> tuple[list[Found], int]:
        """Return the next tasks that match, by their ids, and up to which id it looked."""
        # The cursor is not signed: another one repeats or skips tasks of the signed selection.
        size = max(1, min(CHUNK, int(operation.rate)))
        left = range(self.task.data["cursor"] + 1, operation.until + 1)
        using = self.task.lease.using
        look = operation.selection.chunk
        return store.patiently(lambda: look(operation.verb, left, size, using=using), using=using)

    def do_chunk(self, operation: Operation, chunk: list[Found], reached: int) -> None:
        """
        Do it to these tasks, and move the cursor; all or nothing.

        It is repeated where the database has rolled it back. Where the answer to its commit is
        lost nobody here knows: the attempt ends, and the next one reads the cursor.
        """
        with store.one_call():
            store.patiently(
                lambda: self.try_chunk(operation, chunk, reached), using=self.task.lease.using
            )

    def try_chunk(self, operation: Operation, chunk: list[Found], reached: int) -> None:
        task, using = self.task, self.task.lease.using
        with task.settling():
            done = act_on(operation, chunk, using=using)
            for word, names in done.items():
                if word not in (REFUSED, "moved", "edited"):
                    more = {"bulk": task.key}
                    store.sign(names, word, by=operation.by, using=using, more=more)
            counts = Counter(task.data["done"])
            counts.update({word: len(names) for word, names in done.items()})
            task.update_data({"cursor": reached, "done": dict(counts)})

    def report(self) -> None:
        count, total = sum(self.task.data["done"].values()), self.task.data["total"]
        part = count / total if 0 < count <= total else None
        self.task.progress(part, f"{count:,}")


def act_on(
    operation: Operation, chunk: Sequence[Found], *, using: str
) -> dict[str, list[tuple[str, str]]]:
    """Do it to these tasks; return their queues and keys by the word for what was done."""
    words = {found: act(operation, found, using=using) for found in chunk}
    left = [found[0] for found, word in words.items() if word == NEXT]
    if operation.verb == "retry":
        achieved = store.retry_all_ended(left, using=using) if left else set()
    else:
        swept = store.Swept(doomed=dict.fromkeys(left, ""), reached=None, stopped=False)
        achieved = set(store.purge(swept, using=using).doomed)
    done: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for (task_id, queue, key), word in words.items():
        if word == NEXT:
            word = TOGETHER[operation.verb] if task_id in achieved else REFUSED
        is_moved = operation.to and word in ("retried", "moved")
        done[word].append((operation.to if is_moved else queue, key))
    return done


def act(operation: Operation, found: Found, *, using: str) -> str:
    """
    Do to one task what is not done to all of a chunk together; return a word for it, or NEXT.
    """
    task_id, queue, _key = found
    to = operation.to if operation.to != queue else ""
    try:
        if operation.verb == "cancel":
            is_cancelled = store.cancel_one_now(task_id, using=using, now=None)
            return "cancelled" if is_cancelled else "requested"
        if to or operation.patch is not None:
            rewrite = None if operation.patch is None else rewriter(operation.patch)
            revision = store.Revision(queue=to, rewrite=rewrite, by=operation.by)
            store.revise_now(task_id, revision, using=using)
    except TaskError:
        return REFUSED
    if operation.verb in TOGETHER:
        return NEXT
    return ("moved" if to else REFUSED) if operation.verb == "move" else "edited"
