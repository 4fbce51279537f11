"""What a type checker says of what is for tests. Never run: mypy and pyright read it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, assert_type

from django_perfectqueue.queue import Queue, TaskHandle
from django_perfectqueue.test import (
    Drained,
    QueueTestCase,
    Run,
    SubmittedTask,
    adrain,
    drain,
    eager,
    make_task,
    submitted,
)


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
    assert_type(drained.results, list[Any])
    assert_type(drained[0].error, BaseException | None)
    drain(limits=3)  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]
    await adrain(limits=3)  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]


def making() -> None:
    with eager(raise_errors=False):
        pass
    assert_type(submitted("report", data={"n": 1}), list[SubmittedTask])
    assert_type(make_task("report", status="failed"), TaskHandle)
