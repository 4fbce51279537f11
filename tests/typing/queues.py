"""What a type checker says of queues and tasks. Never run: mypy and pyright read it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from typing import Any, assert_type

from django_perfectqueue import models
from django_perfectqueue.fairness.limits import aset_limit, limit, set_limit
from django_perfectqueue.fairness.report import UserShare
from django_perfectqueue.fairness.shares import aset_share, set_share, share
from django_perfectqueue.inspection.why_waiting import Reason
from django_perfectqueue.queue import AcquiredTask, Queue, TaskHandle
from django_perfectqueue.store import Lease


def submitting(queue: Queue) -> None:
    now = datetime.now(timezone.utc)
    task = queue.submit("k1", "report", {"n": 1}, user="ann", run_at=now, priority=3)
    assert_type(task, TaskHandle)
    assert_type(queue.submit("k2", "report", run_at="5m", on_conflict="ignore"), TaskHandle)
    assert_type(queue.submit("k3", "report", run_at=timedelta(hours=1), limits=["x"]), TaskHandle)
    assert_type(queue.submit_many([{"key": "k4", "type": "report"}]), int)
    queue.submit("k5")  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]
    queue.submit("k6", "report", on_conflict="never")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    queue.submit("k7", "report", priority="high")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]


def looking(queue: Queue) -> None:
    assert_type(queue["k1"], TaskHandle)
    assert_type(queue["k1"].exists(), bool)
    assert_type(queue["k1"].metadata(), models.Task)
    assert_type(queue["k1"].why_waiting(), Reason)
    assert_type(queue["k1"].cancel_request(), bool)
    assert_type(len(queue), int)
    assert_type(queue.list(), models.TaskQuerySet)
    assert_type(queue.list().live(), models.TaskQuerySet)
    assert_type(queue.list().get(key="k1"), models.Task)
    assert_type(queue["k1"].metadata().status, str)
    assert_type(queue.shares(), Sequence[UserShare])


def acquiring(queue: Queue) -> None:
    task = queue.poll()
    assert_type(task, AcquiredTask | None)
    for one in queue:
        assert_type(one, AcquiredTask)
        assert_type(one.key, str)
        assert_type(one.attempt, int)
        assert_type(one.data, Any)
        assert_type(one.lease, Lease)
        one.finish({"done": True})
    assert_type(queue.acquire(10), list[AcquiredTask])
    if task is not None:
        task.retry(5.0)
        task.fail("bad", message="it is")


async def twins(queue: Queue) -> None:
    task = await queue.asubmit("k1", "report", {"n": 1}, user="ann")
    assert_type(task, TaskHandle)
    assert_type(await queue.asubmit_many([]), int)
    assert_type(await queue.apoll(), AcquiredTask | None)
    assert_type(await queue.aacquire(2, alive_time=60), list[AcquiredTask])
    assert_type(await queue.alen(), int)
    assert_type(await task.aexists(), bool)
    assert_type(await task.ametadata(), models.Task)
    assert_type(await queue.ashares("day"), Sequence[UserShare])
    async for one in queue:
        await one.aheartbeat()
        await one.afinish(1)
    await queue.asubmit("k2")  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]
    await queue.asubmit("k3", "report", usr="ann")  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]


async def steering() -> None:
    assert_type(set_share("ann", weight=2.0), models.FairShare)
    assert_type(share("ann"), models.FairShare)
    assert_type(await aset_share("ann", paused=True), models.FairShare)
    assert_type(set_limit("mail", rate=10, period=60), models.Limit)
    assert_type(limit("mail"), models.Limit | None)
    assert_type(await aset_limit("mail", max_running=1), models.Limit)
