"""What came of a scenario: who got what of what it was entitled to, and how long it waited."""

from __future__ import annotations

import itertools
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.report import percentile

from .entitled import Competitor, entitled
from .scenario import Scenario

STEPS = 1200
POINTS = 60
MOST_LINES = 12


@dataclass(frozen=True, slots=True)
class Run:
    """
    One task: when it was due, began and ended, in seconds of the measured time.

    One that has not begun has neither, and ``seconds`` is what it would take.
    """

    user: str
    due: float
    started: float | None
    ended: float | None
    seconds: float


def audited(
    scenario: Scenario, runs: Sequence[Run], *, processors: int, seconds: float
) -> dict[str, Any]:
    """Return the figures of a scenario that was measured from 0 until so many seconds."""
    step = seconds / STEPS
    got = {user: [0.0] * STEPS for user in scenario.owners()}
    for run in runs:
        spread(got[run.user], run, step)
    given = [sum(column) for column in zip(*got.values(), strict=True)]
    asked = entitled(competitors(scenario, runs, step), given, step)
    first = int(scenario.judged_from / step)
    total = sum(given[first:])
    whole = total or 1.0
    waits = waits_of(runs, seconds)
    gaps = {user: longest_gap(mine, seconds) for user, mine in by_user(runs).items()}
    users = [
        {
            "user": user,
            "group": group.name,
            "weight": group.weight,
            "asked": sum(asked[user][first:]),
            "got": sum(got[user][first:]),
            "started": len(waits[user]),
            "waits": waits[user],
            "p50": percentile(waits[user], 0.5),
            "p95": percentile(waits[user], 0.95),
            "gap": gaps.get(user, 0.0),
        }
        for user, group in scenario.owners().items()
    ]
    return {
        "seconds": seconds,
        "tasks": sum(run.started is not None for run in runs),
        "used": total / ((STEPS - first) * step * processors),
        "share_error": max(abs(user["got"] - user["asked"]) for user in users) / whole,
        "jain": jain(user["got"] / user["asked"] for user in users if user["asked"] > 0),
        "gap": max(gaps.values(), default=0.0),
        "newcomers": newcomers(runs, seconds),
        "longest": max((run.seconds for run in runs if run.started is not None), default=0.0),
        "groups": grouped(scenario, runs, users, whole),
        "lines": lines(scenario, asked, got, step),
    }


def spread(steps: list[float], run: Run, step: float) -> None:
    """Add the time of a run to the steps in which it was running."""
    if run.started is None or run.ended is None:
        return
    begin, end = max(run.started, 0.0), min(run.ended, step * len(steps))
    number = int(begin / step)
    while begin < end and number < len(steps):
        until = min(end, step * (number + 1))
        steps[number] += until - begin
        begin, number = until, number + 1


def competitors(scenario: Scenario, runs: Iterable[Run], step: float) -> dict[str, Competitor]:
    comes = {user: [0.0] * STEPS for user in scenario.owners()}
    for run in runs:
        number = max(0, int(run.due / step))
        if number < STEPS:
            comes[run.user][number] += run.seconds
    return {
        user: Competitor(group.weight, group.max_running, comes[user])
        for user, group in scenario.owners().items()
    }


def jain(shares: Iterable[float]) -> float:
    """
    Return how even these are: 1 when all are the same, 1/n when one has all.

    Jain, Chiu and Hawe: A quantitative measure of fairness and discrimination, 1984.
    """
    shares = list(shares)
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 1.0


def waits_of(runs: Iterable[Run], seconds: float) -> dict[str, list[float]]:
    """Return how long each user's tasks have waited that did start."""
    waits: dict[str, list[float]] = defaultdict(list)
    for run in runs:
        if run.started is not None and run.started <= seconds:
            waits[run.user].append(max(0.0, run.started - max(run.due, 0.0)))
    return waits


def by_user(runs: Iterable[Run]) -> dict[str, list[Run]]:
    found: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        found[run.user].append(run)
    return found


def longest_gap(runs: Sequence[Run], seconds: float) -> float:
    """Return the longest time in which one user had due work and none of it started."""
    due = sorted(max(run.due, 0.0) for run in runs)
    starts = sorted(run.started for run in runs if run.started is not None)
    longest, since = 0.0, 0.0
    for number, start in enumerate([*starts, seconds]):
        # Tasks of one user are alike to it: what matters is how many have come and begun.
        if number < len(due) and due[number] < min(start, seconds):
            longest = max(longest, min(start, seconds) - max(since, due[number]))
        since = start
    return longest


def newcomers(runs: Iterable[Run], seconds: float) -> list[dict[str, Any]]:
    """Return how long those waited for their first start who came when others were there."""
    found = []
    for user, mine in by_user(runs).items():
        came = min(run.due for run in mine)
        starts = [run.started for run in mine if run.started is not None]
        if 0.0 < came < seconds:
            first = min(starts) if starts else None
            found.append({"user": user, "wait": None if first is None else first - came})
    return found


def grouped(
    scenario: Scenario, runs: Sequence[Run], users: Sequence[dict[str, Any]], whole: float
) -> list[dict[str, Any]]:
    """Return the figures of each group: sums of shares, the worst of its users, all its waits."""
    found = []
    for group in scenario.groups:
        mine = [user for user in users if user["group"] == group.name]
        waits = [user for user in mine if user["p50"] is not None]
        found.append(
            {
                "name": group.name,
                "users": group.count,
                "weight": group.weight,
                "max_running": group.max_running,
                "task": group.task.expected,
                "asked": sum(user["asked"] for user in mine) / whole,
                "got": sum(user["got"] for user in mine) / whole,
                "share_error": max(abs(user["got"] - user["asked"]) for user in mine) / whole,
                "started": sum(user["started"] for user in mine),
                "p50": statistics.median(user["p50"] for user in waits) if waits else None,
                "p95": max((user["p95"] for user in waits), default=None),
                "p95_of_all": percentile([wait for user in mine for wait in user["waits"]], 0.95),
                "gap": max(user["gap"] for user in mine),
                "at_once": at_once([run for run in runs if run.user in group.users()]),
            }
        )
    return found


def at_once(runs: Sequence[Run]) -> int:
    """Return how many of these have run at the same time, at the most."""
    ran = [(run.started, run.started + run.seconds) for run in runs if run.started is not None]
    changes = sorted([(end, -1) for _start, end in ran] + [(start, 1) for start, _end in ran])
    return max(itertools.accumulate(change for _at, change in changes), default=0)


def lines(
    scenario: Scenario,
    asked: dict[str, list[float]],
    got: dict[str, list[float]],
    step: float,
) -> dict[str, Any]:
    """Return what each group had been entitled to and had got by so many moments."""
    every = STEPS // POINTS
    found: dict[str, Any] = {"at": [step * every * (point + 1) for point in range(POINTS)]}
    found["groups"] = [
        {
            "name": group.name,
            "asked": grown([asked[user] for user in group.users()], every),
            "got": grown([got[user] for user in group.users()], every),
        }
        for group in scenario.groups[:MOST_LINES]
    ]
    return found


def grown(rows: Sequence[Sequence[float]], every: int) -> list[float]:
    """Return what rows have summed up to after each so many steps."""
    steps = [sum(column) for column in zip(*rows, strict=True)]
    found, sum_ = [], 0.0
    for start in range(0, len(steps), every):
        sum_ += sum(steps[start : start + every])
        found.append(round(sum_, 6))
    return found
