"""
Sentry: each task has a scope, a trace and the name of a transaction of its own.

``sentry_sdk.init(..., integrations=[PerfectQueueIntegration()])``. A failure is one event, which
Sentry makes of the worker's log; an attempt after which the task is tried again is a breadcrumb.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from sentry_sdk import Scope
from sentry_sdk.integrations import Integration
from sentry_sdk.integrations.logging import ignore_logger

from django_perfectqueue.lib import running


class PerfectQueueIntegration(Integration):
    """Belongs into the ``integrations`` of ``sentry_sdk.init()``."""

    identifier = "perfectqueue"

    @staticmethod
    def setup_once() -> None:
        # Django logs the same failure of one of its tasks again.
        for name in ("django.tasks", "django_tasks"):
            ignore_logger(name)
        # A thread that a task starts begins with a copy of that task's scopes, so tasks fork these.
        scopes = Scope.get_isolation_scope(), Scope.get_current_scope()
        running.begin = partial(begin, *scopes)


def begin(isolation: Scope, current: Scope, task: Any) -> None:
    """Open scopes; they end with the context of the attempt, in which this is called."""
    running.running.set(task)
    Scope.set_current_scope(current.fork())
    scope = isolation.fork()
    Scope.set_isolation_scope(scope)
    scope.set_new_propagation_context()
    scope.set_transaction_name(task.type, source="task")
    facts = {"queue": task.queue.name, "key": task.key, "attempt": task.attempt}
    scope.set_context("perfectqueue", facts)
