"""The handler of a bulk operation, which every worker knows."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial

from django_perfectqueue import store
from django_perfectqueue.application import Application
from django_perfectqueue.exceptions import (
    CancelRequestedError,
    GracefulProcessStopError,
    InvalidTaskError,
)
from django_perfectqueue.payload.inputs import rewriter
from django_perfectqueue.verdicts import SHORTEST_WAIT

from .operation import Operation
from .run import CANCELLED, DONE, REFUSALS
from .selection import Found

CHUNK, PAGE = 100, 500
REFUSED, NEXT = "refused", "next"
# What is done to all of a chunk by some statements.
TOGETHER = ("retry", "delete")


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
        size = max(1, min(CHUNK, int(operation.rate)))
        left = range(self.task.data["cursor"] + 1, operation.until + 1)
        using = self.task.lease.using
        look = partial(operation.selection.chunk, operation.verb, left, size, using=using)
        return store.database.with_retries(look, using=using)

    def do_chunk(self, operation: Operation, chunk: list[Found], reached: int) -> None:
        """
        Do it to these tasks, and move the cursor; all or nothing.

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
            [pulse] = store.heartbeat([task.lease], alive_time=None, using=using)
            if pulse.cancel_requested:
                raise CancelRequestedError(f"Task '{task.key}' is to be cancelled.")
            counts = Counter(task.data["done"])
            counts.update(act_on(operation, chunk, using=using, more={"bulk": task.key}))
            task.update_data({"cursor": reached, "done": dict(counts)})

    def report(self) -> None:
        count, total = sum(self.task.data["done"].values()), self.task.data["total"]
        part = count / total if 0 < count <= total else None
        self.task.progress(part, f"{count:,}")


def in_place(
    operation: Operation, chunks: Iterable[Sequence[Found]], *, using: str
) -> Iterator[Counter[str]]:
    """Do it here, a chunk a transaction; yield how often what was done."""

    def act(chunk: Sequence[Found]) -> Counter[str]:
        with store.database.together(using=using):
            return act_on(operation, chunk, using=using)

    for chunk in chunks:
        with store.database.single_operation():
            yield store.database.with_retries(partial(act, chunk), using=using)


def chunks_of(operation: Operation, *, using: str) -> Iterator[list[Found]]:
    """Yield the tasks that match, by their ids."""
    cursor, look = 0, operation.selection.chunk
    while cursor < operation.until:
        left = range(cursor + 1, operation.until + 1)
        chunk, cursor = look(operation.verb, left, PAGE, using=using)
        yield chunk


def act_on(
    operation: Operation,
    chunk: Sequence[Found],
    *,
    using: str,
    more: Mapping[str, object] | None = None,
) -> Counter[str]:
    """
    Do it to these tasks, and record who did it, with ``more``; return how often what was done.
    """
    if operation.verb == "cancel":
        words = cancel(operation, chunk, using=using)
    else:
        words = {found: revise(operation, found, using=using) for found in chunk}
    left = [found[0] for found, word in words.items() if word == NEXT]
    if operation.verb == "retry":
        achieved = store.retry(left, using=using) if left else set()
    else:
        swept = store.upkeep.Swept(doomed=dict.fromkeys(left, ""), reached=None, stopped=False)
        achieved = set(store.upkeep.purge(swept, using=using).doomed)
    done: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for (task_id, queue, key), word in words.items():
        if word == NEXT:
            word = DONE[operation.verb] if task_id in achieved else REFUSED
        is_moved = operation.to and word in ("retried", "moved")
        done[word].append((operation.to if is_moved else queue, key))
    for word, names in done.items():
        if word not in (REFUSED, "moved", "edited"):
            store.records.sign(names, word, by=operation.by, using=using, more=more)
    return Counter({word: len(names) for word, names in done.items()})


def cancel(operation: Operation, chunk: Sequence[Found], *, using: str) -> dict[Found, str]:
    """Cancel the tasks of a chunk with those that wait for them and match, too."""
    names = {found[0]: found for found in chunk}

    def among(ids: Collection[int]) -> Collection[int]:
        rows = operation.selection.tasks("cancel", using=using)
        rows = rows.filter(pk__in=ids, pk__lte=operation.until)
        waiting = {found[0]: found for found in rows.values_list("pk", "queue", "key")}
        names.update(waiting)
        return waiting

    chosen = store.dependencies.choose(list(names), using=using, among=among)
    done = store.cancel_now(chosen.ids, using=using)
    words = {names[task_id]: CANCELLED[is_over] for task_id, is_over in done.items()}
    return {**dict.fromkeys(chunk, REFUSED), **words}


def revise(operation: Operation, found: Found, *, using: str) -> str:
    """Move or edit a task where that is wanted; return a word for what was done, or NEXT."""
    task_id, queue, _key = found
    to = operation.to if operation.to != queue else ""
    if to or operation.patch is not None:
        rewrite = None if operation.patch is None else rewriter(operation.patch)
        revision = store.Revision(queue=to, rewrite=rewrite, by=operation.by)
        try:
            store.revise([task_id], revision, using=using)
        except REFUSALS:
            return REFUSED
    if operation.verb in TOGETHER:
        return NEXT
    return ("moved" if to else REFUSED) if operation.verb == "move" else "edited"
