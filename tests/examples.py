"""How many examples a property test draws."""

import os

THOROUGH = "PERFECTQUEUE_TEST_THOROUGH"


def examples(most):
    """Return all of them with --thorough, and else a quarter."""
    return most if os.environ.get(THOROUGH) else most // 4
