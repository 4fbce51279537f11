import time

LONG = 60.0
"""How long what takes a moment may take on a machine that others use as well."""
LOOK = 1.0
"""How long one look counts at most: the whole machine may stand still meanwhile."""


def wait_until(condition, *, within=LONG):
    """Wait for a condition to hold; fail when it has not in time."""
    left, began = within, time.monotonic()
    while not condition():
        if left <= 0:
            raise AssertionError(f"Not so within {within} s: {condition.__name__}")
        time.sleep(0.02)
        before, began = began, time.monotonic()
        left -= min(began - before, LOOK)
