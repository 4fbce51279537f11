"""Note what is submitted, and store nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from datetime import datetime
from types import SimpleNamespace
from unittest import mock

from django_perfectqueue import compat, store
from django_perfectqueue.exceptions import AlreadyExistsError, InvalidTaskError
from django_perfectqueue.payload.names import JSON
from django_perfectqueue.queue import Queue, TaskHandle, submission_of

from .submitted import SubmittedTask, sources

ON_CONFLICT = ("raise", "ignore", "replace")


class Recording(list[SubmittedTask]):
    """What was submitted while it was on, the oldest first."""

    def add(self, queue: Queue, on_conflict: str, given: store.Submission) -> bool:
        """Note a task; return False where its key is taken, and that is ignored."""
        if on_conflict not in ON_CONFLICT:
            raise InvalidTaskError(
                f"on_conflict is 'raise', 'ignore' or 'replace', not {on_conflict!r}."
            )
        new = SubmittedTask.of_submission(given, using=queue.using)
        taken = [one for one in self if one.task == new.task]
        if taken and on_conflict == "raise":
            raise AlreadyExistsError(
                f"Queue '{queue.name}' already has a task with the key '{given.key}'."
            )
        if taken and on_conflict == "ignore":
            return False
        self[:] = [one for one in self if one not in taken]
        self.append(new)
        return True


@contextmanager
def recording() -> Iterator[Recording]:
    """
    Note all that is submitted in here, from any thread, in place of storing it.

    It asks no database, so it may be used in a SimpleTestCase. What is submitted is
    checked as ever. Nothing runs; and what asks a task for its status asks the database,
    where there is none.
    """
    recorded = Recording()
    with ExitStack() as stack:
        for target, name, stand_in in stand_ins(recorded):
            stack.enter_context(mock.patch.object(target, name, stand_in))
        sources.append(lambda: recorded)
        try:
            yield recorded
        finally:
            sources.pop()


def stand_ins(recorded: Recording) -> Iterator[tuple[object, str, object]]:
    """Yield what is to be replaced, by whose name, and by what."""

    def submit(
        self: Queue,
        key: str | None,
        type: str,  # noqa: A002
        data: object = None,
        *,
        on_conflict: str = "raise",
        **options: JSON,
    ) -> TaskHandle:
        submission = submission_of(self, key, type, data, **options)
        recorded.add(self, on_conflict, submission)
        return self[submission.key]

    def submit_many(
        self: Queue,
        tasks: Iterable[Mapping[str, JSON]],
        *,
        on_conflict: str = "raise",
        now: datetime | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> int:
        stored = 0
        for read, task in enumerate(tasks, start=1):
            stored += recorded.add(self, on_conflict, submission_of(self, now=now, **task))
            if progress:
                progress(read)
        return stored

    yield from of_dependencies(recorded)
    yield Queue, "submit", submit
    yield Queue, "submit_many", submit_many
    yield store, "limits_of", lambda *names, using: ()
    if compat.HAS_TASKS:
        from django_perfectqueue.backend import base

        yield base, "transaction", SimpleNamespace(atomic=lambda **options: nullcontext())


def of_dependencies(recorded: Recording) -> Iterator[tuple[object, str, object]]:
    """Yield what is to be replaced for batches, and for tasks that wait for others."""

    def store_all(given: Sequence[store.Submission], *, using: str) -> dict[tuple[str, str], int]:
        for one in given:
            recorded.add(Queue(one.queue, using=using), "raise", one)
        return {(one.queue, one.key): number for number, one in enumerate(given)}

    def submit_joining(
        submit: object, given: Sequence[store.Submission], batch: int, *, using: str
    ) -> dict[tuple[str, str], int]:
        return store_all(given, using=using)

    def submit_linked(
        submit: object, given: Sequence[store.Submission], *, using: str
    ) -> dict[tuple[str, str], int]:
        return store_all(given, using=using)

    batches: list[tuple[str, str]] = []

    def create_batch(queue: str, name: str, user: str, parent: int | None, *, using: str) -> int:
        if (queue, name) in batches:
            raise AlreadyExistsError(f"Queue '{queue}' already has a batch called '{name}'.")
        batches.append((queue, name))
        return len(batches)

    yield store, "together", lambda *, using: nullcontext()
    yield store, "create_batch", create_batch
    yield store, "submit_joining", submit_joining
    yield store, "submit_linked", submit_linked
