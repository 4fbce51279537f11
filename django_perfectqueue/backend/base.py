"""The backend itself: from a Django task to a row, and back."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async
from django.apps import apps
from django.core import checks
from django.core.checks import CheckMessage
from django.core.exceptions import ImproperlyConfigured
from django.db import transaction
from django.utils import timezone
from django.utils.module_loading import import_string

from django_perfectqueue import compat, exceptions
from django_perfectqueue.lib.distinct import distinct
from django_perfectqueue.payload import inputs
from django_perfectqueue.payload.context import OF_ATTEMPTS
from django_perfectqueue.payload.limit_names import filled

from .definition import (
    DEFAULTS,
    QueueTask,
    StoredCall,
    add,
    check_options,
    definitions,
    discover_in,
    option_of,
    stored_options,
)

if TYPE_CHECKING:
    from django_perfectqueue.compat import AnyResult, AnyTask
    from django_perfectqueue.queue import Batch, Duration, Queue


APP_LABEL = "django_perfectqueue"

TaskCall = tuple["AnyTask", Iterable[object], Mapping[str, object]]


def arguments_of(call: Any, task: AnyTask) -> dict[str, object]:
    """Return the arguments of a call, by name; raise InvalidTask for what a task can't take."""
    context = [None] if task.takes_context else []
    try:
        given = signature(task.func).bind(*context, *call.args, **call.kwargs)
    except TypeError as error:
        raise compat.InvalidTask(str(error)) from error
    given.apply_defaults()
    return dict(list(given.arguments.items())[len(context) :])


# What goes by the key of a task, which a random one would have do nothing.
OF_ITS_KEY = ("unique", "unique_for", "debounce")


