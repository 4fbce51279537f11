"""
Django's tasks, from Django itself or from the package ``django-tasks``.

Django has them since 6.0, natively and with these names; for 5.2 there is the backport,
with a few other names. Everything here that has to do with them imports them from this
module, for the two must never be mixed. Where there are neither, ``HAS_TASKS`` is False
and nothing else is here.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

HAS_NATIVE_TASKS = find_spec("django.tasks") is not None
HAS_TASKS = HAS_NATIVE_TASKS or find_spec("django_tasks") is not None

if TYPE_CHECKING or HAS_NATIVE_TASKS:
    from django.tasks import base, signals, task_backends
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.backends.dummy import DummyBackend
    from django.tasks.backends.immediate import ImmediateBackend
    from django.tasks.exceptions import InvalidTask, InvalidTaskBackend, TaskResultDoesNotExist
    from django.utils.json import normalize_json

    APP = None
    """The app that has to be installed for them, if any."""
elif HAS_TASKS:
    from django_tasks import base, exceptions, signals, task_backends
    from django_tasks.backends.base import BaseTaskBackend
    from django_tasks.backends.dummy import DummyBackend
    from django_tasks.backends.immediate import ImmediateBackend
    from django_tasks.exceptions import TaskResultDoesNotExist
    from django_tasks.utils import normalize_json

    InvalidTask = getattr(exceptions, "InvalidTask", None) or exceptions.InvalidTaskError
    InvalidTaskBackend = (
        getattr(exceptions, "InvalidTaskBackend", None) or exceptions.InvalidTaskBackendError
    )
    APP = "django_tasks"

if TYPE_CHECKING or HAS_TASKS:
    Task = base.Task
    TaskContext = base.TaskContext
    TaskError = base.TaskError
    TaskResult = base.TaskResult
    TaskResultStatus = base.TaskResultStatus

    def task(
        function: Callable[..., object] | None = None,
        *,
        backend: str = base.DEFAULT_TASK_BACKEND_ALIAS,
        priority: int = base.DEFAULT_TASK_PRIORITY,
        queue_name: str = base.DEFAULT_TASK_QUEUE_NAME,
        takes_context: bool = False,
        **words: Any,
    ) -> Any:
        """
        Do what Django's ``@task`` does, and take a backend's own words, too.

        Django's own takes them since 6.1. Raise TypeError for a word that the backend
        does not know.
        """
        if "run_after" in words:
            raise TypeError("run_after can't be given to @task. Use .using(run_after=...).")
        define = functools.partial(
            task_backends[backend].task_class,
            backend=backend,
            priority=priority,
            queue_name=queue_name,
            takes_context=takes_context,
            run_after=None,
            **words,
        )
        return (lambda given: define(func=given)) if function is None else define(func=function)

    if "kwargs" in inspect.signature(base.task).parameters:
        task = base.task  # type: ignore[assignment]

if TYPE_CHECKING:
    AnyTask = base.Task[..., Any]
    AnyResult = base.TaskResult[..., Any]
