"""What a worker tells the other hosts of itself."""

from __future__ import annotations

import json
import os
import socket
import time
from typing import Any

from django_perfectqueue import __version__, store
from django_perfectqueue.application import Dispatch

from .database import Link
from .plan import Plan

INTERVAL = 10.0
DECIDES = ("handler_for", "knows", "look_up")


class Presence:
    """Keeps a worker's row in the register young, over its janitor's connection."""

    def __init__(self, worker: store.Registration, link: Link) -> None:
        self.worker = worker
        self.link = link
        self.due_at = 0.0

    def tell(self) -> None:
        """Say that the worker is alive, unless that was said a moment ago."""
        if time.monotonic() >= self.due_at:
            self.link.insist(lambda: store.register(self.worker, using=self.link.using))
            self.due_at = time.monotonic() + INTERVAL

    def end(self) -> None:
        """Say that it takes no more tasks."""
        self.link.insist(lambda: store.sign_off(self.worker, using=self.link.using))


def registration(plan: Plan) -> store.Registration:
    """Return what is told of the worker whose supervisor this process is."""
    return store.Registration(
        host=socket.gethostname(),
        pid=os.getpid(),
        version=__version__,
        processors=plan.options.PROCESSORS,
        queues=json.dumps(plan.queues),
        routes=json.dumps(routes_of(plan.dispatch)),
    )


def routes_of(dispatch: type[Dispatch]) -> dict[str, Any] | None:
    """Return the types and the patterns of a dispatch; None where it decides by itself."""
    if any(
        getattr(dispatch, name).__func__ is not Dispatch.__dict__[name].__func__ for name in DECIDES
    ):
        return None
    routes = list(dispatch.load())
    return {
        "types": [route for route in routes if isinstance(route, str)],
        "patterns": [
            [route.pattern, route.flags] for route in routes if not isinstance(route, str)
        ],
    }
