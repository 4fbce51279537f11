"""What runs during an upgrade. Each attempt is noted in a file, in one write."""

import os
import time

from django_perfectqueue.application import handler

RELEASE = os.environ["RELEASE"]


@handler("quick")
def quick(task):
    note(task)


@handler("slow")
def slow(task):
    note(task)
    time.sleep(0.3)


@handler("again", max_attempts=2, retry_wait=0.2)
def again(task):
    note(task)
    if task.attempt == 1:
        raise RuntimeError("as planned")


def note(task):
    with open(os.environ["NOTES"], "ab", buffering=0) as notes:
        notes.write(f"{task.key} {task.attempt} {RELEASE}\n".encode())
