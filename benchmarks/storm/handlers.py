"""What a worker does with the tasks of a storm: it says so, takes its time, and may raise."""

from __future__ import annotations

import os
import random
import time
from typing import Any

from benchmarks.chaos.handlers import ChaosDispatch
from benchmarks.chaos.terms import this_folder
from django_perfectqueue.application import Application

from .calls import DONE, UNDONE, CallRecorder


class Own:
    recorder: CallRecorder | None = None


def recorder() -> CallRecorder:
    """Return this process's own."""
    by = f"worker.{os.getpid()}"
    if Own.recorder is None or Own.recorder.known["by"] != by:
        Own.recorder = CallRecorder(this_folder().calls, by)
    return Own.recorder


class Watched(Application):
    """Notes its lease when it begins, and when it ends by itself."""

    retry_wait = 0.1

    def perform(self) -> Any:
        lease, data = self.task.lease, self.task.data
        ref = (data["life"], lease.attempt, lease.holder)
        number = recorder().ask("run", taken=[{"ref": ref, "edit": data["edit"]}])
        ending = UNDONE
        try:
            drawn = random.Random(f"{ref}")
            time.sleep(drawn.uniform(0.0, 0.05) if drawn.random() < 0.9 else 0.5)
            if self.task.type == "flaky" and drawn.random() < 0.5:
                raise RuntimeError("as planned")
            ending = DONE
            return ref
        finally:
            recorder().answer(number, ending)


class StormDispatch(ChaosDispatch):
    routes = {"steady": Watched, "flaky": Watched, "counted": Watched}
