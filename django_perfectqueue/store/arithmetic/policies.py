"""The setting POLICY, as the store needs it."""

from __future__ import annotations

from typing import NamedTuple

from django_perfectqueue.conf import options
from django_perfectqueue.models import Policy


class FairRule(NamedTuple):
    """
    How a queue is served. ``code`` is what its lanes carry; with ``one_line`` all users wait
    in one line, which has a turn like that of a single user.
    """

    code: Policy
    one_line: bool = False


RULES = {
    "fair": FairRule(Policy.FAIR),
    "slots": FairRule(Policy.SLOTS),
    "fifo": FairRule(Policy.FAIR, one_line=True),
}


def rule_of(queue: str) -> FairRule:
    """Return the policy that the settings give a queue."""
    return RULES[options().policy(queue)]
