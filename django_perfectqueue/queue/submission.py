"""The arguments of a submit, and the parents of a task: named, documented and checked here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict

from django_perfectqueue import models, store
from django_perfectqueue.backoff import Backoff
from django_perfectqueue.conf import options
from django_perfectqueue.exceptions import InvalidTaskError, NotFoundError, NotSupportedError
from django_perfectqueue.inspection.results import End
from django_perfectqueue.lib.checks import TRUE_OR_FALSE, choice, nearest
from django_perfectqueue.models.batch import SEQUENCE
from django_perfectqueue.payload import codecs, inputs
from django_perfectqueue.payload.inputs import Duration, OnConflict, When
from django_perfectqueue.payload.limit_names import filled, of_type, of_types
from django_perfectqueue.store.limits.meters import lane_behind
from django_perfectqueue.store.notify.ring import notify_workers
from django_perfectqueue.store.values import IN_OTHERS, Moment, Now, put_in_others

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from django_perfectqueue.compat import TaskResult

    from .acquired import AcquiredTask
    from .queue import Queue
    from .task_handle import TaskHandle

    Waited: TypeAlias = str | int | TaskHandle | AcquiredTask | models.Task | TaskResult[Any, Any]

# What a task waits for: as it is given, and as its handler reads it.


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
    found: Iterable[Waited] = inputs.A_LIST.require("after", after, InvalidTaskError)
    return found


def parent_of(one: Waited, queue: str, using: str) -> store.Parent:
    if isinstance(one, str):
        return store.Parent(
            queue, inputs.checked("key of a task to wait for", one, inputs.KEY_LENGTH)
        )
    if isinstance(one, int) and not isinstance(one, bool):
        if one < 1:
            raise NotFoundError(f"There is no task with the id {one} to wait for.")
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
        rows = models.Dependency.objects.using(using).filter(child_id=task_id)
        self.rows = rows.exclude(if_failed=SEQUENCE)

    def __getitem__(self, key: str) -> End:
        """
        Raise KeyError where it did not wait for such a task, NotSupportedError where that
        has not ended, or was put back since.
        """
        found = self.rows.filter(parent__key=key)
        ids = store.database.with_retries(
            lambda: list(found.values_list("parent_id", flat=True)[:1]), using=self.using
        )
        if not ids:
            raise KeyError(key)
        end = End(key, *store.notify.ends(ids, using=self.using)[ids[0]])
        if not end.status:
            raise NotSupportedError(f"Task '{key}' has yet to end.")
        return end

    def __iter__(self) -> Iterator[str]:
        keys = self.rows.order_by("parent_id").values_list("parent__key", flat=True)
        return iter(store.database.with_retries(lambda: list(keys.distinct()), using=self.using))

    def __len__(self) -> int:
        return len(list(iter(self)))


class TaskTerms(TypedDict, total=False):
    """
    What may be given along with a task, and with a schedule for its tasks.

    ``user`` is for whom it runs: a text, or anything with a ``str()``. A larger ``priority``
    goes first among its user's tasks; the default is 0. ``limits`` are the names of the limits
    that apply to it. ``time_limit`` is for how long an attempt may run: a timedelta, seconds
    or a span such as ``"5m30s"``; None leaves it to the handler. ``context`` is what it takes
    along in place of what the setting CONTEXT captures, by the same names.

    ``tags`` are up to 20 names of up to 64 characters by which it is found. The tasks of a
    ``sequence``, a name of up to 50 characters, run one after the other, each once the one before
    has finished. ``max_attempts``, 1 or more, is how many attempts may end in an error. ``backoff``
    is the wait before the next one, a Fixed, Exponential or Steps, or several waits in
    turn, as a list or a text such as ``"10s,1m"``. Both go before what the handler and the settings
    say.
    """

    user: object
    priority: int
    limits: Iterable[str]
    time_limit: Duration | None
    context: Mapping[str, object] | None
    tags: Iterable[str]
    sequence: str
    max_attempts: int | None
    backoff: Backoff | Duration | Sequence[Duration] | None


class TaskOptions(TaskTerms, total=False):
    """
    What may be given along with a task.

    It may start at ``run_at``, and not any more at ``expires_at``. Of equal priority the one
    goes first that is due first; ``expected_at`` is then counted as when it is due. Times are an
    aware datetime, a timedelta, seconds from now or a span such as ``"5m30s"``.

    ``after`` are the tasks that must finish before: keys of this queue, tasks, results or ids.
    If one of them ends otherwise, this one with ``if_failed`` waits until that is put back and
    finishes, is cancelled, or runs all the same.

    Its key is taken as long as its row is there; with ``unique`` "waiting" until it starts, with
    "live" until it has ended, and no longer than ``unique_for`` after the submit. A later task of
    the key gets one that begins with it. ``unique_by`` makes the key, of the type and these
    names of the data, which is a dict; True is for all data.

    With ``debounce`` submits of a key are one task, with the data and context of the last: it
    starts so long after the last, and ``at_most`` so long after the first. With ``leading`` the
    first is a task that starts at once, and the others are one more.
    """

    run_at: When | None
    expected_at: When | None
    expires_at: When | None
    after: Iterable[Waited]
    if_failed: IfFailed
    unique: Literal["waiting", "live"] | None
    unique_for: Duration | None
    unique_by: Iterable[str] | Literal[True] | None
    debounce: Duration | None
    at_most: Duration | None
    leading: bool


OF_KEYS = ("unique", "unique_for", "unique_by", "debounce", "at_most", "leading")
TIMES = ("run_at", "expected_at", "expires_at")
# What a task that is merged can't have.
NOT_MERGED = (*TIMES, "after", "unique", "unique_for")
AFTER, TAGS, UNIQUE = attrgetter("after"), attrgetter("tags"), attrgetter("unique")
UNTIL = {None: "", "waiting": "start", "live": "end"}
# Each option but TIMES and ``after`` as it is stored; raises InvalidTaskError.
CHECKS: dict[str, Callable[[Any], object]] = {
    "user": inputs.checked_user,
    "priority": inputs.checked_priority,
    "limits": inputs.checked_limits,
    "time_limit": partial(inputs.checked_duration, "time_limit"),
    "context": inputs.captured,
    "if_failed": checked_if_failed,
    "tags": inputs.checked_tags,
    "unique": lambda value: inputs.UNIQUE.require("unique", value, InvalidTaskError),
    "unique_for": partial(inputs.checked_duration, "unique_for"),
    "unique_by": lambda names: names,
    "sequence": partial(inputs.checked, "sequence", length=inputs.SEQUENCE_LENGTH),
    "max_attempts": partial(inputs.MAX_ATTEMPTS.require, "max_attempts", error=InvalidTaskError),
    "backoff": inputs.checked_backoff,
    "debounce": partial(inputs.checked_duration, "debounce"),
    "at_most": partial(inputs.checked_duration, "at_most"),
    "leading": partial(TRUE_OR_FALSE.require, "leading", error=InvalidTaskError),
}
ARGUMENTS = ("key", "type", "data", *CHECKS, *TIMES, "after")


def submission_of(
    queue: Queue,
    key: str | None = None,
    type: str | None = None,  # noqa: A002
    data: object = None,
    *,
    using: str | None = None,
    surroundings: str | None = None,
    now: Now = None,
    **options: Unpack[TaskOptions],
) -> store.Submission:
    """
    Return a task as it is stored, from the arguments of Queue.submit().

    An option that is None is as one that is not given. ``surroundings`` is what it takes
    along of its submitter's without a ``context``. Raise InvalidTaskError, and TypeError for an
    unknown option.
    """
    using = using or queue.using
    given: dict[str, Any] = {"context": surroundings}
    values: Mapping[str, Any] = options
    for name, value in values.items():
        if name not in ARGUMENTS:
            raise TypeError(f"A task has no '{name}'.{nearest(name, ARGUMENTS)}")
        if value is None:
            continue
        if name in TIMES:
            given[name] = inputs.moment(name, value, now)
        elif name == "after":
            given[name] = checked_after(value, queue.name, using)
        else:
            given[name] = CHECKS[name](value)
    if not given.keys().isdisjoint(IN_OTHERS):
        put_in_others(given)
    starts, ends = given.get("run_at"), given.get("expires_at")
    if starts is not None and ends is not None and expires_first(starts, ends):
        raise InvalidTaskError(f"The task can never run: it expires at {ends}, before run_at.")
    type_ = inputs.KEY.require("The type", type, InvalidTaskError)
    user, names = given.get("user", ""), given.get("limits", ())
    if templates := of_types[type_] if type_ in of_types else of_type(type_):
        own = filled(templates, lambda: data, user)
        names = given["limits"] = inputs.checked_limits([*names, *own])
    lane = lane_behind(queue.name, type_, user, names, using=using)
    payload = inputs.encoded(data)
    if not given.keys().isdisjoint(OF_KEYS):
        key = unique_key(key, type_, payload, given)
    return store.Submission(
        queue=queue.name,
        key=inputs.checked_key(key),
        type=type_,
        payload=payload,
        lane=lane,
        **given,
    )


def unique_key(key: str | None, type_: str, payload: str, given: dict[str, Any]) -> str | None:
    """
    Return the key, made where ``unique_by`` is given; replace what else is said of it by one
    ``unique``.
    """
    if given.get("debounce") is None and ("at_most" in given or given.get("leading")):
        raise InvalidTaskError("at_most and leading go with debounce.")
    if "debounce" in given and (more := [name for name in NOT_MERGED if name in given]):
        raise InvalidTaskError(f"debounce says when a task starts: give no {more[0]}.")
    until, seconds, by, wait, at_most, leading = [given.pop(name, None) for name in OF_KEYS]
    if by is not None:
        if key is not None:
            raise InvalidTaskError("unique_by makes the key: give None for it.")
        key = inputs.key_by(type_, codecs.decode(payload), by)
    if wait is not None:
        given["unique"] = store.Debounce(wait, at_most, bool(leading))
    elif until or seconds:
        given["unique"] = store.Unique(UNTIL[until], seconds)
    if "unique" in given:
        inputs.checked("key of a task that is unique or debounced", key, inputs.NAME_LENGTH)
    return key


def submissions_of(
    queue: Queue, tasks: Iterable[Mapping[str, Any]], now: Now = None
) -> Iterator[store.Chunk]:
    """Yield tasks as they are stored, some at a time, each from a dict of submit()'s arguments."""
    terms: dict[str, Any] = {"using": queue.using, "surroundings": inputs.captured(), "now": now}
    return store.in_chunks(submission_of(queue, **terms, **task) for task in tasks)


