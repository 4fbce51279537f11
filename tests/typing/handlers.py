"""What a type checker says of handlers. Never run: mypy and pyright read it."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any, assert_type

from django_perfectqueue.application import (
    Application,
    Decider,
    Dispatch,
    Registry,
    autodiscover,
    handler,
)
from django_perfectqueue.queue import AcquiredTask, Queue
from django_perfectqueue.schedules import every, scheduled


@handler("report")
def report(task: AcquiredTask) -> dict[str, int]:
    return {"n": 1}


@handler("fetch", re.compile("^fetch[.]"), max_attempts=3, retry_wait=5)
async def fetch(task: AcquiredTask) -> str:
    await task.aheartbeat()
    return task.key


class ImportDecider(Decider):
    def unexpected_error_raised(self, error: BaseException) -> None:
        assert_type(self.task, AcquiredTask)
        assert_type(self.queue, Queue)
        self.task.fail("bad", str(error))


@handler("import")
class Import(Application):
    decider = ImportDecider
    max_attempts = 3
    time_limit = 60

    def before_perform(self) -> bool:
        return True

    def perform(self) -> int:
        assert_type(self.task, AcquiredTask)
        assert_type(self.queue, Queue)
        return len(self.task.data)

    def kill(self, reason: BaseException) -> None:
        self.interrupt(reason)


@handler("import.slowly")
class Slowly(Application):
    async def perform(self) -> int:
        return 1

    async def before_perform(self) -> bool:
        return True


class TaskDispatch(Dispatch):
    routes = {
        "report": report,
        "fetch": fetch,
        "import": Import,
        re.compile(r"^import\."): "shop.tasks.Import",
    }


@handler()
def without_a_type(task: AcquiredTask) -> None: ...


def looking(task: AcquiredTask) -> None:
    assert_type(report(task), dict[str, int])
    made: type[Import] = Import
    assert_type(made(task).perform(), int)
    assert_type(TaskDispatch.handler_for("report"), type[Application])
    assert_type(autodiscover(), type[Registry])
    function: Callable[[AcquiredTask], dict[str, int]] = report
    coroutine: Callable[[AcquiredTask], Awaitable[str]] = fetch
    assert_type(Import(task).decide("unexpected_error_raised", error=ValueError()), Any)
    report()  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]
    report("k1")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    del function, coroutine


async def awaiting(task: AcquiredTask) -> None:
    assert_type(await fetch(task), str)
    assert_type(await Slowly(task).perform(), int)


@scheduled(every("10m"))
@handler("tick")
def tick(task: AcquiredTask) -> int:
    return 1


assert_type(tick(AcquiredTask.__new__(AcquiredTask)), int)
