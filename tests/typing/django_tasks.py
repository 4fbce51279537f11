"""What a type checker says of Django's tasks. Never run: mypy and pyright read it."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any, assert_type

from django.tasks import TaskContext, TaskResult, task

from django_perfectqueue.backend import PerfectQueueBackend, QueueTask
from django_perfectqueue.backend import task as queue_task
from django_perfectqueue.schedules import every, scheduled
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


@scheduled(every("10m"))
@queue_task(max_attempts=2)
def tick() -> int:
    return 1


assert_type(tick.call(), int)


def waits(error: BaseException, result: TaskResult[Any, Any]) -> float | None:
    return 60 if result.attempts < 3 else None


@queue_task
def plain(number: int) -> int:
    return number


@queue_task(max_attempts=5, backoff=waits, user="ann", limits=["mail"])
def send(to: str, *, subject: str) -> bool:
    return bool(to + subject)


@queue_task(takes_context=True, key="only one")
def attempts(context: TaskContext[Any, Any], most: int) -> int:
    return min(context.attempt, most)


def with_words() -> None:
    assert_type(plain.enqueue(1).return_value, int)
    assert_type(send.enqueue("ann", subject="Hello").return_value, bool)
    assert_type(attempts.enqueue(3).return_value, int)
    later = send.using(user="bob", run_after=datetime.now(timezone.utc))
    assert_type(later.enqueue("bob", subject="Hello").return_value, bool)
    assert_type(later.get_result("k1").return_value, bool)
    send.enqueue("ann")  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]
    attempts.enqueue("3")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]


def enqueueing() -> None:
    assert_type(double.enqueue(21).return_value, int)
    fetch.enqueue("https://example.com")
    assert_type(number.enqueue().return_value, int)
    assert_type(double.using(priority=3).enqueue(2).return_value, int)
    double.enqueue("x")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    drain(types=[double, "report"])
    QueueTestCase().assertSubmitted(double, args=[21])


def ours(backend: PerfectQueueBackend, known: QueueTask[[int], str]) -> None:
    assert_type(known.using(user="ann", max_attempts=3), QueueTask[[int], str])
    result: TaskResult[Any, Any] = backend.enqueue(double, [1], {})
    del result
