"""What a type checker says of what is for tests. Never run: mypy and pyright read it."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any, assert_type

from django_perfectqueue.application import Application
from django_perfectqueue.queue import AcquiredTask, Queue, TaskHandle
from django_perfectqueue.test import (
    Drained,
    QueueTestCase,
    Recording,
    RehearsedTask,
    Run,
    SubmittedTask,
    adrain,
    drain,
    eager,
    make_acquired,
    make_task,
    recording,
    run_handler,
    submitted,
)


class Work(Application):
    def perform(self) -> int:
        return 1


def work(task: AcquiredTask) -> int:
    return 1


class Tests(QueueTestCase):
    def test_all(self) -> None:
        assert_type(self.queue, Queue)
        assert_type(self.drain(), Drained)
        assert_type(self.assertSubmitted("report", user="ann", count=1), list[SubmittedTask])
        with self.assertSubmits("report") as found:
            assert_type(found, list[SubmittedTask])
        self.assertTaskStatus(self.queue["k1"], "finished")


async def draining() -> None:
    drained = drain("default", ahead=timedelta(hours=1), until=lambda run: run.key == "k1")
    assert_type(drained, Drained)
    assert_type(await adrain(ahead="1h"), Drained)
    assert_type(drained[0], Run)
    assert_type(drained.counts, Counter[str])
    assert_type(drained.results, list[Any])
    assert_type(drained[0].error, BaseException | None)
    drain(limits=3)  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]
    await adrain(limits=3)  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]


def making() -> None:
    with recording() as recorded, eager(raise_errors=False):
        assert_type(recorded, Recording)
        assert_type(recorded[0], SubmittedTask)
    assert_type(submitted("report", data={"n": 1}), list[SubmittedTask])
    assert_type(make_task("report", status="failed"), TaskHandle)
    task = make_acquired("report", {"n": 1}, attempt=2)
    assert_type(task, RehearsedTask)
    assert_type(run_handler(work, task=task), Run)
    assert_type(run_handler(Work, {"n": 1}, user="ann").wait, float | None)
    assert_type(work(task), int)
