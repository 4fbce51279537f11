"""One transaction, repeated where the database asks for it; what differs by vendor."""

from .dialects.base import Problem
from .transaction import (
    end_idle_transactions,
    is_callers,
    may_be_a_row,
    problem_of,
    shared_operations,
    single_operation,
    together,
    too_long,
    with_retries,
)
