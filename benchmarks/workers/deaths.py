from __future__ import annotations

import os
import random
import signal
import time
from typing import NoReturn

from benchmarks.recorder import note
from django_perfectqueue.application import Application, Dispatch
from django_perfectqueue.application.middleware import wanted

BORN = "born"
DIES_AT_START = 0.05
SHORT = 0.05
LARGE = 256 * 2**20
GROWN_AFTER = 1.2


class Noted(Application):
    """Records that a processor has begun with it."""

    def perform(self) -> None:
        note(self.task.type)
        self.act()

    def act(self) -> None:
        """Do what its type says."""

    @classmethod
    def after_fork(cls) -> None:
        if cls is Noted:
            note(BORN)
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


class Replace(Noted):
    def act(self) -> None:
        wanted.set()


class DeathsDispatch(Dispatch):
    """The type ``count`` does nothing: processors are replaced when they have run some tasks."""

    routes = {
        "count": Noted,
        "kill": Kill,
        "exit": Exit,
        "overtime": Overtime,
        "silent": Silent,
        "grow": Grow,
        "replace": Replace,
    }
