"""Wall clocks that jump. On SQLite they decide about leases, so that none is touched there."""

from __future__ import annotations

from benchmarks.chaos.history import Strike
from benchmarks.chaos.stage import Stage

from .base import SERVERS, fault

JUMPS = (-86_400.0, -3_600.0, -7.0, 7.0, 3_600.0, 86_400.0)


@fault("clock", databases=SERVERS)
def jump(stage: Stage) -> Strike | None:
    """The clock of a host jumps, by seconds, an hour or a day, and later jumps back."""
    host = stage.some_host()
    at = stage.now()
    host.clock.ahead = stage.drawn.choice(JUMPS)
    stage.wait(stage.drawn.uniform(1.0, 4.0))
    host.clock.ahead = 0.0
    return Strike("clock", at, stage.now(), host.name)
