"""A handler and a Django task that do nothing, and count the Python calls of their process."""

from __future__ import annotations

import itertools
import json
import os
import sys
import threading
from typing import Any

from django_perfectqueue.application import Application, Dispatch
from django_perfectqueue.compat import task

VARIABLE = "PERFECTQUEUE_FIGURES_CALLS"
TASKS = 4_000

FIRST, LAST = 1_000, 3_000
THREADS = ("MainThread", "feeder")
calls: dict[str, itertools.count[int]] = {name: itertools.count() for name in THREADS}
begun: dict[int, int] = {}


def count(frame: Any, event: str, argument: Any) -> None:
    if event == "call":
        next(calls["MainThread"])


def count_feeder(frame: Any, event: str, argument: Any) -> None:
    """Count in the thread that claims and writes; others work by the clock."""
    if threading.current_thread().name != "feeder":
        sys.setprofile(None)
    elif event == "call":
        next(calls["feeder"])


def begin() -> None:
    """Count from here on in the thread that runs the tasks, and in the feeder."""
    threading.setprofile(count_feeder)
    sys.setprofile(count)


if VARIABLE in os.environ:
    # A worker forks its processors after it has imported this module.
    os.register_at_fork(after_in_child=begin)


def note(number: int) -> None:
    """Write how many calls a task took, between two of them."""
    if number in (FIRST, LAST):
        begun[number] = sum(next(counted) for counted in calls.values())
    if number == LAST:
        with open(os.environ[VARIABLE], "w") as file:
            json.dump((begun[LAST] - begun[FIRST]) / (LAST - FIRST), file)


class Noop(Application):
    def perform(self) -> None:
        note(self.task.data["number"])


class NoopDispatch(Dispatch):
    routes = {"noop": Noop}


@task
def noop(number: int) -> None:
    note(number)
