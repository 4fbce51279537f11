"""Break off database calls that get no answer."""

from __future__ import annotations

from collections.abc import Sequence

from .link import Link

GRACE = 2.0
LEAST = 5.0


class Watchdog:
    """
    Checks from another thread how long each link has waited for an answer.

    After ``timeout`` seconds it cancels the wait for a lock; two seconds later it shuts the
    socket down. Otherwise a link would wait forever for a network that drops packets or for
    a server that hangs. A link with less patience, as at a stop, gets less time.
    """

    def __init__(self, links: Sequence[Link], timeout: float | None) -> None:
        self.links = list(links)
        self.timeout = timeout

    def look(self, now: float) -> None:
        for link in self.links:
            since, socket_handle = link.calling_since, link.socket_handle
            if self.timeout is None or not since or socket_handle is None:
                continue
            waited = now - since
            if waited >= self.limit(link):
                link.silent = True
                if not socket_handle.cancel_sent:
                    socket_handle.cancel_query()
                elif waited >= self.limit(link) + min(GRACE, self.timeout):
                    socket_handle.shutdown()

    def limit(self, link: Link) -> float:
        assert self.timeout is not None
        return min(self.timeout, max(LEAST, link.patience()))


def timeout_for(timeout: float | None, *, alive_time: float) -> float | None:
    """Return the timeout in seconds, below a quarter of the lease time."""
    return None if timeout is None else min(timeout, max(LEAST, alive_time / 4))
