"""
A process pretends to run on another host, and with another clock.

Python's functions are replaced; a library that replaces those of the whole process also
changes the monotonic clock, by which the process waits.
"""

import datetime
import functools
import os
import socket
import time

from django.utils import timezone

NAME = "PERFECTQUEUE_TEST_HOST_NAME"
CLOCK = "PERFECTQUEUE_TEST_HOST_CLOCK"


def pretended(name, clock):
    """Return the environment variables of a process that pretends this name and clock."""
    return {NAME: name, CLOCK: str(clock)}


@functools.cache
def pretend():
    """Use the name and the clock of this process's environment; a second call changes nothing."""
    if name := os.environ.get(NAME):
        socket.gethostname = lambda: name
    if clock := float(os.environ.get(CLOCK, 0)):
        true_time, true_now = time.time, timezone.now
        time.time = lambda: true_time() + clock
        timezone.now = lambda: true_now() + datetime.timedelta(seconds=clock)
