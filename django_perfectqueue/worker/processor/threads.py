"""A processor that runs each of its tasks in a thread."""

from __future__ import annotations

from ..plan import Plan
from ..report import Reporter
from .concurrent import Crew
from .processor import Seat
from .thread_pool import Hands


class Threads(Crew):
    """Runs as many tasks at once as it has threads; each takes the next by itself."""

    def __init__(self, plan: Plan, seat: Seat, reporter: Reporter) -> None:
        super().__init__(plan, seat, reporter)
        self.hands = Hands(self, self.next_task)

    def hand_out(self) -> None:
        while running := self.next_task():
            self.hands.send(running)

    def stop(self, *, now: bool = False) -> None:
        super().stop(now=now)
        self.hands.ring()

    def dismiss(self) -> None:
        self.hands.close()
