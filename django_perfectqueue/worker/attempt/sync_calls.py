"""Synchronous calls of handlers in an event loop, above all of Django's ORM."""

from __future__ import annotations

from concurrent.futures import Executor, Future

from asgiref.sync import SyncToAsync, ThreadSensitiveContext
from django.db import connections

from ..database.link import ConnectionCleanup


class SyncCalls:
    """
    The thread that runs them one after another, and its connections.

    asgiref starts it at the first call of sync_to_async(). It lives until close().
    """

    def __init__(self) -> None:
        self.context = ThreadSensitiveContext()
        self.cleanup = ConnectionCleanup(left_alone=())

    def enter(self) -> None:
        """Run the calls of this context in the thread from now on."""
        SyncToAsync.thread_sensitive_context.set(self.context)

    @property
    def thread(self) -> Executor | None:
        return SyncToAsync.context_to_thread_executor.get(self.context)

    def tidy(self) -> None:
        """Roll back transactions that a handler left open, and wait for that."""
        if tidied := self.begin_to_tidy():
            tidied.result()

    def begin_to_tidy(self) -> Future[None] | None:
        thread = self.thread
        return None if thread is None else thread.submit(self.cleanup.run)

    def disconnect(self) -> None:
        """Close the thread's connections after its pending calls."""
        if self.thread is not None:
            self.thread.submit(connections.close_all)

    def close(self) -> None:
        if (thread := self.thread) is not None:
            self.disconnect()
            thread.shutdown()
