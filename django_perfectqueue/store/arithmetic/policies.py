"""By which rule the lanes of a queue are served: the setting POLICY, as the store needs it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from django_perfectqueue.conf import options
from django_perfectqueue.models import Policy

if TYPE_CHECKING:
    from .fair_order import OpenLane


class Rule(ABC):
    """
    One policy.

    ``code`` is what its lanes carry: the column ``turn`` must be the key of their next
    task, as the database orders them by it. ``quantum`` is whether very short tasks may
    be served several at a time.
    """

    name: str
    code: Policy
    quantum = False

    def owner(self, user: str) -> str:
        """Return in whose line a user's tasks wait."""
        return user

    @abstractmethod
    def key(self, lane: OpenLane, number: int, cost: float) -> tuple[float, float]:
        """
        Return the key of a lane's n-th next task, where each is expected to cost so much:
        the smallest is served first.
        """


class Fair(Rule):
    """
    The smallest virtual finish time: weighted fair queueing (Demers, Keshav and Shenker,
    1989) on expected costs, which measured ones correct when the tasks end.
    """

    name = "fair"
    code = Policy.FAIR
    quantum = True

    def key(self, lane: OpenLane, number: int, cost: float) -> tuple[float, float]:
        step = cost / lane.weight
        return round(lane.virtual_time + step * number, 9), -step


class Slots(Rule):
    """
    The most weight for each slot that it would have: the highest averages of D'Hondt, as
    in PerfectQueue. What ran earlier counts for nothing.
    """

    name = "slots"
    code = Policy.SLOTS

    def key(self, lane: OpenLane, number: int, cost: float) -> tuple[float, float]:
        return round((lane.running + number) / lane.weight, 9), -1 / lane.weight


class Fifo(Fair):
    """All users in one line, which has a turn like that of a single user."""

    name = "fifo"

    def owner(self, user: str) -> str:
        return ""


RULES: dict[str, Rule] = {rule.name: rule for rule in (Fair(), Slots(), Fifo())}
BY_CODE: dict[int, Rule] = {Policy.FAIR.value: RULES["fair"], Policy.SLOTS.value: RULES["slots"]}


def rule_of(queue: str) -> Rule:
    """Return the policy that the settings give a queue."""
    return RULES[options().policy(queue)]
