"""How long it took until all was well after each fault, read from the history."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from .history import RUNNING, History, Run, Strike
from .terms import Terms

GRACE = 1.0
RETURN = 2.0
MEASURED = 20.0

GIVEN_BACK = "its tasks are given back"
WORKS = "each processor that is free has begun a task"
HOST_WORKS = "the host begins a task again"
INTERRUPTED = "a handler that has lost its lease is interrupted"
FROM_THE_BLOW = (GIVEN_BACK, HOST_WORKS)


@dataclass(frozen=True)
class Recovery:
    """``seconds`` are those of each fault of a kind; ``bound`` what they may be, if it is said."""

    fault: str
    what: str
    struck: int
    seconds: tuple[float, ...]
    bound: float | None

    @property
    def late(self) -> int:
        return sum(one > self.bound for one in self.seconds) if self.bound else 0

    def as_json(self) -> dict[str, object]:
        return {
            "fault": self.fault,
            "what": self.what,
            "struck": self.struck,
            "measured": len(self.seconds),
            "p50": statistics.median(self.seconds) if self.seconds else None,
            "max": max(self.seconds, default=None),
            "bound": self.bound,
            "late": self.late,
        }


def recoveries(history: History, terms: Terms) -> list[Recovery]:
    """Return what can be measured of each kind of fault that has struck."""
    index = Index(history)
    found = []
    for fault, strikes in sorted(by_fault(history).items()):
        for what, measure, bound in MEASURES.get(fault, ()):
            seconds = []
            for strike in strikes:
                took = measure(index, strike)
                since = strike.at if what in FROM_THE_BLOW else strike.restored
                if took is not None and not disturbed(history, strike, since + took):
                    seconds.append(took)
            limit = None if bound is None else bound(terms)
            found.append(Recovery(fault, what, len(strikes), tuple(seconds), limit))
    return found


def by_fault(history: History) -> dict[str, list[Strike]]:
    found = defaultdict(list)
    for strike in history.strikes:
        found[strike.fault].append(strike)
    return found


def disturbed(history: History, strike: Strike, until: float) -> bool:
    """Return whether another fault came, to the same host or to the database, meanwhile."""
    return any(
        other is not strike
        and other.at < until
        and strike.at < other.restored + (0.0 if other.host else RETURN)
        and (not other.host or not strike.host or other.host == strike.host)
        for other in history.strikes
    )


class Index:
    """A history by processes, and the tasks by those who ever held them."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.by_pid: dict[int, list[Run]] = defaultdict(list)
        for run in sorted(history.begun, key=lambda run: run.began):
            self.by_pid[run.pid].append(run)
        self.held_by: dict[int, set[int]] = defaultdict(set)
        for change in history.changes:
            if change.holder is not None:
                self.held_by[change.holder].add(change.task)

    def of_host(self, host: str) -> Iterator[list[Run]]:
        """Yield the runs of each process of a host, or of all."""
        for runs in self.by_pid.values():
            if not host or runs[0].host == host:
                yield runs


def given_back(index: Index, strike: Strike) -> float | None:
    """Return until the last ticket that these processes held is in other hands, or in none."""
    holders = {run.holder for pid in strike.pids for run in index.by_pid.get(pid, ())}
    longest = None
    for task in set().union(*(index.held_by[holder] for holder in holders)):
        held = None
        for change in index.history.changes_of[task]:
            if change.at <= strike.at:
                held = change
            elif held is not None and held.state == RUNNING and held.holder in holders:
                if (change.state, change.holder) != (RUNNING, held.holder):
                    longest = max(longest or 0.0, change.at - strike.at)
                    break
            else:
                break
    return longest


def works_again(index: Index, strike: Strike) -> float | None:
    """
    Return the longest time, from when the trouble is over and a processor is free, until it
    begins a task. Those that begin none any more have ended, or have nothing to do.
    """
    longest = None
    for runs in index.of_host(strike.host):
        later = [run for run in runs if run.began > strike.restored]
        if runs[0].began > strike.at or not later:
            continue
        busy = [run.ended or run.began for run in runs if run.began <= strike.restored]
        free = max([strike.restored, *busy])
        longest = max(longest or 0.0, later[0].began - free)
    return longest


def host_works(index: Index, strike: Strike) -> float | None:
    """Return until a process of the host that was not struck begins a task."""
    began = [
        run.began
        for runs in index.of_host(strike.host)
        for run in runs
        if run.began > strike.at and run.pid not in strike.pids
    ]
    return min(began) - strike.at if began else None


def interrupted(index: Index, strike: Strike) -> float | None:
    """Return until the last handler that stood still in these processes was interrupted."""
    reported = [
        one.at - strike.restored
        for one in index.history.reported
        if one.pid in strike.pids
        and one.reason == "PreemptedError"
        and strike.restored <= one.at <= strike.restored + MEASURED
        and any(
            run.began <= strike.at
            for run in index.by_pid.get(one.pid, ())
            if (run.task, run.attempt) == (one.task, one.attempt)
        )
    ]
    return max(reported, default=None)


Measure = Callable[[Index, Strike], float | None]
Bound = Callable[[Terms], float]


def lease(terms: Terms) -> float:
    return terms.alive_time + GRACE


ON_WORKERS = ("supervisor", "launcher", "usr1", "hup", "int", "term", "quit", "scale")
ON_DATABASES = (
    *("helper", "backend", "restarted-server", "crashed-server", "crashed-backend"),
    *("cut", "black-hole", "slow", "locked-file", "clock"),
)
FROZEN: list[tuple[str, Measure, Bound | None]] = [
    (GIVEN_BACK, given_back, lease),
    (INTERRUPTED, interrupted, lambda _terms: GRACE),
]
MEASURES: dict[str, list[tuple[str, Measure, Bound | None]]] = {
    "processor": [(GIVEN_BACK, given_back, lambda terms: terms.poll_interval)],
    "host": [(GIVEN_BACK, given_back, lease)],
    "frozen-processor": FROZEN,
    "frozen-host": FROZEN,
    **{name: [(HOST_WORKS, host_works, None)] for name in ON_WORKERS},
    **{name: [(WORKS, works_again, lambda _terms: RETURN)] for name in ON_DATABASES},
}
