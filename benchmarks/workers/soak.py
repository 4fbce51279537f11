from __future__ import annotations

import time

from django_perfectqueue.application import Application, Dispatch


class Nothing(Application):
    def perform(self) -> int:
        return 1


class Nap(Application):
    def perform(self) -> None:
        time.sleep(self.task.data["seconds"])


class Fail(Application):
    max_attempts = 2
    retry_wait = 0.5

    def perform(self) -> None:
        raise ValueError("as it was meant")


class Note(Application):
    """Changes what its task carries, and finishes it by itself."""

    def perform(self) -> None:
        self.task.update_data({"seen": True})
        self.task.finish()


class SoakDispatch(Dispatch):
    routes = {"nothing": Nothing, "nap": Nap, "fail": Fail, "note": Note}
