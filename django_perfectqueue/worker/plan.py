"""The configuration of a worker, inherited by all its processes."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field

from django_perfectqueue import store
from django_perfectqueue.application import Application, Dispatch, TimeLimits, time_limits
from django_perfectqueue.conf import Options

from .database.link import LEAST
from .shared.status import Outage

MOST_TYPES = 1_000


@dataclass(frozen=True, kw_only=True)
class Plan:
    """
    ``generation`` counts the supervisors that one launcher has started, from 1. ``health``
    is the address of the probe server, if there is one.
    """

    dispatch: type[Dispatch]
    queues: tuple[str, ...]
    using: str
    options: Options
    burst: bool = False
    reload: bool = False
    generation: int = 1
    health: tuple[str, int] | None = None
    limits_of_types: dict[str, TimeLimits] = field(default_factory=dict, compare=False, repr=False)
    outage: Outage = field(default_factory=Outage, compare=False)

    @property
    def timeout(self) -> float | None:
        """The timeout of a database call in seconds, below a quarter of the lease time."""
        timeout = self.options.DATABASE_TIMEOUT
        return None if timeout is None else min(timeout, max(LEAST, self.options.ALIVE_TIME / 4))

    def handler_for(self, lease: store.Lease) -> type[Application] | None:
        """Return the handler of a task, or None if the look-up fails."""
        try:
            return self.dispatch.handler_for(lease.type)
        except Exception:
            return None

    def time_limits(self, lease: store.Lease) -> TimeLimits:
        """Return the time limits of a task; cached by type."""
        if lease.time_limit is not None:
            return time_limits(self.handler_for(lease), lease.time_limit, self.options)
        try:
            return self.limits_of_types[lease.type]
        except KeyError:
            found = time_limits(self.handler_for(lease), None, self.options)
            if len(self.limits_of_types) >= MOST_TYPES:
                self.limits_of_types.clear()
            return self.limits_of_types.setdefault(lease.type, found)


def worker_name(pid: int) -> str:
    """Return the name of a process of this host in the rows of its tasks."""
    return f"{socket.gethostname()}:{pid}"
