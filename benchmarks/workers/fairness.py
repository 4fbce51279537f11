from __future__ import annotations

import time

from benchmarks.probe import note
from django_perfectqueue.application import Application, Dispatch


class Sleep(Application):
    """Holds its processor for so long, and uses no more of the machine."""

    def perform(self) -> None:
        data = self.task.data
        note(data["i"])
        time.sleep(data["seconds"])
        if self.task.lease.attempt <= data["releases"]:
            self.task.release()


class SleepDispatch(Dispatch):
    routes = {"sleep": Sleep}
