"""What a fault may lay hands on."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.database import Link, Target, connect
from tests.databases import Server
from tests.databases.server import DATABASE

from ..audit.history import Strike
from ..terms import Terms
from .fleet import Fleet, Host
from .proxy import Proxy

STEP = 0.05
END_WITHIN = 30.0


class Stage:
    """``offset`` is what the database's clock says more than the clock that nobody sets."""

    fleet: Fleet
    proxy: Proxy | None = None
    offset = 0.0

    def __init__(self, terms: Terms, server: Server) -> None:
        self.terms = terms
        self.server = server
        self.drawn = random.Random(terms.seed)
        self.strikes: list[Strike] = []

    @property
    def target(self) -> Target:
        """The database, without anything in between."""
        return Target.of(self.terms.database, DATABASE, self.server.home)

    def now(self) -> float:
        """Return the database's time, also while there is none."""
        return time.monotonic() + self.offset

    def wait(self, seconds: float) -> None:
        """Let time pass, while the service managers do their work."""
        until = time.monotonic() + seconds
        while True:
            self.fleet.keep()
            left = until - time.monotonic()
            if left <= 0:
                return
            time.sleep(min(STEP, left))

    def wait_for(self, condition: Callable[[], bool], within: float) -> bool:
        """Wait until it holds; return whether it does."""
        until = time.monotonic() + within
        while not condition():
            if time.monotonic() > until:
                return False
            self.wait(STEP)
        return True

    def dismissed(self) -> list[str]:
        """Ask the clients to end; return what did not go so."""
        self.fleet.dismiss()
        self.wait_for(lambda: not self.fleet.clients(), END_WITHIN)
        return [f"client {pid} did not end when asked to" for pid in self.fleet.clients()]

    def some_host(self) -> Host:
        """Draw a host, of those that are at work where there are any."""
        hosts = list(self.fleet)
        busy = [host for host in hosts if host.current_processors()]
        return self.drawn.choice(busy or hosts)

    def one_of(self, pids: list[int]) -> list[int]:
        return [self.drawn.choice(pids)] if pids else []

    def past_the_lease(self) -> float:
        """Return for how many seconds something is to be away until its leases are gone."""
        return self.terms.alive_time + self.drawn.uniform(0.3, 1.5)

    def link(self) -> contextlib.AbstractContextManager[Link]:
        """Return a connection to the database that no fault of the network touches."""
        return contextlib.closing(connect(self.target))


def make_rules(shares: Mapping[str, Any], limits: Mapping[str, Mapping[str, Any]]) -> None:
    """Make the shares, each a weight and a cap, and the limits that hold throughout."""
    from django_perfectqueue.fairness.limits import set_limit
    from django_perfectqueue.fairness.shares import set_share

    for user, (weight, cap) in shares.items():
        set_share(user, weight=weight, max_running=cap)
    for key, terms in limits.items():
        scope, _, name = key.partition(":")
        set_limit(name, **{**terms, "scope": scope})
