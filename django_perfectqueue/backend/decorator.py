"""Django's ``@task``, for which type checkers know the words of a queue."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar, overload

from django_perfectqueue import compat

from .definition import QueueTask

P = ParamSpec("P")
R = TypeVar("R")

if TYPE_CHECKING:

    @overload
    def task(function: Callable[P, R]) -> QueueTask[P, R]: ...
    @overload
    def task(
        *, takes_context: Literal[True], **task_options: Any
    ) -> Callable[[Callable[Concatenate[compat.TaskContext[Any, Any], P], R]], QueueTask[P, R]]: ...
    @overload
    def task(**task_options: Any) -> Callable[[Callable[P, R]], QueueTask[P, R]]: ...
    def task(function: Any = None, **task_options: Any) -> Any:
        """Do what Django's ``@task`` does, and take a backend's own words, too."""
        return compat.task(function, **task_options)

else:
    task = compat.task
