"""
The only code that writes task rows.

A verb takes plain values and the alias of a database, runs in one transaction or joins
the caller's, reads the time from the server unless it is given as ``now``, and repeats
itself where the database asks for it or the connection is lost.

A verb always notifies other processes, and announces what becomes of tasks that nobody holds;
of a task that is held its holder announces that.
"""

# What others take from these rooms stands there.
from . import database, dependencies, leases, notify, records, schedules, upkeep
from .tasks import steps

# Submit.
from .tasks.debounce import submit_debounced
from .tasks.revise import replace
from .tasks.submit import in_chunks, send_ahead, submit, submit_all
from .tasks.unique import newest_key, submit_unique
from .values import Chunk, Debounce, Parent, Submission, Unique

# Claim.
from .claims.acquire import Outlook, acquire, finish_and_acquire, look, may_start_again
from .claims.single_lane import take_alone
from .values import Lease

# Settle.
from .tasks.close import finish
from .tasks.park import park
from .tasks.settle import AtomicTransaction, Ending, settle, update_payload
from .values import Completion, Failure, Wait

# Steer.
from .tasks.revise import Revision, revise, set_priority
from .tasks.steer import cancel_each, cancel_now, force_finish, retry, steer
