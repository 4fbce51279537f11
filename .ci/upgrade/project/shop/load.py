"""
Submits tasks until it gets TERM, and prints the key of each task whose commit it saw.

The tenth of each ten is blocked by the one before; some are held back by a limit, and the
last five are a batch with a callback.
"""

import os
import signal
import time

import django
from django.db import transaction

django.setup()

from django_perfectqueue.fairness import set_limit  # noqa: E402
from django_perfectqueue.queue import Queue  # noqa: E402

RELEASE = os.environ["RELEASE"]
TYPES = ("quick", "quick", "slow", "again")
goes_on = True


def stop(signum, frame):
    global goes_on
    goes_on = False


signal.signal(signal.SIGTERM, stop)
set_limit("narrow", max_running=1)
queue = Queue()
number = 0
while goes_on:
    keys = [f"{RELEASE}-{number + index}" for index in range(15)]
    with transaction.atomic():
        for index, key in enumerate(keys[:10]):
            queue.submit(
                key,
                TYPES[index % len(TYPES)],
                user=f"user{index % 3}",
                limits=["narrow"] if index == 4 else [],
                after=keys[8:9] if index == 9 else [],
            )
        with queue.batch(f"{RELEASE}-{number}", user="batches") as batch:
            for key in keys[10:14]:
                batch.submit(key, "quick")
            batch.then(keys[14], "quick", when="finished")
    print("\n".join(keys), flush=True)
    number += len(keys)
    time.sleep(0.25)
