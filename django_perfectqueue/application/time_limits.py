"""How long an attempt may take, and how long it may take to end."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from django_perfectqueue.conf import Options

if TYPE_CHECKING:
    from .handler import Application

NEVER = math.inf


class TimeLimits(NamedTuple):
    """
    Seconds: after ``time_limit`` a handler is interrupted, and ``kill_wait`` after that,
    for this or another reason, it is ended by force.
    """

    time_limit: float = NEVER
    kill_wait: float = NEVER

    @property
    def hard(self) -> float:
        """When it is ended by force, in seconds after its start."""
        return self.time_limit + self.kill_wait


def time_limits(
    handler: type[Application] | None, given: float | None, options: Options
) -> TimeLimits:
    """
    Return what holds for an attempt: what the submitter has given, or else the handler, or
    else the settings.
    """
    limit, wait = given, None
    if handler is not None:
        limit, wait = handler.time_limit if given is None else given, handler.kill_wait
    limit = options.TIME_LIMIT if limit is None else limit
    wait = options.TASK_KILL_WAIT if wait is None else wait
    return TimeLimits(NEVER if limit is None else limit, NEVER if wait is None else wait)
