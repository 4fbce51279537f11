"""Run tasks as soon as they are submitted, with no worker: the setting EAGER."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from django.db import connections, transaction
from django.test.utils import override_settings

from django_perfectqueue.conf import QUIET, SETTING, given, options

from .drain import drain

draining: ContextVar[bool] = ContextVar("draining", default=False)


@contextmanager
def eager(*, raise_errors: bool = True) -> Iterator[None]:
    """
    Run each task submitted in here when its transaction commits.

    In a TestCase, whose transaction never does, that is at once; or when this block ends,
    where the submit is inside of a transaction of your own. What handlers raise is raised
    there, and ``raise_errors=False`` only stores it.
    """
    mode = True if raise_errors else QUIET
    with override_settings(**{SETTING: {**given(), "EAGER": mode}}):
        yield
        run_what_waits()


@dataclass(frozen=True)
class DueTask:
    """A database in which something is to be run once the transaction has committed."""

    using: str

    def __call__(self) -> None:
        """Drain; what becomes due meanwhile, such as a child, the same drain runs."""
        if draining.get():
            return
        token = draining.set(True)
        try:
            drain(using=self.using, raise_errors=options().EAGER != QUIET)
        finally:
            draining.reset(token)


def notified(using: str) -> None:
    """Run what is due, as soon as it can be seen by others."""
    due = DueTask(using)
    connection = connections[using]
    if connection.in_atomic_block and not is_tests_own(connection):
        transaction.on_commit(due, using=using)
    else:
        due()


def run_what_waits() -> None:
    """Run what waits for the commit of a test's transaction, which never comes."""
    for connection in connections.all(initialized_only=True):
        if connection.in_atomic_block and is_tests_own(connection):
            hooks: list[Any] = connection.run_on_commit
            waiting = [hook for hook in hooks if isinstance(hook[1], DueTask)]
            hooks[:] = [hook for hook in hooks if hook not in waiting]
            for due in dict.fromkeys(function for _savepoints, function, *_robust in waiting):
                due()


def is_tests_own(connection: Any) -> bool:
    """Return whether the only open transaction is that of a TestCase."""
    return all(block._from_testcase for block in connection.atomic_blocks)
