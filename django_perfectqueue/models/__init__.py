"""
The rows.

A task is two rows. ``Task`` is wide and written twice: at submit, and when it ends.
``Ticket`` is narrow, exists only while the task has yet to end, and carries all that
changes on the way. Neither has an index on a column that the other phase writes.
"""

from django_perfectqueue.payload.codecs import EVERYONE

from .batch import (
    DISCARDED_GROUP,
    Batch,
    BatchDelta,
    BatchMember,
    DeadLetter,
    Dependency,
    DependencyEvent,
    IfFailed,
)
from .rule import (
    CHANGES,
    CHANGES_OF_ONE,
    MOST_BURST_TIME,
    Account,
    Change,
    FairShare,
    Hold,
    Lane,
    Limit,
    Meter,
    Pausable,
    Policy,
    QueueShare,
)
from .schedule import NAME_LENGTH, Schedule
from .status import (
    DEAD,
    LIVE,
    PARKED_FROM,
    UNFINISHED,
    LastEnding,
    Outcome,
    State,
    Status,
    condition,
    id_for,
)
from .task import (
    Attempt,
    Journal,
    Step,
    Tag,
    Task,
    TaskQuerySet,
    Ticket,
    Watch,
    type_condition,
)
from .worker import ALL_TYPES, UNSEEN, WAIT_BUCKETS, Bucket, Overview, Usage, Worker, WorkerQuerySet

__all__ = [
    "ALL_TYPES",
    "CHANGES",
    "CHANGES_OF_ONE",
    "DEAD",
    "DISCARDED_GROUP",
    "EVERYONE",
    "LIVE",
    "MOST_BURST_TIME",
    "NAME_LENGTH",
    "PARKED_FROM",
    "UNFINISHED",
    "UNSEEN",
    "WAIT_BUCKETS",
    "Account",
    "Attempt",
    "Batch",
    "BatchDelta",
    "BatchMember",
    "Bucket",
    "Change",
    "DeadLetter",
    "Dependency",
    "DependencyEvent",
    "FairShare",
    "Hold",
    "IfFailed",
    "Journal",
    "Lane",
    "LastEnding",
    "Limit",
    "Meter",
    "Outcome",
    "Overview",
    "Pausable",
    "Policy",
    "QueueShare",
    "Schedule",
    "State",
    "Status",
    "Step",
    "Tag",
    "Task",
    "TaskQuerySet",
    "Ticket",
    "Usage",
    "Watch",
    "Worker",
    "WorkerQuerySet",
    "condition",
    "id_for",
    "type_condition",
]
