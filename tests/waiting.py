import time

LONG = 60.0
"""How long what takes a moment may take on a machine that others use as well."""


def wait_until(condition, *, within=LONG):
    """Wait for a condition to hold; fail when it has not in time."""
    deadline = time.monotonic() + within
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"Not so within {within} s: {condition.__name__}")
        time.sleep(0.02)
