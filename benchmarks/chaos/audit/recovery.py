"""How long it took until all was well after each fault, read from the history."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ..terms import Terms
from .history import RUNNING, History, Run, Strike, grouped

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
    found = []
    for fault, strikes in sorted(grouped(history.strikes, lambda one: one.fault).items()):
        for what, measure, bound in MEASURES.get(fault, ()):
            seconds = []
            for strike in strikes:
                took = measure(history, strike)
                since = strike.at if what in FROM_THE_BLOW else strike.restored
                if took is not None and not disturbed(history, strike, since + took):
                    seconds.append(took)
            limit = None if bound is None else bound(terms)
            found.append(Recovery(fault, what, len(strikes), tuple(seconds), limit))
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


def of_host(history: History, host: str) -> Iterator[list[Run]]:
    """Yield the runs of each process of a host, or of all."""
    for runs in history.begun_by.values():
        if not host or runs[0].host == host:
            yield runs


def given_back(history: History, strike: Strike) -> float | None:
    """Return until the last ticket that these processes held is in other hands, or in none."""
    holders = {run.holder for pid in strike.pids for run in history.begun_by.get(pid, ())}
    longest = None
    for task in {ref[0] for holder in holders for ref in history.held_by.get(holder, ())}:
        held = None
        for change in history.changes_of[task]:
            if change.at <= strike.at:
                held = change
            elif held is not None and held.state == RUNNING and held.holder in holders:
                if (change.state, change.holder) != (RUNNING, held.holder):
                    longest = max(longest or 0.0, change.at - strike.at)
                    break
            else:
                break
    return longest


def works_again(history: History, strike: Strike) -> float | None:
    """
    Return the longest time, from when the trouble is over and a processor is free, until it
    begins a task. Those that begin none any more have ended, or have nothing to do.
    """
    longest = None
    for runs in of_host(history, strike.host):
        later = [run for run in runs if run.began > strike.restored]
        if runs[0].began > strike.at or not later:
            continue
        busy = [run.ended or run.began for run in runs if run.began <= strike.restored]
        free = max([strike.restored, *busy])
        longest = max(longest or 0.0, later[0].began - free)
    return longest


def host_works(history: History, strike: Strike) -> float | None:
    """Return until a process of the host that was not struck begins a task."""
    began = [
        run.began
        for runs in of_host(history, strike.host)
        for run in runs
        if run.began > strike.at and run.pid not in strike.pids
    ]
    return min(began) - strike.at if began else None


def interrupted(history: History, strike: Strike) -> float | None:
    """Return until the last handler that stood still in these processes was interrupted."""
    reported = [
        one.at - strike.restored
        for one in history.reported
        if one.pid in strike.pids
        and one.reason == "PreemptedError"
        and strike.restored <= one.at <= strike.restored + MEASURED
        and any(
            run.began <= strike.at
            for run in history.begun_by.get(one.pid, ())
            if (run.task, run.attempt) == (one.task, one.attempt)
        )
    ]
    return max(reported, default=None)


Measure = Callable[[History, Strike], float | None]
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
