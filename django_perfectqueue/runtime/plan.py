"""What a worker is to do, as its processes hand it on."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass

from django_perfectqueue import store
from django_perfectqueue.application import Application, Dispatch, TimeLimits, time_limits
from django_perfectqueue.conf import Options


@dataclass(frozen=True, kw_only=True)
class Plan:
    dispatch: type[Dispatch]
    queues: tuple[str, ...]
    using: str
    options: Options
    burst: bool = False

    def handler_for(self, lease: store.Lease) -> type[Application] | None:
        """Return the handler of a task, or None where there is none or it can't be found."""
        try:
            return self.dispatch.handler_for(lease.type)
        except Exception:
            return None

    def time_limits(self, lease: store.Lease) -> TimeLimits:
        return time_limits(self.handler_for(lease), lease.time_limit, self.options)


def worker_name() -> str:
    """Return what a task's row calls the process that ran it."""
    return f"{socket.gethostname()}:{os.getpid()}"
