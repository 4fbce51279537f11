"""
The only code that writes task rows: one verb a file.

A verb takes plain values and the alias of a database, runs in one transaction or joins
the caller's, reads the time from the server unless it is given as ``now``, and repeats
itself where the database asks for it or the connection is lost.

A verb always notifies other processes, and announces what becomes of tasks that nobody holds;
of a task that is held its holder announces that.
"""

from .arithmetic.fair_order import lane_of
from .claims.acquire import ClaimRequest, acquire, finish_and_acquire
from .claims.backlog_age import oldest_due, overdue
from .claims.peek import Outlook, look
from .claims.single_lane import take_alone
from .database.diagnosis import Ailment
from .database.idle_transactions import end_idle_transactions
from .database.packet import too_long
from .database.transaction import ailment, calls_of_others, one_call, patiently, together
from .dependencies.batches import (
    State,
    When,
    batch_state,
    create_batch,
    forget_batches,
    look_at_batch,
    stop_batch,
    submit_joining,
)
from .dependencies.fold import fold
from .dependencies.submit import (
    descendants,
    replace_linked,
    submit_linked,
    wait_for,
    wait_no_longer_for,
)
from .lanes.apply_limit import apply_limit
from .lanes.apply_share import apply_shares
from .lanes.shares import queue_weights
from .leases.fence import STILL_HELD, outcome_of, refusal
from .leases.heartbeat import heartbeat
from .leases.in_hand import InHand, in_hand, renew, wanted
from .limits.limit_cache import forget_limits, known_limits, limits_of
from .notify.completion import (
    Ended,
    end_notices,
    ends,
    find_all,
    in_callers_transaction,
    live,
    watch,
)
from .notify.datagrams import Datagrams
from .notify.messages import Call, Ring
from .notify.postgres import EndNotices, Notices
from .notify.ring import doorbell, ear, ring
from .notify.signals import announce
from .records.dependency_events import follow
from .records.journal import write_journal
from .records.trail import sign
from .records.usage import Tally, UsageKey, add_usage, clock, ended_so, folded, note_waiting
from .records.usage_rollup import roll_up
from .records.workers import Registration, register, sign_off
from .schedules.fire import SCHEDULE, SCHEDULED_FOR, fire_schedules
from .tasks.after_commit import steer_waiting
from .tasks.atomic import Joint
from .tasks.close import Loss
from .tasks.finish import finish
from .tasks.park import park, unpark, unpark_some
from .tasks.replace import replace
from .tasks.reprioritize import reprioritize
from .tasks.revise import Revision, revise, revise_now
from .tasks.settle import Released, cancel, fail, release, retry, snooze
from .tasks.steer import (
    cancel_request,
    cancel_request_now,
    find,
    force_finish,
    redrive,
    redrive_now,
)
from .tasks.submit import CHUNK, in_chunks, submit, submit_all
from .tasks.update import update_payload
from .upkeep.clear import clear
from .upkeep.give_back import give_back
from .upkeep.idle_lanes import FIRST_ID, forget_holds, forget_lanes, forget_meters
from .upkeep.purge import Surplus, Swept, discard, newest_id, purge, purgeable, surplus
from .upkeep.recount import Drift, Position, recount
from .upkeep.timers import answer_alarms, rouse
from .values import Completion, Failure, Lease, Moment, Note, Parent, Pulse, Submission, new_holder

__all__ = [
    "CHUNK",
    "FIRST_ID",
    "SCHEDULE",
    "SCHEDULED_FOR",
    "STILL_HELD",
    "Ailment",
    "Call",
    "ClaimRequest",
    "Completion",
    "Datagrams",
    "Drift",
    "EndNotices",
    "Ended",
    "Failure",
    "InHand",
    "Joint",
    "Lease",
    "Loss",
    "Moment",
    "Note",
    "Notices",
    "Outlook",
    "Parent",
    "Position",
    "Pulse",
    "Registration",
    "Released",
    "Revision",
    "Ring",
    "State",
    "Submission",
    "Surplus",
    "Swept",
    "Tally",
    "UsageKey",
    "When",
    "acquire",
    "add_usage",
    "ailment",
    "announce",
    "answer_alarms",
    "apply_limit",
    "apply_shares",
    "batch_state",
    "calls_of_others",
    "cancel",
    "cancel_request",
    "cancel_request_now",
    "clear",
    "clock",
    "create_batch",
    "descendants",
    "discard",
    "doorbell",
    "ear",
    "end_idle_transactions",
    "end_notices",
    "ended_so",
    "ends",
    "fail",
    "find",
    "find_all",
    "finish",
    "finish_and_acquire",
    "fire_schedules",
    "fold",
    "folded",
    "follow",
    "force_finish",
    "forget_batches",
    "forget_holds",
    "forget_lanes",
    "forget_limits",
    "forget_meters",
    "give_back",
    "heartbeat",
    "in_callers_transaction",
    "in_chunks",
    "in_hand",
    "known_limits",
    "lane_of",
    "limits_of",
    "live",
    "look",
    "look_at_batch",
    "new_holder",
    "newest_id",
    "note_waiting",
    "oldest_due",
    "one_call",
    "outcome_of",
    "overdue",
    "park",
    "patiently",
    "purge",
    "purgeable",
    "queue_weights",
    "recount",
    "redrive",
    "redrive_now",
    "refusal",
    "register",
    "release",
    "renew",
    "replace",
    "replace_linked",
    "reprioritize",
    "retry",
    "revise",
    "revise_now",
    "ring",
    "roll_up",
    "rouse",
    "sign",
    "sign_off",
    "snooze",
    "steer_waiting",
    "stop_batch",
    "submit",
    "submit_all",
    "submit_joining",
    "submit_linked",
    "surplus",
    "take_alone",
    "together",
    "too_long",
    "unpark",
    "unpark_some",
    "update_payload",
    "wait_for",
    "wait_no_longer_for",
    "wanted",
    "watch",
    "write_journal",
]
