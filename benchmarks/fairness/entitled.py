"""
What each user was entitled to: the weights' share of what was given out, moment by moment.

Each user with work competes, and those who compete divide what the processors gave in that
moment by weight; what one can't use, for want of work or for its cap, goes to the others
in the same way (max-min fairness: Bertsekas and Gallager, Data Networks, 1992, 6.5.2;
as a fluid: Parekh and Gallager, 1993).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

LEAST = 1e-12


@dataclass(frozen=True, slots=True)
class Claim:
    """What a user asks for by weight, and the most that it can use."""

    weight: float
    most: float


def divided(amount: float, claims: Mapping[str, Claim]) -> dict[str, float]:
    """
    Divide an amount by weight, none getting more than it can use.

    What is left when each has all that it can use is given to none.
    """
    shares = dict.fromkeys(claims, 0.0)
    by_need = sorted(
        (user for user in claims if claims[user].most > LEAST),
        key=lambda user: claims[user].most / claims[user].weight,
    )
    weights = sum(claims[user].weight for user in by_need)
    for user in by_need:
        claim = claims[user]
        shares[user] = min(claim.most, amount * claim.weight / weights)
        amount -= shares[user]
        weights -= claim.weight
        if weights <= 0 or amount <= 0:
            break
    return shares


@dataclass(frozen=True, slots=True)
class Competitor:
    """
    ``comes`` is the work, in seconds, that comes to the user in each step of time;
    ``max_running`` limits what it can use of a step.
    """

    weight: float
    max_running: int | None
    comes: Sequence[float]


def entitled(
    competitors: Mapping[str, Competitor], given: Sequence[float], step: float
) -> dict[str, list[float]]:
    """
    Return what each user should have had of what was given in each step, in seconds.

    Work that comes in a step may be done in it. What a user has not been entitled to stays
    with it as work, so it is the same competition from one step to the next.
    """
    had: dict[str, list[float]] = {user: [] for user in competitors}
    work = dict.fromkeys(competitors, 0.0)
    left = 0.0
    for number, amount in enumerate(given):
        claims = {}
        for user, competitor in competitors.items():
            work[user] += competitor.comes[number]
            cap = competitor.max_running
            most = work[user] if cap is None else min(work[user], cap * step)
            if most > LEAST:
                claims[user] = Claim(competitor.weight, most)
        shares = divided(amount + left, claims)
        for user in competitors:
            share = shares.get(user, 0.0)
            work[user] -= share
            had[user].append(share)
        left += amount - sum(shares.values())
    return had
