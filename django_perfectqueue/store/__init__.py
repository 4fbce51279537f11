"""
The only code that writes task rows: one verb a file.

A verb takes plain values and the alias of a database, runs in one transaction or joins
the caller's, reads the time from the server unless it is given as ``now``, and repeats
itself where the database asks for it or the connection is lost.
"""

from .acquire import acquire
from .ailments import Ailment
from .alarms import answer_alarms, rouse
from .announce import announce
from .apply import apply_shares
from .apply_limit import apply_limit
from .bell import doorbell, ear, ring
from .clear import clear
from .datagrams import Datagrams
from .fence import refusal
from .finish import finish
from .give_back import give_back
from .heartbeat import heartbeat
from .held import InHand, in_hand, renew, wanted
from .idle import end_idle_transactions
from .idle_lanes import FIRST_ID, forget_holds, forget_lanes, forget_meters
from .joint import Joint, came_through
from .keys import may_hold
from .known import forget_limits, known_limits
from .look import Outlook, look
from .notices import EndNotices, Notices
from .oldest import oldest_due, overdue
from .once_committed import steer_waiting
from .packet import too_long
from .park import park, unpark, unpark_some
from .purge import Surplus, Swept, discard, newest_id, purge, surplus
from .recount import Drift, Position, recount
from .register import Registration, register, sign_off
from .replace import replace
from .reprioritize import reprioritize
from .rings import Call, Ring
from .roll_up import roll_up
from .settle import cancel, fail, release, retry, snooze
from .shares import queue_weights
from .steer import cancel_request, find, force_finish, redrive
from .submit import CHUNK, in_chunks, submit, submit_all
from .take_alone import take_alone
from .tell import tell
from .transaction import ailment, calls_of_others, one_call, patiently, together
from .update import update_payload
from .usage import Tally, Whose, add_usage, clock, folded, note_waiting
from .values import Completion, Failure, Lease, Moment, Note, Pulse, Submission, new_holder
from .watch import Ended, end_notices, ends, find_all, in_callers_transaction, live, watch

__all__ = [
    "CHUNK",
    "FIRST_ID",
    "Ailment",
    "Call",
    "Completion",
    "Datagrams",
    "Drift",
    "EndNotices",
    "Ended",
    "Failure",
    "InHand",
    "Joint",
    "Lease",
    "Moment",
    "Note",
    "Notices",
    "Outlook",
    "Position",
    "Pulse",
    "Registration",
    "Ring",
    "Submission",
    "Surplus",
    "Swept",
    "Tally",
    "Whose",
    "acquire",
    "add_usage",
    "ailment",
    "announce",
    "answer_alarms",
    "apply_limit",
    "apply_shares",
    "calls_of_others",
    "came_through",
    "cancel",
    "cancel_request",
    "clear",
    "clock",
    "discard",
    "doorbell",
    "ear",
    "end_idle_transactions",
    "end_notices",
    "ends",
    "fail",
    "find",
    "find_all",
    "finish",
    "folded",
    "force_finish",
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
    "live",
    "look",
    "may_hold",
    "new_holder",
    "newest_id",
    "note_waiting",
    "oldest_due",
    "one_call",
    "overdue",
    "park",
    "patiently",
    "purge",
    "queue_weights",
    "recount",
    "redrive",
    "refusal",
    "register",
    "release",
    "renew",
    "replace",
    "reprioritize",
    "retry",
    "ring",
    "roll_up",
    "rouse",
    "sign_off",
    "snooze",
    "steer_waiting",
    "submit",
    "submit_all",
    "surplus",
    "take_alone",
    "tell",
    "together",
    "too_long",
    "unpark",
    "unpark_some",
    "update_payload",
    "wanted",
    "watch",
]
