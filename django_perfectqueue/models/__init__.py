"""
The rows.

A task is two rows. ``Task`` is wide and written twice: at submit, and when it ends.
``Ticket`` is narrow, exists only while the task has yet to end, and carries all that
changes on the way. Neither has an index on a column that the other phase writes.
"""

from django_perfectqueue.payload.codecs import EVERYONE as EVERYONE

from .batch import DISCARDED_GROUP as DISCARDED_GROUP
from .batch import JOINED as JOINED
from .batch import Batch as Batch
from .batch import BatchDelta as BatchDelta
from .batch import BatchMember as BatchMember
from .batch import DeadLetter as DeadLetter
from .batch import DebouncedSubmit as DebouncedSubmit
from .batch import Dependency as Dependency
from .batch import DependencyEvent as DependencyEvent
from .batch import IfFailed as IfFailed
from .rule import CHANGES as CHANGES
from .rule import CHANGES_OF_ONE as CHANGES_OF_ONE
from .rule import FAMILY as FAMILY
from .rule import MOST_BURST_TIME as MOST_BURST_TIME
from .rule import Account as Account
from .rule import Change as Change
from .rule import FairShare as FairShare
from .rule import Hold as Hold
from .rule import Lane as Lane
from .rule import Limit as Limit
from .rule import Meter as Meter
from .rule import Pausable as Pausable
from .rule import Policy as Policy
from .rule import QueueShare as QueueShare
from .schedule import NAME_LENGTH as NAME_LENGTH
from .schedule import Schedule as Schedule
from .status import DEAD as DEAD
from .status import GOES_ON as GOES_ON
from .status import LIVE as LIVE
from .status import PARKED_FROM as PARKED_FROM
from .status import UNFINISHED as UNFINISHED
from .status import LastEnding as LastEnding
from .status import Outcome as Outcome
from .status import State as State
from .status import Status as Status
from .status import condition as condition
from .status import id_for as id_for
from .task import Attempt as Attempt
from .task import Journal as Journal
from .task import Step as Step
from .task import Tag as Tag
from .task import Task as Task
from .task import TaskQuerySet as TaskQuerySet
from .task import Ticket as Ticket
from .task import Watch as Watch
from .task import begins as begins
from .task import type_condition as type_condition
from .worker import ALL_TYPES as ALL_TYPES
from .worker import UNSEEN as UNSEEN
from .worker import WAIT_BUCKETS as WAIT_BUCKETS
from .worker import Bucket as Bucket
from .worker import Overview as Overview
from .worker import Usage as Usage
from .worker import Worker as Worker
