"""Write what a handler changes of a held task while it runs: its payload and its steps."""

from __future__ import annotations

from datetime import datetime

from ..database.transaction import in_transaction, retry_transaction
from ..leases.fence import lock_lease
from ..values import Lease

RENEW = """
UPDATE "perfectqueue_ticket" SET "timer_at" = {until} WHERE "task_id" = %(task_id)s
"""
UPDATE = 'UPDATE "perfectqueue_task" SET "data" = %(payload)s WHERE "id" = %(task_id)s'
KEEP = """
INSERT INTO "perfectqueue_step" ("task_id", "name", "result", "kept_at")
VALUES (%(task_id)s, %(name)s, %(result)s, {now})
"""
STEP = ("task_id", "name")
OF_STEP = ("result", "kept_at")


@retry_transaction
def update_payload(
    lease: Lease,
    payload: str,
    *,
    alive_time: float,
    using: str,
    now: datetime | None = None,
) -> Lease:
    """
    Write a held task's payload, and renew its lease; return the lease as it is then.

    Raise PreemptedError, and write nothing, when the lease has passed on.
    """
    with in_transaction(using) as db:
        lock_lease(db, lease)
        values = {"task_id": lease.task_id}
        db.execute(RENEW, values, now=now, after={"until": alive_time})
        db.execute(UPDATE, values | {"payload": payload})
    return lease._replace(payload=payload)


@retry_transaction
def keep_step(
    lease: Lease, name: str, result: str, *, using: str, now: datetime | None = None
) -> None:
    """
    Write what a step of a held task has returned; twice is the same.

    Raise PreemptedError, and write nothing, when the lease has passed on.
    """
    with in_transaction(using) as db:
        lock_lease(db, lease)
        values = {"task_id": lease.task_id, "name": name, "result": result}
        clause = db.dialect.upsert("perfectqueue_step", STEP, dict.fromkeys(OF_STEP, "{new}"))
        db.execute(KEEP + clause, values, now=now)
