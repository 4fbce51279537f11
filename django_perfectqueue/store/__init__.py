"""
The only code that writes task rows: one verb a file.

A verb takes plain values and the alias of a database, runs in one transaction or joins
the caller's, reads the time from the server unless it is given as ``now``, and repeats
itself where the database asks for it or the connection is lost.
"""

from .acquire import acquire
from .alarms import answer_alarms, rouse
from .apply import apply_shares
from .bell import ear, ring
from .clear import clear
from .datagrams import Datagrams
from .finish import finish
from .give_back import give_back
from .heartbeat import heartbeat
from .look import Outlook, look
from .notices import Notices
from .purge import Swept, purge
from .replace import replace
from .rings import Ring
from .roll_up import roll_up
from .settle import cancel, fail, release, retry
from .steer import cancel_request, find, force_finish, redrive
from .submit import CHUNK, in_chunks, submit, submit_all
from .take_alone import take_alone
from .transaction import calls_of_others, one_call, patiently
from .update import update_payload
from .usage import Tally, Whose, add_usage, clock, folded, note_waiting
from .values import Completion, Failure, Lease, Pulse, Submission, new_holder

__all__ = [
    "CHUNK",
    "Completion",
    "Datagrams",
    "Failure",
    "Lease",
    "Notices",
    "Outlook",
    "Pulse",
    "Ring",
    "Submission",
    "Swept",
    "Tally",
    "Whose",
    "acquire",
    "add_usage",
    "answer_alarms",
    "apply_shares",
    "calls_of_others",
    "cancel",
    "cancel_request",
    "clear",
    "clock",
    "ear",
    "fail",
    "find",
    "finish",
    "folded",
    "force_finish",
    "give_back",
    "heartbeat",
    "in_chunks",
    "look",
    "new_holder",
    "note_waiting",
    "one_call",
    "patiently",
    "purge",
    "redrive",
    "release",
    "replace",
    "retry",
    "ring",
    "roll_up",
    "rouse",
    "submit",
    "submit_all",
    "take_alone",
    "update_payload",
]
