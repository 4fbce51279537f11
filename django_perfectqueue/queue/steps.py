"""Named steps of a task: what one has returned is kept for the attempts after it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from inspect import isawaitable
from typing import TYPE_CHECKING

from asgiref.sync import iscoroutinefunction, sync_to_async

from django_perfectqueue import models, store
from django_perfectqueue.conf import options
from django_perfectqueue.exceptions import InvalidResultError, InvalidTaskError
from django_perfectqueue.payload import codecs
from django_perfectqueue.payload.inputs import checked, encoded
from django_perfectqueue.payload.names import JSON, STEP_LENGTH

from .deferred import MaybeCommitted, maybe_committed

if TYPE_CHECKING:
    from .acquired import AcquiredTask

MOST = 1_000


class Steps:
    """The steps of one attempt of a task, and those that are kept of earlier attempts."""

    def __init__(self, task: AcquiredTask) -> None:
        self.task = task
        self.used: dict[str, MaybeCommitted | None] = {}
        self.kept = self.names()

    def run(self, name: str, call: Callable[[], object]) -> JSON:
        """Return what is kept of a step, or else call it, and keep what it returns."""
        text = self.begin(name)
        if text is None:
            with self.trying(name):
                text = self.end(name, call())
        return codecs.decode(text)

    async def run_async(self, name: str, call: Callable[[], object]) -> JSON:
        """Do the same; what is no coroutine function is called in a thread."""
        text = await sync_to_async(self.begin)(name)
        if text is None:
            with self.trying(name):
                text = await sync_to_async(self.end)(name, await awaited(call))
        return codecs.decode(text)

    @contextmanager
    def trying(self, name: str) -> Iterator[None]:
        """Let the handler try a step again that has raised."""
        try:
            yield
        except BaseException:
            self.used.pop(name, None)
            raise

    def begin(self, name: str) -> str | None:
        """
        Return what is kept of a step, as it is stored, or None where it is to run.

        Raise InvalidTaskError for a bad name, or one that this attempt has used.
        """
        checked("name of a step", name, STEP_LENGTH)
        doubt = self.used.get(name)
        if name in self.used and not (doubt and doubt.is_undone()):
            raise InvalidTaskError(
                f"This attempt has run a step '{name}' already: give each step its own name."
            )
        if name not in self.kept and len(self.kept) >= MOST:
            raise InvalidTaskError(f"A task may have at most {MOST} steps; '{name}' is one more.")
        text = self.read(name) if name in self.kept else None
        self.used[name] = None
        return text

    def end(self, name: str, value: object) -> str:
        """Keep what a step has returned; return it as it is stored."""
        text = encoded_result(value, f"The result of step '{name}'", using=self.using)
        keep = partial(self.keep, name, text)
        self.task._write(keep)
        self.kept.add(name)
        # What is rolled back may run again in this attempt.
        self.used[name] = maybe_committed(self.using)
        return text

    def names(self) -> set[str]:
        """Return the names of the steps that are kept; a first attempt has nothing to read."""
        if self.task.lease.attempt == 1:
            return set()
        return set(store.with_retries(lambda: list(self.rows("name")), using=self.using))

    def read(self, name: str) -> str | None:
        rows = self.rows("result_text").filter(name=name)
        found: str | None = store.with_retries(rows.first, using=self.using)
        return found

    def keep(self, name: str, text: str) -> None:
        store.keep_step(self.task.lease, name, text, using=self.using)

    def rows(self, column: str) -> JSON:
        rows = models.Step.objects.using(self.using).filter(task_id=self.task.lease.task_id)
        return rows.values_list(column, flat=True)

    @property
    def using(self) -> str:
        return self.task.lease.using


async def awaited(call: Callable[[], object]) -> JSON:
    value = await (call if iscoroutinefunction(call) else sync_to_async(call))()
    return await value if isawaitable(value) else value


def encoded_result(value: object, name: str = "The result", *, using: str) -> str:
    """Return a result as it is stored; raise InvalidResultError where it can't be."""
    limit = options().MAX_RESULT_SIZE
    by = "MAX_PAYLOAD_SIZE" if limit is None else "MAX_RESULT_SIZE"
    try:
        text = encoded(value, name, limit=limit, by=by)
    except InvalidTaskError as error:
        raise InvalidResultError(str(error)) from error
    if why := store.too_long(text, using=using):
        raise InvalidResultError(f"{name} can't be stored: {why}. Raise that, or return less.")
    return text
