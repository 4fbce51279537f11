"""How many examples a property test draws, and how many moments of a death are tried."""

import os
from itertools import count

THOROUGH = "PERFECTQUEUE_TEST_THOROUGH"


def examples(most):
    """Return all of them with --thorough, and else a quarter."""
    return most if os.environ.get(THOROUGH) else most // 4


def each_moment():
    """Count from 1 on: each with --thorough, and else every third."""
    return count(1, 1 if os.environ.get(THOROUGH) else 3)
