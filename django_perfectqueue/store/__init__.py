"""
The only code that writes task rows: one verb a file.

A verb takes plain values and the alias of a database, runs in one transaction or joins
the caller's, reads the time from the server unless it is given as ``now``, and repeats
itself where the database asks for it or the connection is lost.

A verb always notifies other processes, and announces what becomes of tasks that nobody holds;
of a task that is held its holder announces that.
"""

from .arithmetic.fair_order import lane_of
from .claims.acquire import acquire, finish_and_acquire
from .claims.backlog_age import oldest_due, overdue
from .claims.peek import Outlook, look
from .claims.single_lane import take_alone
from .database.diagnosis import Problem
from .database.server_limits import end_idle_transactions, too_long
from .database.transaction import (
    may_be_a_row,
    problem_of,
    shared_operations,
    single_operation,
    together,
    with_retries,
)
from .dependencies.batch_counts import Progress
from .dependencies.batches import (
    batch_progress,
    create_batch,
    forget_batches,
    stop_batches,
)
from .dependencies.cancel import Dependents, cancel_request, choose, dependents
from .dependencies.fold import When
from .dependencies.graph import batches_around, batches_within, descendants
from .dependencies.submit import (
    replace_linked,
    submit_linked,
    wait_for,
    wait_no_longer_for,
)
from .lanes.apply_limit import apply_limit
from .lanes.apply_share import apply_shares
from .lanes.shares import queue_weights
from .leases.fence import STILL_HELD, outcome_of, refusal
from .leases.heartbeat import charge, heartbeat
from .leases.in_hand import in_hand, lapse
from .limits.limit_cache import forget_limits, known_limits, lane_behind
from .notify.completion import (
    Ended,
    end_channels,
    end_listener,
    ends,
    find_all,
    in_callers_transaction,
    live,
    watch,
)
from .notify.datagrams import SocketListener
from .notify.messages import Notification
from .notify.postgres import ChannelListener
from .notify.ring import listener_of
from .notify.signals import announce
from .records.dependency_events import follow
from .records.journal import write_journal
from .records.tags import tag_task, untag_task
from .records.trail import sign
from .records.usage import Tally, UsageKey, add_usage, clock, ended_so, folded, note_waiting
from .records.usage_rollup import count_submitted, roll_up
from .records.workers import register, sign_off
from .schedules.fire import SCHEDULED_FOR, fire_schedules
from .tasks.after_commit import steer, steer_waiting
from .tasks.atomic import AtomicTransaction
from .tasks.close import Loss
from .tasks.finish import finish
from .tasks.park import park, unpark, unpark_some
from .tasks.replace import replace
from .tasks.revise import Revision, revise, set_priority
from .tasks.settle import Ending, settle
from .tasks.steer import (
    cancel_each,
    cancel_now,
    find,
    force_finish,
    retry,
)
from .tasks.submit import in_chunks, submit, submit_all
from .tasks.update import keep_step, update_payload
from .upkeep.clear import clear
from .upkeep.give_back import give_back
from .upkeep.idle_lanes import FIRST_ID, forget_holds, forget_lanes, forget_meters
from .upkeep.purge import Surplus, Swept, delete_ended, newest_id, purge, purgeable, surplus
from .upkeep.recount import Position, recount, repair
from .upkeep.timers import fire_due_timers, wake_forgotten_lanes
from .values import (
    ClaimRequest,
    Completion,
    Failure,
    Lease,
    Moment,
    Note,
    Parent,
    Pulse,
    Submission,
    new_holder,
)
