"""What a task waits for: as it is given, and as its handler reads it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from django_perfectqueue import models, store
from django_perfectqueue.exceptions import InvalidTaskError, NotSupportedError
from django_perfectqueue.inspection.results import End, end_of
from django_perfectqueue.lib.checks import choice
from django_perfectqueue.payload.inputs import A_LIST, KEY_LENGTH, checked

if TYPE_CHECKING:
    from django_perfectqueue.compat import TaskResult

    from .acquired import AcquiredTask
    from .task_handle import TaskHandle

    Waited: TypeAlias = str | int | TaskHandle | AcquiredTask | models.Task | TaskResult[Any, Any]

IfFailed = Literal["wait", "cancel", "run"]

MODES = {mode.name.lower(): mode.value for mode in models.IfFailed}


def checked_after(after: Iterable[Waited], queue: str, using: str) -> tuple[store.Parent, ...]:
    """
    Return the tasks to wait for, each once: keys of this queue, tasks, results or ids.

    Raise InvalidTaskError for anything else, and for tasks of another database.
    """
    return tuple(dict.fromkeys(parent_of(one, queue, using) for one in listed(after)))


def listed(after: Iterable[Waited]) -> Iterable[Waited]:
    """Return a list; raise InvalidTaskError for a single text, whose letters would be keys."""
    found: Iterable[Waited] = A_LIST.require("after", after, InvalidTaskError)
    return found


def parent_of(one: Waited, queue: str, using: str) -> store.Parent:
    if isinstance(one, str):
        return store.Parent(queue, checked("key of a task to wait for", one, KEY_LENGTH))
    if isinstance(one, int) and not isinstance(one, bool):
        return store.Parent("", "", one)
    if isinstance(one, models.Task):
        return store.Parent(one.queue, one.key, one.pk)
    if hasattr(one, "queue") and hasattr(one, "key"):
        return named(one.queue.name, one.key, one.queue.using, using)
    if hasattr(one, "task") and hasattr(one, "id"):
        its = getattr(one.task.get_backend(), "using", None)
        return named(one.task.queue_name, one.id, its, using)
    raise InvalidTaskError(
        f"after takes keys, tasks, results and ids; it was given {type(one).__name__}."
    )


def named(queue: str, key: str, its: object, using: str) -> store.Parent:
    if its != using:
        raise InvalidTaskError(
            f"Task '{key}' is in the database '{its}': one in '{using}' can't wait for it."
        )
    return store.Parent(queue, key)


def checked_if_failed(value: object) -> int:
    """Return the number of a mode; raise InvalidTaskError where there is none of that name."""
    return MODES[choice(*MODES).require("if_failed", value, InvalidTaskError)]


class Parents(Mapping[str, End]):
    """
    How the tasks have ended for which this one has waited, by key; each is read when asked for.

    ``parents["a"].result()`` is what the handler of "a" returned. They are kept until this task
    has finished.
    """

    def __init__(self, task_id: int, *, using: str) -> None:
        self.using = using
        self.rows = models.Dependency.objects.using(using).filter(child_id=task_id)

    def __getitem__(self, key: str) -> End:
        """
        Raise KeyError where it did not wait for such a task, NotSupportedError where that
        has not ended, or was put back since.
        """
        found = self.rows.filter(parent__key=key)
        ids = store.with_retries(
            lambda: list(found.values_list("parent_id", flat=True)[:1]), using=self.using
        )
        if not ids:
            raise KeyError(key)
        end = store.ends(ids, using=self.using)[ids[0]]
        if not end.outcome:
            raise NotSupportedError(f"Task '{key}' has yet to end.")
        return end_of(key, end)

    def __iter__(self) -> Iterator[str]:
        keys = self.rows.order_by("parent_id").values_list("parent__key", flat=True)
        return iter(store.with_retries(lambda: list(keys.distinct()), using=self.using))

    def __len__(self) -> int:
        return len(list(iter(self)))