def store_some(
    tasks: Sequence[store.Submission],
    on_conflict: OnConflict,
    *,
    using: str,
    now: Now,
    batch: int | None = None,
) -> tuple[Mapping[tuple[str, str], int], Mapping[tuple[str, str], str]]:
    """
    Store tasks in one transaction; return the ids of those whose key was free, by queue and key,
    and the keys of tasks that are unique by queue and what was given.
    """
    all_or_none = on_conflict == "raise"
    plain = store.submit_all if all_or_none else store.submit
    submit = partial(plain, using=using, now=now)
    if batch is not None or any(map(AFTER, tasks)) or any(map(TAGS, tasks)):
        submit = partial(store.dependencies.submit_linked, plain, using=using, batch=batch, now=now)
    if any(map(UNIQUE, tasks)):
        if merged := [task for task in tasks if isinstance(task.unique, store.Debounce)]:
            return store_merged(tasks, merged, on_conflict, using=using, now=now, batch=batch)
        if on_conflict == "replace":
            raise InvalidTaskError("on_conflict 'replace' is not for a task that is unique.")
        return store.submit_unique(submit, tasks, all_or_none=all_or_none, using=using, now=now)
    return submit(tasks), {}


def store_merged(
    tasks: Sequence[store.Submission],
    merged: Sequence[store.Submission],
    on_conflict: OnConflict,
    **terms: Any,
) -> tuple[Mapping[tuple[str, str], int], Mapping[tuple[str, str], str]]:
    """Do what store_some() does where some are debounced, which no key that is taken refuses."""
    if terms["batch"] is not None:
        raise InvalidTaskError("debounce is not for the tasks of a batch.")
    using, now = terms["using"], terms["now"]
    with store.database.together(using=using):
        others = [task for task in tasks if not isinstance(task.unique, store.Debounce)]
        fresh, keys = store_some(others, on_conflict, **terms) if others else ({}, {})
        store.submit_debounced(merged, using=using, now=now)
    if options().EAGER:
        # In a TestCase no commit comes after which they would be merged.
        notify_workers(using=using)
    return {**fresh, **{(task.queue, task.key): 0 for task in merged}}, keys


def expires_first(starts: Moment, ends: Moment) -> bool:
    """
    Return whether a task ends before it begins.

    A time and a duration are only comparable by the server's clock: such a task expires unrun.
    """
    if isinstance(starts, datetime) and isinstance(ends, datetime):
        return ends <= starts
    return isinstance(starts, timedelta) and isinstance(ends, timedelta) and ends <= starts
