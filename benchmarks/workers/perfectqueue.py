from __future__ import annotations

from benchmarks.probe import note
from django_perfectqueue.application import Application, Dispatch


class Noop(Application):
    def perform(self) -> None:
        note(self.task.data["i"])


class FinishingNoop(Application):
    """Finishes its task by itself, which commits before it goes on."""

    def perform(self) -> None:
        note(self.task.data["i"])
        self.task.finish()


class NoopDispatch(Dispatch):
    routes = {"noop": Noop, "each": FinishingNoop}
