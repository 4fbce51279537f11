"""Django's TaskResult of a task, from its row or while it runs."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from django.db.models import F
from django.utils import timezone

from django_perfectqueue import exceptions, store, verdicts
from django_perfectqueue.application.error_policy import failure
from django_perfectqueue.compat import TaskError, TaskResult, TaskResultStatus
from django_perfectqueue.lib.imports import path_of
from django_perfectqueue.models import DISCARDED_GROUP, Attempt, Outcome, Status, Task
from django_perfectqueue.payload.codecs import decode
from django_perfectqueue.queue import AcquiredTask

from .definition import StoredCall, variant

if TYPE_CHECKING:
    from django_perfectqueue.compat import AnyResult, AnyTask

READY, RUNNING = TaskResultStatus.READY, TaskResultStatus.RUNNING
FAILED, SUCCESSFUL = TaskResultStatus.FAILED, TaskResultStatus.SUCCESSFUL

STATUSES = {
    **dict.fromkeys((Status.WAITING, Status.SCHEDULED, Status.RETRYING, Status.BLOCKED), READY),
    **dict.fromkeys((Status.RUNNING, Status.STALLED), RUNNING),
    **dict.fromkeys((Status.FAILED, Status.CANCELLED, Status.EXPIRED), FAILED),
    Status.FINISHED: SUCCESSFUL,
}

KINDS: dict[str, type[Exception]] = {
    "lost": exceptions.LostError,
    "crashed": exceptions.LostError,
    "cancelled": exceptions.CancelRequestedError,
    "expired": exceptions.ExpiredError,
    DISCARDED_GROUP: verdicts.Discard,
}

USUAL = {one.name: one.default for one in fields(TaskResult) if one.default is not MISSING}

COLUMNS = (
    "id",
    "queue",
    "key",
    "type",
    "payload",
    "priority",
    "created_at",
    "outcome",
    "worker",
    "started_at",
    "ended_at",
    "result_text",
    "status",
)
OF_ATTEMPTS = ("worker", "started_at", "error", "message", "traceback")


def rows_of(key: str, queues: Sequence[str], *, using: str) -> list[dict[str, Any]]:
    """
    Return what is stored of a task, by one statement: a row for each attempt that ended.

    There is one, without an attempt, where none has ended. Of tasks with the same key in
    several queues the youngest is taken.
    """
    query = (
        Task.objects.using(using)
        .filter(queue__in=queues, key=key)
        .order_by("-id", "attempts__id")
        .values(
            *COLUMNS,
            holder=F("ticket__holder"),
            letter=F("dead_letter__group"),
            letter_message=F("dead_letter__message"),
            attempt_id=F("attempts__id"),
            **{f"attempt_{name}": F(f"attempts__{name}") for name in OF_ATTEMPTS},
        )
    )
    rows = store.database.with_retries(lambda: list(query), using=using)
    return [row for row in rows if row["id"] == rows[0]["id"]]


def result_of(rows: Sequence[Mapping[str, Any]], definition: AnyTask, *, alias: str) -> AnyResult:
    """
    Return the result of a task that has these rows.

    Raise PayloadError when its data can't be read.
    """
    row = rows[0]
    tries = [
        {name: row[f"attempt_{name}"] for name in OF_ATTEMPTS}
        for row in rows
        if row["attempt_id"] is not None
    ]
    starts = [one["started_at"] for one in tries if one["started_at"]]
    workers = [one["worker"] for one in tries]
    status = STATUSES[row["status"]]
    if row["outcome"] == Outcome.FINISHED and row["started_at"]:
        starts.append(row["started_at"])
        workers.append(row["worker"])
    elif status == RUNNING:
        workers.append(f"{row['holder'] or 0:x}")
    errors = [error_of(one) for one in tries]
    is_in_attempts = bool(tries) and row["letter"] in (tries[-1]["error"], DISCARDED_GROUP)
    if status == FAILED and not is_in_attempts:
        errors.append(build_error(row["letter"], row["letter_message"] or ""))
    result = build_result(
        row["key"],
        StoredCall.of(decode(row["payload"])),
        definition,
        queue=row["queue"],
        priority=row["priority"],
        created_at=row["created_at"],
        alias=alias,
        status=status,
        started_at=starts[0] if starts else None,
        last_attempted_at=starts[-1] if starts else None,
        finished_at=row["ended_at"],
        errors=errors,
        worker_ids=workers,
    )
    if status == SUCCESSFUL and row["result_text"] is not None:
        set_attributes(result, _return_value=decode(row["result_text"]))
    return result


def running_result(task: AcquiredTask, call: StoredCall, definition: AnyTask) -> AnyResult:
    """Return the result of a task whose next attempt began in this process."""
    now = timezone.now() - timedelta(seconds=time.monotonic() - task.started)
    lease = task.lease
    tries: list[dict[str, Any]] = []
    if lease.attempt > 1:
        attempts = Attempt.objects.using(lease.using).filter(task_id=lease.task_id)
        tries = list(attempts.order_by("id").values(*OF_ATTEMPTS))
    starts = [one["started_at"] for one in tries if one["started_at"]]
    return build_result(
        lease.key,
        call,
        definition,
        queue=lease.queue,
        priority=lease.priority,
        created_at=lease.created_at,
        alias=call.task_options.get("backend", definition.backend),
        status=RUNNING,
        started_at=starts[0] if starts else now,
        last_attempted_at=now,
        finished_at=None,
        errors=[error_of(one) for one in tries],
        worker_ids=[*(one["worker"] for one in tries), task.worker],
    )


def build_result(
    key: str,
    call: StoredCall,
    definition: AnyTask,
    *,
    queue: str,
    priority: int,
    created_at: datetime,
    alias: str,
    **facts: object,
) -> AnyResult:
    """
    Return a result of values that have been through JSON.

    Its own constructor would bring the arguments into that form once more.
    """
    result: AnyResult = object.__new__(TaskResult)
    set_attributes(
        result,
        **USUAL,
        **facts,
        task=variant(definition, call, queue=queue, priority=priority),
        id=key,
        enqueued_at=call.enqueued_at or created_at,
        args=call.args,
        kwargs=call.kwargs,
        backend=alias,
    )
    return result


def set_attributes(result: AnyResult, **values: object) -> None:
    """Set attributes of a result, which is frozen for its users."""
    for name, value in values.items():
        object.__setattr__(result, name, value)


def error_of(attempt: Mapping[str, Any]) -> object:
    return build_error(attempt["error"], attempt["traceback"] or attempt["message"])


def build_error(name: str, traceback: str) -> object:
    """Return an error by the path of its class, or by this package's word for it."""
    if "." not in name or not name.replace(".", "_").isidentifier():
        name = path_of(KINDS.get(name, exceptions.TaskError))
    return TaskError(exception_class_path=name, traceback=traceback)


def error_from_exception(raised: BaseException) -> Any:
    why = failure(raised)
    return TaskError(exception_class_path=why.error, traceback=why.traceback)
