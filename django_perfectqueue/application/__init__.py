"""What a project writes: handlers, the routes to them, and what to decide when they fail."""

from django_perfectqueue.backoff import Backoff, Exponential, Fixed, Linear, Steps
from django_perfectqueue.verdicts import Discard, Retry, Snooze

from .decider import Decider
from .dispatch import Dispatch
from .handler import Application
from .programs.command_handler import CommandDecider, CommandHandler
from .programs.program import Completed
from .registry import Registry, autodiscover, handler
from .time_limits import TimeLimits, time_limits

__all__ = [
    "Application",
    "Backoff",
    "CommandDecider",
    "CommandHandler",
    "Completed",
    "Decider",
    "Discard",
    "Dispatch",
    "Exponential",
    "Fixed",
    "Linear",
    "Registry",
    "Retry",
    "Snooze",
    "Steps",
    "TimeLimits",
    "autodiscover",
    "handler",
    "time_limits",
]
