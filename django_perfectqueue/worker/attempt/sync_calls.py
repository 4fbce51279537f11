"""What handlers in an event loop call that is synchronous, Django's ORM above all."""

from __future__ import annotations

from concurrent.futures import Executor, Future
from typing import Any

from asgiref.sync import SyncToAsync, ThreadSensitiveContext
from django.db import connections

from ..database.link import ConnectionCleanup


class SyncCalls:
    """
    The one thread in which they are made, one after another, and its connections.

    asgiref starts it with the first call of sync_to_async(). It stays until close().
    """

    def __init__(self) -> None:
        self.context = ThreadSensitiveContext()
        self.cleanup = ConnectionCleanup(left_alone=())

    def enter(self) -> None:
        """Have what is called from now on, in this context, run in the thread."""
        SyncToAsync.thread_sensitive_context.set(self.context)

    @property
    def thread(self) -> Executor | None:
        return SyncToAsync.context_to_thread_executor.get(self.context)

    def tidy(self) -> None:
        """Roll back what a handler has left open, and wait for that."""
        if tidied := self.begin_to_tidy():
            tidied.result()

    def begin_to_tidy(self) -> Future[Any] | None:
        thread = self.thread
        return None if thread is None else thread.submit(self.cleanup.run)

    def disconnect(self) -> None:
        """Close the thread's connections once it comes to that."""
        if self.thread is not None:
            self.thread.submit(connections.close_all)

    def close(self) -> None:
        if (thread := self.thread) is not None:
            self.disconnect()
            thread.shutdown()