class PerfectQueueBackend(compat.BaseTaskBackend):
    """
    Keeps Django's tasks in the queue's tables, where ``pq_worker`` finds them.

    A task is stored in the caller's transaction. ``OPTIONS`` may have ``database``, the
    alias of the database that holds the tasks; ``modules``, where tasks are defined
    beside the ``tasks`` modules of the apps; ``id_function``, which makes the ids of tasks
    that are given no key; ``max_attempts``, ``backoff`` and ``time_limit`` for tasks that
    have none of their own. The first two of these may as well stand beside OPTIONS, as
    ``MAX_ATTEMPTS`` and ``BACKOFF``.
    """

    task_class = QueueTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        self.params = params
        given = {
            name.lower(): params[name] for name in ("MAX_ATTEMPTS", "BACKOFF") if name in params
        }
        self.options = {**given, **self.options}
        self.queue_names = list(dict.fromkeys(params.get("QUEUES", ["default"])))
        # The paths of definitions; what using() makes of them is validated each time.
        self.validated: set[str] = set()

    @property
    def using(self) -> str:
        """The alias of the database that holds the tasks."""
        from django_perfectqueue.queue import database

        return str(self.options.get("database") or database())

    def validate_task(self, task: AnyTask) -> None:
        """
        Raise InvalidTask when the task can't be run as it is.

        Raise ImproperlyConfigured where the app with the tables is not installed. ``@task``
        calls this, so the module of the tasks can't be imported then.
        """
        if not is_installed():
            problem = not_installed(self.alias)
            raise ImproperlyConfigured(f"{problem.msg} {problem.hint}")
        if not isinstance(task.run_after, datetime | None):
            raise compat.InvalidTask(
                "run_after must be a time with a zone, such as"
                f" timezone.now() + timedelta(hours=1), not {task.run_after!r}."
            )
        super().validate_task(task)
        check_options(task)

    def enqueue(self, task: AnyTask, args: Iterable[object], kwargs: Mapping[str, object]) -> Any:
        """
        Store a task in the caller's transaction; return its result, which is to come.

        Raise InvalidTask, TypeError for arguments that JSON can't hold, and
        AlreadyExistsError for a ``key`` that is taken.
        """
        on_conflict = option_of(task, "on_conflict")
        try:
            result, submission = self.prepared(task, args, kwargs)
            handle = self.target(task).submit(**submission, on_conflict=on_conflict)
        except (exceptions.InvalidTaskError, exceptions.NotFoundError) as error:
            raise compat.InvalidTask(str(error)) from error
        object.__setattr__(result, "id", handle.key)
        if on_conflict == "ignore" and option_of(task, "debounce") is None:
            there = self.get_result(result.id)
            if there.enqueued_at != result.enqueued_at:
                return there
        compat.signals.task_enqueued.send(type(self), task_result=result)
        return result

    def enqueue_many(self, calls: Iterable[TaskCall]) -> list[AnyResult]:
        """
        Store a task for each ``(task, args, kwargs)``, all or none, in a few statements.

        Raise what enqueue() raises.
        """
        from django_perfectqueue.store import newest_key

        targets: dict[object, tuple[Queue | Batch, list[dict[str, Any]]]] = {}
        try:
            prepared = [(task, *self.prepared(task, args, kwargs)) for task, args, kwargs in calls]
            for task, _result, submission in prepared:
                for name in ("on_conflict", "unique", "unique_for"):
                    if option_of(task, name) not in ("raise", None):
                        raise compat.InvalidTask(f"{name} is for one task, not for enqueue_many().")
                where = (task.queue_name, option_of(task, "batch"))
                targets.setdefault(where, (self.target(task), []))[1].append(submission)
            with transaction.atomic(using=self.using):
                for target, submissions in targets.values():
                    target.submit_many(submissions)
        except (exceptions.InvalidTaskError, exceptions.NotFoundError) as error:
            raise compat.InvalidTask(str(error)) from error
        for task, result, _submission in prepared:
            if option_of(task, "debounce") is not None:
                newest = newest_key(task.queue_name, result.id, using=self.using)
                object.__setattr__(result, "id", newest)
            compat.signals.task_enqueued.send(type(self), task_result=result)
        return [result for _task, result, _submission in prepared]

    def prepared(
        self, task: AnyTask, args: Iterable[object], kwargs: Mapping[str, object]
    ) -> tuple[AnyResult, dict[str, Any]]:
        """
        Return the result of a task that is to be stored, and what to submit for it.

        Raise InvalidTask, or InvalidTaskError for a limit or a key that can't be made.
        """
        from django_perfectqueue.queue import ARGUMENTS

        path = task.module_path
        definition = definitions.get(path)
        if task is not definition or path not in self.validated:
            self.validate_task(task)
            if definition is None:
                add(task)
            self.validated.add(path)
        result: AnyResult = compat.TaskResult(
            task=task,
            id="",
            status=compat.TaskResultStatus.READY,
            enqueued_at=timezone.now(),
            started_at=None,
            finished_at=None,
            last_attempted_at=None,
            args=list(args),
            kwargs=dict(kwargs),
            backend=self.alias,
            errors=[],
            worker_ids=[],
        )
        # Queue.submit() and Batch.submit() have defaults of their own.
        given = {
            name: value
            for name in ARGUMENTS
            if name in DEFAULTS and (value := getattr(task, name, None))
        }
        names = {
            name: self.task_key(task, name, result)
            for name in ("user", "key", "sequence")
            if callable(given.get(name))
        }
        given.pop("unique_by", None)
        if (by := getattr(task, "unique_by", None)) is not None:
            if "key" in given:
                raise compat.InvalidTask("unique_by makes the key: give no key.")
            names["key"] = inputs.key_by(path, arguments_of(result, task), by)
        if given.get("limits") == option_of(definition or task, "limits") != ():
            batch = option_of(task, "batch")
            user = names.get("user") or given.get("user") or (batch.user if batch else "")
            given["limits"] = filled(given["limits"], partial(arguments_of, result, task), user)
        key = names.get("key") or given.get("key")
        if key is None:
            if merged := [name for name in OF_ITS_KEY if given.get(name) is not None]:
                raise compat.InvalidTask(f"{merged[0]} goes by the key: give key or unique_by.")
            key = self.new_id()
        object.__setattr__(result, "id", key)
        task_options = stored_options(task, task if definition is None else definition, names)
        call = StoredCall(result.args, result.kwargs, result.enqueued_at, task_options)
        submission = {
            **given,
            **names,
            "key": key,
            "type": path,
            "data": call.data,
            "priority": task.priority,
            "run_at": task.run_after,
            # What its definition says is read where it runs.
            **{name: task_options.get(name) for name in ("time_limit", *OF_ATTEMPTS)},
        }
        return result, submission

    def task_key(self, task: AnyTask, name: str, result: AnyResult) -> str:
        """Return the name that a task's function makes of the arguments."""
        made = option_of(task, name)(tuple(result.args), result.kwargs)
        if not isinstance(made, str) or not made:
            raise compat.InvalidTask(f"The function for {name} must return a text, not {made!r}.")
        return made

    def new_id(self) -> str:
        given = self.options.get("id_function") or uuid.uuid4
        made = import_string(given)() if isinstance(given, str) else given()
        if isinstance(made, str | uuid.UUID):
            return str(made)
        raise compat.InvalidTask(f"The id_function must return a UUID or a text, not {made!r}.")

    def target(self, task: AnyTask) -> Queue | Batch:
        """Return where a task is submitted; raise InvalidTask for a batch elsewhere."""
        batch: Batch | None = option_of(task, "batch")
        if batch is None:
            return self.queue_named(task.queue_name)
        if not hasattr(batch, "queue"):
            raise compat.InvalidTask(
                f"batch must be a batch, as of Queue().batch(), not {batch!r}."
            )
        if (batch.queue.name, batch.using) != (task.queue_name, self.using):
            raise compat.InvalidTask(
                f"Batch '{batch.name}' is in queue '{batch.queue.name}' of database"
                f" '{batch.using}', its task would go to queue '{task.queue_name}' of"
                f" '{self.using}': say using(queue_name=...), or begin the batch there."
            )
        return batch

    def queue_named(self, name: str) -> Queue:
        from django_perfectqueue.queue import Queue

        return Queue(name, using=self.using)

    def get_result(self, result_id: str) -> AnyResult:
        """
        Return the result of a task, by one statement where QUEUES names the queues.

        Raise TaskResultDoesNotExist where there is none, where it is none of Django's
        tasks, or where its function is not known here.
        """
        from django_perfectqueue.models import Task

        from . import results

        if not inputs.KEY.holds(result_id):
            raise compat.TaskResultDoesNotExist(result_id)
        # Without QUEUES all that have tasks, by a look at the index for each.
        rows_of_all = Task.objects.using(self.using)
        queues = self.queue_names or distinct(rows_of_all, "queue", limit=None)
        rows = results.rows_of(result_id, queues, using=self.using)
        if not rows:
            raise compat.TaskResultDoesNotExist(result_id)
        definition = definition_of(rows[0]["type"])
        if definition is None:
            raise compat.TaskResultDoesNotExist(
                f"{result_id} is of the type '{rows[0]['type']}', which is no task of Django"
                " that is known here."
            )
        try:
            return results.result_of(rows, definition, alias=self.alias)
        except exceptions.PayloadError as error:
            raise compat.TaskResultDoesNotExist(f"{result_id}: {error}") from error

    def wait(self, result: Any, timeout: Duration | None = None) -> AnyResult:
        """
        Wait until a task has ended; return its result anew, successful or failed.

        It is given by its result or the id of that. ``timeout`` is a timedelta, seconds or a
        span such as "5m30s"; None is for ever. Raise TaskResultDoesNotExist where there is
        none, or none any more; WaitTimeoutError when it has not ended in time;
        WaitInTransactionError in an open transaction.
        """
        found = self.get_result(getattr(result, "id", result))
        if found.is_finished:
            return found
        queue = self.queue_named(found.task.queue_name)
        with lost_as_no_result():
            for _end in queue.as_completed([found.id], timeout):
                pass
        return self.get_result(found.id)

    async def wait_async(self, result: Any, timeout: Duration | None = None) -> AnyResult:
        """Do what wait() does, without holding up the event loop."""
        found = await sync_to_async(self.get_result)(getattr(result, "id", result))
        if found.is_finished:
            return found
        queue = self.queue_named(found.task.queue_name)
        with lost_as_no_result():
            async for _end in queue.as_completed_async([found.id], timeout):
                pass
        return await sync_to_async(self.get_result)(found.id)

    def check(self, **kwargs: object) -> list[CheckMessage]:
        """
        Return that the app is not installed, if so.

        An installed app checks its backends itself, once, whether Django asks them or not.
        """
        missing = [] if is_installed() else [not_installed(self.alias)]
        return [*super().check(**kwargs), *missing]


