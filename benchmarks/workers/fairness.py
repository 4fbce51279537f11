from __future__ import annotations

import time

from benchmarks.probe import note
from django_perfectqueue.application import Application, Dispatch


class Sleep(Application):
    """Holds its processor for so long, and uses no more of the machine."""

    def perform(self) -> None:
        data = self.task.data
        if step := data.get("step"):
            for number in range(round(data["seconds"] / step)):
                self.task.step(str(number), self.pace, data["i"], step)
            return
        self.pace(data["i"], data["seconds"])
        if self.task.lease.attempt <= data["releases"]:
            self.task.release()

    def pace(self, number: int, seconds: float) -> None:
        note(number)
        time.sleep(seconds)


class SleepDispatch(Dispatch):
    routes = {"sleep": Sleep}
