"""What a project writes: handlers, the routes to them, and what to decide when they fail."""

from django_perfectqueue.backoff import Backoff, Exponential, Fixed, Linear, Steps
from django_perfectqueue.verdicts import Discard, Retry, Snooze

from .base import Application, TimeLimits, time_limits
from .dispatch import Dispatch, Registry, autodiscover, handler
from .error_policy import Decider
from .programs import CommandDecider, CommandHandler, Completed

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
