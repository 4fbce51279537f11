"""What a project writes: handlers, the routes to them, and what to decide when they fail."""

from django_perfectqueue.store import next_wait

from .command import CommandDecider, CommandHandler
from .decider import Decider
from .dispatch import Dispatch
from .handler import Application
from .program import Completed
from .registry import Registry, autodiscover, handler
from .time_limits import TimeLimits, time_limits

__all__ = [
    "Application",
    "CommandDecider",
    "CommandHandler",
    "Completed",
    "Decider",
    "Dispatch",
    "Registry",
    "TimeLimits",
    "autodiscover",
    "handler",
    "next_wait",
    "time_limits",
]
