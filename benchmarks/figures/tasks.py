"""A handler and a Django task that do nothing, and count the Python calls of their process."""

from __future__ import annotations

import itertools
import json
import os
import sys
from typing import Any

from django_perfectqueue.application import Application, Dispatch
from django_perfectqueue.compat import task

VARIABLE = "PERFECTQUEUE_FIGURES_CALLS"
TASKS = 4_000

calls = itertools.count()
begun: list[int] = []


def count(frame: Any, event: str, argument: Any) -> None:
    if event == "call":
        next(calls)


def begin() -> None:
    """Count from here on in the main thread, which runs the tasks; others work by the clock."""
    sys.setprofile(count)


if VARIABLE in os.environ:
    # A worker forks its processors after it has imported this module.
    os.register_at_fork(after_in_child=begin)


def note(_number: int) -> None:
    """Remember how many calls there were when each task began; write all of it at the last."""
    begun.append(next(calls))
    if len(begun) == TASKS:
        with open(os.environ[VARIABLE], "w") as file:
            json.dump(begun, file)


class Noop(Application):
    def perform(self) -> None:
        note(self.task.data["number"])


class NoopDispatch(Dispatch):
    routes = {"noop": Noop}


@task
def noop(number: int) -> None:
    note(number)
