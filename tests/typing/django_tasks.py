"""What a type checker says of Django's tasks. Never run: mypy and pyright read it."""

from __future__ import annotations

from typing import Any, assert_type

from django.tasks import TaskContext, TaskResult, task

from django_perfectqueue.backend import PerfectQueueBackend, QueueTask
from django_perfectqueue.test import QueueTestCase, drain


@task
def double(number: int) -> int:
    return number * 2


@task(priority=5)
async def fetch(url: str) -> bytes:
    return url.encode()


@task(takes_context=True)
def number(context: TaskContext[Any, Any]) -> int:
    return context.attempt


def enqueueing() -> None:
    assert_type(double.enqueue(21).return_value, int)
    fetch.enqueue("https://example.com")
    assert_type(number.enqueue().return_value, int)
    assert_type(double.using(priority=3).enqueue(2).return_value, int)
    double.enqueue("x")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    drain(types=[double, "report"])
    QueueTestCase().assertSubmitted(double, args=[21])


def ours(backend: PerfectQueueBackend, known: QueueTask) -> None:
    assert_type(known.using(user="ann", max_attempts=3), QueueTask)
    result: TaskResult[Any, Any] = backend.enqueue(double, [1], {})
    del result
