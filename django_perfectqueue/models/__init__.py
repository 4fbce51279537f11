"""
The rows.

A task is two rows. ``Task`` is wide and written twice: at submit, and when it ends.
``Ticket`` is narrow, exists only while the task has yet to end, and carries all that
changes on the way. Neither has an index on a column that the other phase writes.
"""

from django_perfectqueue.payload.names import EVERYONE, LAST_CHARACTER, LIMIT_LENGTH, LIMITS_LENGTH

from .batch import Batch, BatchDelta, BatchMember
from .dead_letter import DISCARDED_GROUP, DeadLetter
from .dependency import Dependency, DependencyEvent, IfFailed
from .fields import UNDELETABLE, Kept, M, NoDeleteQuerySet
from .lane import Account, Hold, Lane, Policy
from .rule import (
    CHANGES,
    CHANGES_OF_ONE,
    LEAST_PERIOD,
    LEAST_WEIGHT,
    MOST_BURST_TIME,
    MOST_PERIOD,
    MOST_WEIGHT,
    Change,
    FairShare,
    Limit,
    Meter,
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
    live_conditions,
)
from .task import (
    Attempt,
    Journal,
    JournalQuerySet,
    Step,
    Tag,
    Task,
    TaskManager,
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
    "LAST_CHARACTER",
    "LEAST_PERIOD",
    "LEAST_WEIGHT",
    "LIMITS_LENGTH",
    "LIMIT_LENGTH",
    "LIVE",
    "MOST_BURST_TIME",
    "MOST_PERIOD",
    "MOST_WEIGHT",
    "NAME_LENGTH",
    "PARKED_FROM",
    "UNDELETABLE",
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
    "JournalQuerySet",
    "Kept",
    "Lane",
    "LastEnding",
    "Limit",
    "M",
    "Meter",
    "NoDeleteQuerySet",
    "Outcome",
    "Overview",
    "Policy",
    "QueueShare",
    "Schedule",
    "State",
    "Status",
    "Step",
    "Tag",
    "Task",
    "TaskManager",
    "TaskQuerySet",
    "Ticket",
    "Usage",
    "Watch",
    "Worker",
    "WorkerQuerySet",
    "condition",
    "id_for",
    "live_conditions",
    "type_condition",
]
