"""Tasks that wait for other tasks: stored as blocked, and released when these have ended."""

from .batches import Progress, batch_progress, forget_batches, stop_batches
from .fold import When
from .graph import Dependents, batches_around, batches_within, choose, dependents, descendants
from .submit import add_child, begin_join, end_join
