import time


def wait_until(condition, *, within=10.0):
    """Wait for a condition to hold; fail when it has not in time."""
    deadline = time.monotonic() + within
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"Not so within {within} s: {condition.__name__}")
        time.sleep(0.02)
