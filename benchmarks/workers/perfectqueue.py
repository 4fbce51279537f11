"""What this package's own workers run, in each of the benchmarks."""

from __future__ import annotations

import os
import random
import signal
import time
from typing import NoReturn

from benchmarks import probe
from django_perfectqueue.application import Application, Dispatch

DIES_AT_START = 0.05
SHORT = 0.05
LARGE = 256 * 2**20
GROWN_AFTER = 1.2
BORN = -1
"""What a processor notes of itself, in place of a task."""


class Noop(Application):
    def perform(self) -> None:
        probe.note(self.task.data["i"])


class FinishingNoop(Application):
    """Finishes its task by itself, which commits before it goes on."""

    def perform(self) -> None:
        probe.note(self.task.data["i"])
        self.task.finish()


class NoopDispatch(Dispatch):
    routes = {"noop": Noop, "each": FinishingNoop}


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
        probe.note(number)
        time.sleep(seconds)
        probe.note_end(number)


class SleepDispatch(Dispatch):
    routes = {"sleep": Sleep}


# Sustained work


class Nothing(Application):
    def perform(self) -> int:
        probe.note(self.task.data["i"])
        return 1


class Nap(Application):
    def perform(self) -> None:
        probe.note(self.task.data["i"])
        time.sleep(self.task.data["seconds"])


class Fail(Application):
    max_attempts = 2
    retry_wait = 0.5

    def perform(self) -> None:
        raise ValueError("as it was meant")


class Note(Application):
    """Changes what its task carries, and finishes it by itself."""

    def perform(self) -> None:
        probe.note(self.task.data["i"])
        self.task.update_data({"seen": True})
        self.task.finish()


class Later(Application):
    def perform(self) -> None:
        """Do nothing, and tell the probe nothing."""


class SustainedDispatch(Dispatch):
    routes = {"nothing": Nothing, "nap": Nap, "fail": Fail, "note": Note, "later": Later}


# Deaths


class Noted(Application):
    """Notes that a processor has begun with it."""

    def perform(self) -> None:
        probe.note(self.task.data["i"])
        self.act()

    def act(self) -> None:
        """Do what its type says."""

    @classmethod
    def after_fork(cls) -> None:
        if cls is Noted:
            probe.note(BORN)
            if random.random() < DIES_AT_START:
                os._exit(1)


class Kill(Noted):
    def act(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class Exit(Noted):
    def act(self) -> NoReturn:
        os._exit(9)


class Overtime(Noted):
    """Does not end when its time is over, so that it is ended by force."""

    time_limit = SHORT
    kill_wait = SHORT

    def act(self) -> NoReturn:
        while True:
            try:
                time.sleep(60)
            except BaseException:
                continue


class Silent(Noted):
    def act(self) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)


class Grow(Noted):
    """Takes more memory than a processor may have, until that has been seen."""

    def act(self) -> None:
        held = bytearray(LARGE)
        time.sleep(GROWN_AFTER)
        del held[:1]


class DeathsDispatch(Dispatch):
    """The type ``count`` does nothing: processors are replaced when they have run some tasks."""

    routes = {
        "count": Noted,
        "kill": Kill,
        "exit": Exit,
        "overtime": Overtime,
        "silent": Silent,
        "grow": Grow,
    }
