"""A handler that records each of its visits in a diary that all hosts write to."""

import json
import os
import socket
import time

from django_perfectqueue.application import Application, Dispatch
from django_perfectqueue.exceptions import PreemptedError

from ..tasks import report, spend, wait_for
from .disguise import pretend

pretend()


class Visit(Application):
    """
    Waits for a file at its first attempt, and returns at once at every other.

    When it learns that its task has passed on, it tries to write all the same.
    """

    retry_wait = 0

    def perform(self):
        self.note("start")
        try:
            if self.task.attempt == 1 and "until" in self.task.data:
                wait_for(self.task.data["until"])
        except PreemptedError:
            self.note("reported")
            self.write_all_the_same()
        self.note("end")

    def write_all_the_same(self):
        try:
            self.task.update_data({**self.task.data, "written_by": "one who may not"})
        except PreemptedError:
            self.note("refused")

    def note(self, word):
        line = {
            "word": word,
            "key": self.task.key,
            "attempt": self.task.attempt,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "at": time.monotonic(),
            "clock": time.time(),
        }
        with open(self.task.data["diary"], "a") as diary:
            diary.write(json.dumps(line) + "\n")


class FleetDispatch(Dispatch):
    routes = {"visit": Visit, "report": report, "spend": spend}
