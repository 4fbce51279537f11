"""Tasks that a task runs, and its waits for the ends of tasks."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from datetime import datetime
from functools import partial
from itertools import count
from typing import Any

from django_perfectqueue import models, store
from django_perfectqueue.exceptions import InvalidResultError
from django_perfectqueue.inspection.results import DELETED, LATE, End
from django_perfectqueue.lib.checks import LARGEST, choice
from django_perfectqueue.payload import codecs
from django_perfectqueue.payload.inputs import encoded

from .steps import Kind, Steps

SHOWN = 80
ERRORS = choice("raise", "return")


def run_child(steps: Steps, name: str, submit: Callable[[], Any]) -> Any:
    """
    Return the queue and the key of a child, which is stored once: with what is kept of it, or not
    at all.
    """
    tries = count()

    def store_child() -> object:
        child = submit()
        store.dependencies.add_child(steps.task.lease.task_id, child.id, using=steps.using)
        return [child.queue.name, child.key]

    def act() -> Any:
        with store.database.together(using=steps.using):
            if next(tries):
                # The commit of the try before may yet come through: it is waited for. What is read
                # then says whether the step was kept.
                with store.leases.locked_lease(steps.task.lease, using=steps.using):
                    steps.read()
                steps.used.pop((Kind.STEP, name), None)
            return steps.run(name, store_child)

    if (Kind.STEP, name) not in steps.kept:
        # A step does so, too, but not in a transaction.
        steps.task._give_way()
    return store.database.with_retries(act, using=steps.using)


@dataclass(frozen=True, slots=True)
class Join:
    """A task's wait for the ends of tasks; ``end`` says until when one lasts that begins now."""

    steps: Steps
    tasks: Sequence[store.Parent]
    end: Callable[[datetime], datetime | None]

    @property
    def name(self) -> str:
        """The name of what is kept, the same for the same tasks."""
        keys = ", ".join(map(key_of, self.tasks))
        digest = hashlib.blake2b(repr([*map(tuple, self.tasks)]).encode(), digest_size=6)
        return f"{keys[:SHOWN]} {digest.hexdigest()}"

    def ends(self) -> list[End]:
        """
        Return how the tasks have ended, in their order, as it was seen the first time.

        Raise SuspendedError where the task has to wait.
        """
        steps, kept = self.steps, (Kind.JOIN, self.name)
        if kept not in steps.used:
            steps.check(*kept)
        text = steps.text_of(*kept) or self.decide(kept)
        steps.used[kept] = None
        return [End(*row) for row in codecs.decode(text)]

    def decide(self, kept: tuple[Kind, str]) -> str:
        """Return how they have ended, and keep that, where they have or the time is over."""
        ends, live = self.look()
        steps, using = self.steps, self.steps.using
        if live:
            steps.leave_joins()
            store.dependencies.begin_join(steps.task.lease, live, using=using)
            # It suspends the task where there is time left.
            steps.look(*kept, self.end)
        what = "What has come of the tasks"
        text = encoded([*map(astuple, ends)], what, limit=LARGEST)
        if why := store.database.too_long(text, using=using):
            raise InvalidResultError(f"{what} can't be stored: {why}. Join fewer of them.")
        task, wait = steps.task, store.Wait(*kept)
        store.dependencies.end_join(task.lease, wait, text, using=using, now=task.moment)
        steps.kept[kept] = None
        return text

    def look(self) -> tuple[list[End], list[int]]:
        """Return how the tasks have ended, and the ids of those that have not."""
        ids = self.ids()
        found = store.notify.ends(sorted({*ids.values()}), using=self.steps.using)
        ends = []
        for task in self.tasks:
            end = End(key_of(task), *found.get(ids.get(task, 0), [DELETED]))
            ends.append(end if end.status else End(end.key, LATE))
        return ends, [task_id for task_id, end in found.items() if not end[0]]

    def ids(self) -> dict[store.Parent, int]:
        """Return the ids of the tasks that are there."""
        ids = {task: task.id for task in self.tasks if task.id is not None}
        for queue in {task.queue for task in self.tasks if task.id is None}:
            its = [task.key for task in self.tasks if task.queue == queue]
            found = store.notify.find_all(queue, its, using=self.steps.using)
            ids |= {store.Parent(queue, key): id_ for key, id_ in found.items()}
        if left := [task for task in self.tasks if task not in ids]:
            # One that was moved since is known by its link.
            links = models.Dependency.objects.using(self.steps.using).filter(
                child_id=self.steps.task.lease.task_id,
                if_failed=models.JOINED,
                parent__key__in=[task.key for task in left],
            )
            pairs = links.values_list("parent__key", "parent_id")
            moved: dict[str, int] = dict(
                store.database.with_retries(partial(list, pairs), using=self.steps.using)
            )
            ids |= {task: moved[task.key] for task in left if task.key in moved}
        return ids


def key_of(task: store.Parent) -> str:
    return task.key or f"#{task.id}"
