"""Tasks that wait for other tasks: stored as blocked, and released when these have ended."""

from . import fold as fold
from .batches import Progress, When, batch_progress, create_batch, forget_batches, stop_batches
from .graph import Dependents, batches_around, batches_within, choose, dependents, descendants
from .graph import cancel_request
from .submit import add_child, begin_join, end_join, leave_joins
from .submit import replace_linked, submit_linked, wait_for, wait_no_longer_for
