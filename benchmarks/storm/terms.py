"""What one storm is: that of the chaos, and who besides its workers uses the store."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.chaos import terms


@dataclass(frozen=True)
class Terms(terms.Terms):
    """
    ``clients`` are processes that use every verb at random. ``isolation`` is the level of
    their transactions and the workers', as Django's settings spell it; empty: the default.
    """

    hosts: int = 1
    alive_time: float = 3.0
    poll_interval: float = 0.5
    least_pause: float = 0.2
    most_pause: float = 2.0
    drain: float = 60.0
    clients: int = 8
    isolation: str = ""


ISOLATION = "STORM_ISOLATION"
