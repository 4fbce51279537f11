"""What one run is: where, for how long, with how many hosts, and how fast it all goes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .scenario import PLAYS, WEBS

HOST = "CHAOS_HOST"


@dataclass(frozen=True)
class Terms:
    """
    ``hosts`` are workers that know nothing of each other, each of so many ``processors``.
    ``least_pause`` and ``most_pause`` are the seconds between two faults. A run is for so
    many ``seconds`` of faults, or for so many ``strikes``, whichever is over first.
    ``nodes`` are the servers of a cluster, 1 where there is none.
    ``clients`` are processes that act at random. In a ``storm`` they use every verb, and all reach
    the server themselves; else there is a proxy before it, which may break.
    """

    database: str
    seconds: float
    strikes: int | None = None
    seed: int = 1
    faults: Sequence[str] = ()
    hosts: int = 3
    processors: int = 2
    alive_time: float = 5.0
    poll_interval: float = 1.0
    least_pause: float = 0.5
    most_pause: float = 3.0
    backlog: int = 150
    drain: float = 180.0
    queues: Sequence[str] = ("default", WEBS, PLAYS)
    storm: bool = False
    clients: int = 2
    nodes: int = 1

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def names(self) -> list[str]:
        """The hosts' names."""
        return [f"host-{chr(ord('a') + number)}" for number in range(self.hosts)]


@dataclass(frozen=True)
class Files:
    """Where the processes of one run find each other."""

    folder: Path

    @property
    def events(self) -> Path:
        """What handlers do, and what is asked of the queue and answered."""
        return self.folder / "events"

    @property
    def locks(self) -> Path:
        return self.folder / "locks"

    def home(self, host: str) -> Path:
        """The folder of one host, with its socket of the proxy."""
        return self.folder / host

    def clock(self, host: str) -> Path:
        return self.home(host) / "clock"

    def options(self, host: str) -> Path:
        """What a host's workers are to have for settings when they next start."""
        return self.home(host) / "options.json"


FOLDER = "CHAOS_FOLDER"


def this_folder() -> Files:
    """Return the files that the environment of this process names."""
    return Files(Path(os.environ[FOLDER]))