@contextmanager
def lost_as_no_result() -> Iterator[None]:
    """Raise for a task that is gone what Django's tasks raise for it."""
    try:
        yield
    except exceptions.NotFoundError as error:
        raise compat.TaskResultDoesNotExist(str(error)) from error


def configured() -> Iterator[PerfectQueueBackend]:
    """Yield the backends in TASKS that are a PerfectQueueBackend or derived from it."""
    for alias in compat.task_backends:
        try:
            backend = compat.task_backends[alias]
        except compat.InvalidTaskBackend:
            continue
        if isinstance(backend, PerfectQueueBackend):
            yield backend


def discover() -> None:
    """Import all modules in which tasks are defined."""
    discover_in(name for one in configured() for name in one.options.get("modules", ()))


def definition_of(type_: str) -> AnyTask | None:
    """Return the task of this type, or None; its module is looked for where tasks may be."""
    if type_ not in definitions and apps.ready:
        discover()
    return definitions.get(type_)


def not_installed(alias: str) -> CheckMessage:
    return checks.Error(
        f"TASKS['{alias}'] keeps its tasks in tables that are not there: '{APP_LABEL}' is not"
        " installed.",
        hint=f"Add '{APP_LABEL}' to INSTALLED_APPS, and migrate.",
        id="perfectqueue.E030",
    )


def is_installed() -> bool:
    """Return whether the app is installed; True until Django has loaded the apps."""
    return not apps.apps_ready or apps.is_installed(APP_LABEL)


# Django's own backends for tests, for tasks that have words of a queue.


class Tolerant(compat.BaseTaskBackend):
    """Takes the words of a queue, which do nothing, and many tasks one by one."""

    task_class = QueueTask

    def enqueue_many(self, calls: Iterable[TaskCall]) -> object:
        return [self.enqueue(task, list(args), dict(kwargs)) for task, args, kwargs in calls]


class ImmediateBackend(Tolerant, compat.ImmediateBackend):
    """Runs a task at once, as Django's own does."""


class DummyBackend(Tolerant, compat.DummyBackend):
    """Keeps tasks in memory, as Django's own does."""
