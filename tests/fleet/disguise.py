"""
Who a process takes its host for, and what it takes the time for.

Its Python is deceived: a library that deceives all of a process upsets waiting by the
monotonic clock as well.
"""

import datetime
import os
import socket
import time

from django.utils import timezone

NAME = "PERFECTQUEUE_TEST_HOST_NAME"
CLOCK = "PERFECTQUEUE_TEST_HOST_CLOCK"


def dressed_as(name, clock):
    """Return the environment in which a process is deceived."""
    return {NAME: name, CLOCK: str(clock)}


def put_on():
    """Believe in what this process's environment says."""
    if name := os.environ.get(NAME):
        socket.gethostname = lambda: name
    if clock := float(os.environ.get(CLOCK, 0)):
        true_time, true_now = time.time, timezone.now
        time.time = lambda: true_time() + clock
        timezone.now = lambda: true_now() + datetime.timedelta(seconds=clock)
