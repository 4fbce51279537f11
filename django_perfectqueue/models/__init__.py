"""
The rows.

A task is two rows. ``Task`` is wide and written twice: at submit, and when it ends.
``Ticket`` is narrow, exists only while the task has yet to end, and carries all that
changes on the way. Neither has an index on a column that the other phase writes.
"""

from django_perfectqueue.payload.names import EVERYONE

from .batch import Batch, BatchDelta, BatchMember
from .dead_letter import DISCARDED_GROUP, DeadLetter
from .dependency import Dependency, DependencyEvent, IfFailed
from .lane import Account, Hold, Lane, Policy
from .rule import (
    CHANGES,
    CHANGES_OF_ONE,
    MOST_BURST_TIME,
    Change,
    FairShare,
    Limit,
    Meter,
    Pausable,
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
    Watch,
    type_condition,
)
from .ticket import Ticket
from .usage import ALL_TYPES, WAIT_BUCKETS, Bucket, Overview, Usage
from .worker import UNSEEN, Worker, WorkerQuerySet

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
